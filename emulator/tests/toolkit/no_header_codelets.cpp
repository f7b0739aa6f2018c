// SPDX-License-Identifier: Apache-2.0
// Vectors without a header that declares them, and their conversion.
#include <poplar/Vertex.hpp>

class Pairs : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<half, poplar::VectorLayout::SPAN, 4>> x;
  poplar::Output<poplar::Vector<float, poplar::VectorLayout::SPAN, 8>> sums;

  bool compute() {
    typedef short native __attribute__((vector_size(4)));
    typedef int wider __attribute__((vector_size(8)));
    for (unsigned i = 0; i + 1 < x.size(); i += 2) {
      const half2 pair = *reinterpret_cast<const half2 *>(&x[i]);
      const float2 wide = __builtin_convertvector(pair, float2);
      const half2 again = __builtin_convertvector(wide * 3.0f, half2);
      const native two = {short(i), 1};
      const wider counted = __builtin_convertvector(two, wider);
      sums[i / 2] = again[0] + again[1] + counted[0] + counted[1];
    }
    return true;
  }
};
