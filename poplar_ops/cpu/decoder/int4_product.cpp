// SPDX-License-Identifier: Apache-2.0
#include "int4_product.hpp"

#include "decoder/kernels/table.hpp"
#include "dispatch.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <stdexcept>

namespace sparq {
namespace cpu {
namespace {

constexpr std::size_t blockOutputs = 16;
// Bytes of weights that are asked for before they are read: measured, one row on a Xeon of 2023.
constexpr std::size_t ahead = 2560;

void check(const char *what, std::size_t n, std::size_t multiple) {
  if (n == 0 || n % multiple)
    throw std::invalid_argument(std::string("int4_product: ") + what + " must be a multiple of " +
                                std::to_string(multiple) + ", got " + std::to_string(n));
}

} // namespace

void multiplyInt4(const Int4Product &p, std::int64_t nThreads, const std::string &isa) {
  check("in_features", p.inputs, weightGroup);
  check("out_features", p.outputs, blockOutputs);
  const ProductKernels &kernels = *kernelsNamed("int4_product", isa).products;
  PoolLease pool(checkedThreads("int4_product", nThreads));
  const std::size_t team = pool->nThreads(), blocks = p.outputs / blockOutputs;
  const std::size_t groups = p.inputs / weightGroup;
  auto *const rounded = reinterpret_cast<RoundedGroup *>(
      pool->scratch(std::min<std::size_t>(mostGroupRows, p.nRows) * groups * sizeof(RoundedGroup)));
  for (std::size_t row = 0; row < p.nRows; row += mostGroupRows) {
    const std::size_t nRows = std::min<std::size_t>(mostGroupRows, p.nRows - row);
    pool->run([&](unsigned thread) {
      const std::size_t first = groups * thread / team, last = groups * (thread + 1) / team;
      for (std::size_t r = 0; r < nRows; ++r)
        kernels.roundGroups({p.rows + (row + r) * p.inputs + first * weightGroup,
                             rounded + first * nRows + r, nRows, last - first});
      pool->barrier();
      const std::size_t from = blocks * thread / team, end = blocks * (thread + 1) / team;
      kernels.groupProducts({rounded, p.weights + from * groups * groupBytes, groups, nRows,
                             end - from, ahead, p.output + row * p.outputs + from * blockOutputs,
                             p.outputs});
    });
  }
}

} // namespace cpu
} // namespace sparq
