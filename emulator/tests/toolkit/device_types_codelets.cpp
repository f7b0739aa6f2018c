// SPDX-License-Identifier: Apache-2.0
// What the IPU's compiler takes, where `half`, its vectors and a size_t of 32 bits are types of its
// own.
#include <cstddef>

#include <poplar/Vertex.hpp>

#include <ipu_vector_math>

struct Limits {
  static constexpr half4 zeros = {0.0f, 0.0f, 0.0f, 0.0f};
  static constexpr half third = 1.0f / 3;
};
static_assert(float(Limits::third) == 0x1.554p-2f && float(half(1e6f)) == 65504.0f, "as rounded");

// out: `width` numbers of `fill`, then what is between the bounds of each element of x.
class Between : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<half, poplar::VectorLayout::SPAN, 8>> x;
  poplar::Output<poplar::Vector<half, poplar::VectorLayout::SPAN, 8>> out;
  poplar::Input<float> fill;
  poplar::Input<std::size_t> width;

  bool compute() {
    std::size_t n = width;
    if (*width != n || n > x.size())
      return false;
    for (unsigned i = 0; i < n; ++i)
      out[i] = fill;
    const half4 *in = reinterpret_cast<const half4 *>(&x[0]);
    half4 all = ipu::clamp(*in, half2{half(-1.5f), half(0.25f)}) + Limits::zeros;
    half2 two = ipu::clamp(half2{in->z, in->w}, half2{half(0.0f), half(1.0f)});
    float2 wide = ipu::clamp(float2{in->x, in->y}, float2{-0.5f, 0.5f});
    for (unsigned i = 0; i < 4; ++i)
      out[n + i] = all[i];
    for (unsigned i = 0; i < 2; ++i) {
      out[n + 4 + i] = two[i];
      out[n + 6 + i] = wide[i];
    }
    out[n + 8] = ipu::clamp(float(in->x), float2{-1.0f, 1.0f});
    return true;
  }
};
