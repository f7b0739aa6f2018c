// SPDX-License-Identifier: Apache-2.0
// Vertices of the emulator's tests: every kind of field, and what can go wrong with them.
#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>
#include <type_traits>

using namespace poplar;
static constexpr auto ONE_PTR = poplar::VectorLayout::ONE_PTR;
static constexpr auto SHORT_SPAN = poplar::VectorLayout::SHORT_SPAN;

namespace test {

// out = in * factor + bias, one worker.
class Affine : public Vertex {
public:
  Input<Vector<float>> in;
  Output<Vector<float>> out;
  const float factor;
  Affine(); // declared only, as const fields ask for: never called
  bool compute() {
    for (unsigned i = 0; i < in.size(); ++i)
      out[i] = in[i] * factor + bias;
    return true;
  }

private:
  float bias; // private fields are fields too
};

// Adds one to what it is connected to.
class Increment : public Vertex {
public:
  InOut<Vector<float>> data;
  void compute() {
    for (float &x : data)
      x += 1;
  }
};

// Each worker writes its id where it works.
class WorkerIds : public MultiVertex {
public:
  Output<Vector<unsigned, ONE_PTR>> out;
  unsigned n;
  bool compute(unsigned workerId) {
    for (unsigned i = workerId; i < n; i += numWorkers())
      out[i] = workerId;
    return true;
  }
};

// For either kind of vertex a compute() of its own.
template <bool byWorker> class Ways : public std::conditional_t<byWorker, MultiVertex, Vertex> {
public:
  InOut<Vector<unsigned, ONE_PTR>> data;
  void compute() { data[0] = 100; }
  void compute(unsigned worker) { data[worker] = worker + 1; }
};
template class Ways<false>;
template class Ways<true>;

// Sum of rows of different lengths, each with a weight.
template <typename T> class WeightedRows : public Vertex {
public:
  Vector<Input<Vector<T>>> rows;
  Vector<unsigned> weights;
  Output<float> sum;
  bool compute() {
    float s = 0;
    for (unsigned i = 0; i < rows.size(); ++i)
      for (unsigned k = 0; k < rows[i].size(); ++k)
        s += float(rows[i][k]) * weights[i];
    *sum = s;
    return true;
  }
};
template class WeightedRows<half>;
template class WeightedRows<float>;

enum class Order { Ascending, Descending };

// The larger or smaller of scalars, connected one by one.
template <Order order, bool negate, int offset> class Pick : public Vertex {
public:
  Vector<Input<int>> candidates;
  Output<int> best;
  bool compute() {
    int b = *candidates[0];
    for (unsigned i = 1; i < candidates.size(); ++i)
      if (order == Order::Ascending ? *candidates[i] < b : *candidates[i] > b)
        b = candidates[i];
    *best = (negate ? -b : b) + offset;
    return true;
  }
};
template class Pick<Order::Ascending, false, 0>;
template class Pick<Order::Descending, true, -7>;

// true where the flag is below the limit: compute() reports it.
class Below : public Vertex {
public:
  Input<unsigned> value;
  Output<bool> below;
  unsigned limit;
  bool compute() {
    *below = *value < limit;
    return *below;
  }
};

class Count : public SupervisorVertex {
public:
  InOut<unsigned> counter;
  unsigned step;
  bool compute() {
    *counter += step;
    return true;
  }
};

// Needs 8-byte alignment; reports the address it got modulo 8.
class Aligned : public Vertex {
public:
  Input<Vector<half, ONE_PTR, 8>> in;
  InOut<Vector<half, VectorLayout::SPAN, 8>> out;
  Output<unsigned> remainder;
  bool compute() {
    *remainder = unsigned(
        (reinterpret_cast<unsigned long>(in.data()) | reinterpret_cast<unsigned long>(out.data())) %
        8);
    for (unsigned i = 0; i < out.size(); ++i)
      out[i] = in[i] + out[i];
    return true;
  }
};

// Writes one element, wherever the index says.
class WriteAt : public Vertex {
public:
  Output<Vector<float>> out;
  int index;
  bool compute() {
    out.data()[index] = 1;
    return true;
  }
};

// Writes to what it may only read, which compiles, as with the SDK.
class WriteInput : public Vertex {
public:
  Vector<Input<Vector<float>>> in;
  Output<float> out;
  int row;
  bool compute() {
    *out = in[0][1];
    if (row >= 0)
      in[row][3] = 7;
    return true;
  }
};

// Copies one element more than there are: from the guard of one edge to that of another.
class CopiesOneMore : public Vertex {
public:
  Input<Vector<float>> in;
  Output<Vector<float>> out;
  bool compute() {
    for (unsigned i = 0; i <= in.size(); ++i)
      out[i] = in[i];
    return true;
  }
};

class Short : public Vertex {
public:
  Input<Vector<float, SHORT_SPAN>> in;
  Output<float> out;
  bool compute() {
    *out = in.size();
    return true;
  }
};

// Rows as one field; a field inherited from a base; state of every scalar type.
struct HasScale : public Vertex {
  float scale;
};
class Rows : public HasScale {
public:
  Input<VectorList<float, VectorListLayout::DELTANELEMENTS>> rows;
  Output<Vector<float>> sums;
  bool flag;
  short s;
  unsigned char c;
  half h;
  bool compute() {
    for (unsigned i = 0; i < rows.size(); ++i) {
      float sum = 0;
      for (unsigned k = 0; k < rows[i].size(); ++k)
        sum += rows[i][k];
      sums[i] = sum * scale + (flag ? float(h) : 0.0f) + s + c;
    }
    return true;
  }
};

// Six workers that keep apart, or do not: what each may rely on is its own share of every field.
// With `step` 0 a worker looks at its own share, else at another's.

// Halves: two workers' shares lie in one 32-bit word where a share is an odd number of elements.
class Shares : public MultiVertex {
public:
  Output<Vector<half, ONE_PTR, 8>> out;
  unsigned share;
  bool compute(unsigned worker) {
    for (unsigned i = 0; i != share; ++i)
      out[worker * share + i] = float(worker);
    return true;
  }
};

// The largest element of each worker's column; the maxima of all may be cleared by the first.
class Maxima : public MultiVertex {
public:
  Input<Vector<float, ONE_PTR>> in;
  InOut<Vector<float, ONE_PTR>> maxima;
  unsigned n;
  bool firstClears;
  bool compute(unsigned worker) {
    if (!firstClears)
      maxima[worker] = -1000;
    else if (worker == 0)
      for (unsigned i = 0; i != numWorkers(); ++i)
        maxima[i] = -1000;
    for (unsigned i = worker; i < n; i += numWorkers())
      if (in[i] > maxima[worker])
        maxima[worker] = in[i];
    return true;
  }
};

// Doubles its element, and says what it, or another worker, has.
class Doubles : public MultiVertex {
public:
  InOut<Vector<unsigned, ONE_PTR>> data;
  Output<Vector<unsigned, ONE_PTR>> seen;
  unsigned step;
  bool compute(unsigned worker) {
    data[worker] = 2 * data[worker];
    seen[worker] = data[(worker + step) % numWorkers()];
    return true;
  }
};

// Adds to an element: an InOut has something to add to.
class Adds : public MultiVertex {
public:
  InOut<Vector<float>> sums;
  bool compute(unsigned worker) {
    sums[worker] += 1;
    return true;
  }
};

// An Output has nothing to add to.
class AddsToNothing : public MultiVertex {
public:
  Output<Vector<float>> sums;
  bool compute(unsigned worker) {
    sums[worker] += 1;
    return true;
  }
};

// Stores what was there, in its element and perhaps in another's.
class Stores : public MultiVertex {
public:
  InOut<Vector<float>> data;
  unsigned step;
  bool compute(unsigned worker) {
    data[worker] = 10;
    data[(worker + step) % numWorkers()] = 10;
    return true;
  }
};

// Returns what the others have made of a flag.
class Agrees : public MultiVertex {
public:
  InOut<Vector<unsigned>> flags;
  unsigned step;
  bool compute(unsigned worker) {
    const bool seen = flags[(worker + step) % numWorkers()] == 10;
    flags[worker] = 1;
    return seen;
  }
};

// Counts the calls: state is one for all workers.
class Counts : public MultiVertex {
public:
  Output<Vector<unsigned>> out;
  unsigned calls;
  bool shared;
  bool compute(unsigned worker) {
    if (shared || worker == 3)
      ++calls;
    out[worker] = worker;
    return true;
  }
};

// Says how its fields are aligned: the address of each modulo 64.
template <typename T, VectorLayout layout, unsigned minAlign> class Address : public Vertex {
public:
  Input<Vector<T, layout, minAlign>> in;
  Vector<unsigned, layout, minAlign> state;
  Output<unsigned> inAt, stateAt;
  bool compute() {
    *inAt = unsigned(reinterpret_cast<unsigned long>(in.data()) % 64);
    *stateAt = unsigned(reinterpret_cast<unsigned long>(state.data()) % 64);
    return true;
  }
};
template class Address<half, VectorLayout::SPAN, 0>;
template class Address<float, VectorLayout::ONE_PTR, 0>;
template class Address<half, VectorLayout::ONE_PTR, 4>;
template class Address<float, VectorLayout::ONE_PTR, 8>;
template class Address<float, VectorLayout::SCALED_PTR64, 0>;
template class Address<float, VectorLayout::SCALED_PTR128, 8>;

} // namespace test
