// SPDX-License-Identifier: Apache-2.0
#include "few_bits_product.hpp"

#include "call.hpp"
#include "decoder/kernels/table.hpp"
#include "dispatch.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <stdexcept>

namespace sparq::cpu {
namespace {

// Prefetch distance in weights: measured, one row on a Xeon of 2023.
constexpr std::size_t ahead = 2560;

void check(const char *what, std::size_t n, std::size_t multiple) {
  if (n == 0 || n % multiple)
    throw std::invalid_argument(std::string("few_bits_product: ") + what +
                                " must be a multiple of " + std::to_string(multiple) + ", got " +
                                std::to_string(n));
}

std::size_t ceilDiv(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

void multiplyPart(const FewBitsProduct &p, std::int64_t nThreads, const DecoderKernels &kernels) {
  PoolLease pool(checkedThreads("few_bits_product", nThreads));
  const std::size_t team = pool->nThreads(), blocks = p.outputs / blockOutputs;
  const std::size_t groups = p.inputs / weightGroup, tileRows = kernels.tileRows;
  const std::size_t columns = ceilDiv(blocks, kernels.tileBlocks);
  const std::size_t nTiles = ceilDiv(p.nRows, tileRows), tileBytes = groups * kernels.tileBytes;
  // Of one tile each thread has its own: that is faster than to wait for another thread.
  const bool isOneTile = nTiles == 1;
  const std::size_t memory = tileBytes * (isOneTile ? team : nTiles);
  auto *const tiles = Carver(pool->scratch(memory + 64)).take<unsigned char>(memory);
  pool->run([&](unsigned thread) {
    unsigned char *const own = tiles + (isOneTile ? thread * tileBytes : 0);
    const Share toRound(nTiles, isOneTile ? 0 : thread, isOneTile ? 1 : team);
    for (std::size_t tile = toRound.begin; tile < toRound.end; ++tile)
      kernels.roundRows({p.rows + tile * tileRows * p.inputs, own + tile * tileBytes, groups,
                         std::min(tileRows, p.nRows - tile * tileRows), p.bits});
    if (!isOneTile)
      pool->barrier();
    // Tiles of rows, and then columns of weights: a thread's are contiguous.
    const Share share(columns * nTiles, thread, team);
    for (std::size_t at = share.begin; at < share.end;) {
      const std::size_t tile = at % nTiles, n = std::min(nTiles - tile, share.end - at);
      const std::size_t column = at / nTiles;
      const std::size_t nColumns = n == nTiles ? (share.end - at) / nTiles : 1;
      const std::size_t block = column * kernels.tileBlocks, row = tile * tileRows;
      kernels.groupProducts(
          {own + tile * tileBytes, p.weights + block * groups * groupBytes(p.bits), groups,
           std::min(n * tileRows, p.nRows - row),
           std::min<std::size_t>(nColumns * kernels.tileBlocks, blocks - block), ahead, p.bits,
           p.output + row * p.stride + block * blockOutputs, p.stride});
      at += n * nColumns;
    }
  });
}

} // namespace

void multiplyFewBits(const FewBitsProduct &p, std::int64_t nThreads, const std::string &isa) {
  check("in_features", p.inputs, weightGroup);
  check("out_features", p.outputs, blockOutputs);
  if (p.bits != 4 && p.bits != 6 && p.bits != 8)
    throw std::invalid_argument("few_bits_product: bits must be 4, 6 or 8, got " +
                                std::to_string(p.bits));
  const DecoderKernels &kernels = *kernelsNamed("few_bits_product", isa).decoder;
  eachPart("few_bits_product", p.nRows, nThreads,
           [&](std::size_t at, std::size_t nRows, std::int64_t threads) {
             multiplyPart({p.rows + at * p.inputs, p.weights, p.bits, p.output + at * p.stride,
                           nRows, p.inputs, p.outputs, p.stride},
                          threads, kernels);
           });
}

} // namespace sparq::cpu
