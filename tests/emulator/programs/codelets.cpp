// SPDX-License-Identifier: Apache-2.0
// Vertices of the emulator's tests: every kind of field, and what can go wrong with them.
#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>

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

} // namespace test
