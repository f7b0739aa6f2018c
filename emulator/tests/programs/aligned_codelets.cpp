// SPDX-License-Identifier: Apache-2.0
// Vertices that load two floats at a time, built with -fsanitize=alignment.
#include <poplar/Vertex.hpp>

using namespace poplar;

namespace test {

typedef float Two __attribute__((vector_size(8)));

// By a pointer to a type that must be aligned to 8 bytes: right where the field grants that.
template <unsigned minAlign> class ByPointer : public Vertex {
public:
  Input<Vector<float, VectorLayout::ONE_PTR, minAlign>> in;
  Output<float> sum;
  unsigned n;
  bool compute() {
    Two sums{};
    for (unsigned i = 0; i != n; i += 2)
      sums += *reinterpret_cast<const Two *>(&in[i]);
    *sum = sums[0] + sums[1];
    return true;
  }
};
template class ByPointer<4>;
template class ByPointer<8>;

// By a copy, which asks for nothing.
class ByCopy : public Vertex {
public:
  Input<Vector<float, VectorLayout::ONE_PTR>> in;
  Output<float> sum;
  unsigned n;
  bool compute() {
    Two sums{};
    for (unsigned i = 0; i != n; i += 2) {
      Two two;
      __builtin_memcpy(&two, &in[i], sizeof(two));
      sums += two;
    }
    *sum = sums[0] + sums[1];
    return true;
  }
};

} // namespace test
