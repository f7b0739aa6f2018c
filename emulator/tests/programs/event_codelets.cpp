// SPDX-License-Identifier: Apache-2.0
// Vertices with floating-point events, and some that only look like it.
#include <cmath>
#include <poplar/Vertex.hpp>

using namespace poplar;

namespace test {

struct Add {
  static float of(float a, float b) { return a + b; }
};
struct Multiply {
  static float of(float a, float b) { return a * b; }
};
struct Divide {
  static float of(float a, float b) { return a / b; }
};
struct Less {
  static float of(float a, float b) { return a < b ? 1.0f : 0.0f; }
};
struct Exp {
  static float of(float a, float) { return std::exp(a); }
};
struct Log {
  static float of(float a, float) { return std::log(a); }
};
struct Sqrt {
  static float of(float a, float) { return std::sqrt(a); }
};
// Rounds once, to half.
struct ToHalf {
  static float of(float a, float b) { return static_cast<half>(a + b); }
};
// No events for any number: what a compiler might compute although the branch leaves it out.
struct GuardedDivide {
  static float of(float a, float b) { return b != 0.0f ? a / b : 0.0f; }
};
struct GuardedProduct {
  static float of(float a, float b) { return a < 1e10f ? a * b : 0.5f; }
};
struct GuardedRoot {
  static float of(float a, float b) { return a > 0.0f ? b * std::sqrt(a) : b; }
};
struct Sigmoid {
  static float of(float a, float) { return __builtin_ipu_sigm(a); }
};

// Of every element: enough of them for vectors of any width, and a rest.
template <class Op> class Map : public Vertex {
public:
  Input<Vector<float>> a, b;
  Output<Vector<float>> out;
  bool compute() {
    for (unsigned i = 0; i < a.size(); ++i)
      out[i] = Op::of(a[i], b[i]);
    return true;
  }
};
template class Map<Add>;
template class Map<Multiply>;
template class Map<Divide>;
template class Map<Less>;
template class Map<Exp>;
template class Map<Log>;
template class Map<Sqrt>;
template class Map<ToHalf>;
template class Map<GuardedDivide>;
template class Map<GuardedProduct>;
template class Map<GuardedRoot>;
template class Map<Sigmoid>;

// In halves from end to end.
class HalfMap : public Vertex {
public:
  Input<Vector<float>> a, b;
  Output<Vector<float>> out;
  bool compute() {
    for (unsigned i = 0; i < a.size(); ++i) {
      half product = static_cast<half>(a[i]);
      product *= static_cast<half>(b[i]);
      out[i] = product;
    }
    return true;
  }
};

// The fourth worker alone divides.
class FourthDivides : public MultiVertex {
public:
  Input<Vector<float>> a, b;
  Output<Vector<float>> out;
  bool compute(unsigned worker) {
    for (unsigned i = worker; i < a.size(); i += numWorkers())
      out[i] = worker == 3 ? a[i] / b[i] : 0.0f;
    return true;
  }
};

} // namespace test
