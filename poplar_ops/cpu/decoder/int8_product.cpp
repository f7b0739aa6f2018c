// SPDX-License-Identifier: Apache-2.0
#include "int8_product.hpp"

#include "bfloat16.hpp"
#include "decoder/kernels/table.hpp"
#include "dispatch.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <stdexcept>

namespace sparq {
namespace cpu {
namespace {

// Outputs and rows of one call of the kernel.
constexpr std::size_t someOutputs = 128, someRows = 32;
// Bytes of codes that are asked for before they are read: measured, as for dense attention.
constexpr std::size_t ahead = 8192;

void check(const char *what, std::size_t n, std::size_t multiple) {
  if (n == 0 || n % multiple)
    throw std::invalid_argument(std::string("int8_product: ") + what + " must be a multiple of " +
                                std::to_string(multiple) + ", got " + std::to_string(n));
}

} // namespace

void multiplyInt8(const Int8Product &p, std::int64_t nThreads, const std::string &isa) {
  check("in_features", p.inputs, 16);
  check("out_features", p.outputs, 4);
  const ProductKernels &kernels = *kernelsNamed("int8_product", isa).products;
  PoolLease pool(checkedThreads("int8_product", nThreads));
  const std::size_t team = pool->nThreads(), fours = p.outputs / 4;
  auto *const wide = reinterpret_cast<float *>(pool->scratch(someRows * p.inputs * sizeof(float)));
  for (std::size_t row = 0; row < p.nRows; row += someRows) {
    const std::size_t nRows = std::min(someRows, p.nRows - row);
    for (std::size_t i = 0; i < nRows * p.inputs; ++i)
      wide[i] = widened(p.rows[row * p.inputs + i]);
    pool->run([&](unsigned thread) {
      float sums[someRows * someOutputs];
      const std::size_t end = fours * (thread + 1) / team * 4;
      for (std::size_t from = fours * thread / team * 4; from < end; from += someOutputs) {
        const std::size_t n = std::min(someOutputs, end - from);
        kernels.codeProducts({wide, p.codes + from * p.inputs, p.inputs,
                              static_cast<unsigned>(nRows), static_cast<unsigned>(n), ahead, sums,
                              someOutputs});
        for (std::size_t r = 0; r < nRows; ++r)
          for (std::size_t i = 0; i < n; ++i)
            p.output[(row + r) * p.outputs + from + i] =
                narrowed(sums[r * someOutputs + i] * widened(p.scale[from + i]));
      }
    });
  }
}

} // namespace cpu
} // namespace sparq
