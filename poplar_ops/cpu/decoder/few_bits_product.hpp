// SPDX-License-Identifier: Apache-2.0
//
// The product of a linear layer whose weights have 4, 6 or 8 bits (contract E15). One row is bound
// by memory bandwidth: every code is read once. Many rows are bound by the multipliers.
#pragma once

#include "thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace sparq::cpu {

// Arrays; numbers are bits of bfloat16. Weights of 16 outputs and 32 inputs, a group, are stored
// together: codes, and then 64 bytes of fp16.
//
// 4 bits: weight = scale * (code - 8) + zero, with a scale and a zero for each output and group
//   byte 64 i + 4 o + b, i < 4, b < 4: of output o, the code of input 4 i + b in the lower half,
//   that of 16 + 4 i + b in the upper; after these 256 bytes 16 scales, then 16 zeros
// 8 bits: weight = scale * (code - 128) + zero, in the same way
//   byte 64 i + 4 o + b, i < 8, b < 4: of output o, the code of input 4 i + b; after these 512
//   bytes 16 scales, then 16 zeros
// 6 bits, for they have no other use: weight = scale * (code - 128), in bytes as 8 bits; 16 scales
//   of the first 16 inputs, then 16 of the others
struct FewBitsProduct {
  const std::uint16_t *rows;    // (nRows, inputs)
  const unsigned char *weights; // (outputs / 16, inputs / 32, 320 or 576)
  unsigned bits;
  std::uint16_t *output; // (nRows, stride)
  std::size_t nRows, inputs, outputs, stride;
};

// Calls work(first row, number of rows, threads) for parts of about the same size, whose integers
// stay in the second cache while all weights pass. Of many rows each thread has parts of its own,
// and waits for no other.
template <class Work>
inline void eachPart(const char *op, std::size_t nRows, std::int64_t nThreads, const Work &work) {
  constexpr std::size_t mostRows = 66; // of a part: for each, all weights are read
  constexpr std::size_t tileRows = 6;  // or a divisor
  const unsigned threads = checkedThreads(op, nThreads);
  const std::size_t team = nRows < threads * mostRows ? 1 : threads;
  const std::size_t parts = (nRows + mostRows * team - 1) / (mostRows * team) * team;
  const std::size_t tiles = (nRows + tileRows - 1) / tileRows;
  const auto one = [&](std::size_t part, std::int64_t ofPart) {
    const std::size_t begin = tiles * part / parts * tileRows;
    work(begin, std::min(tiles * (part + 1) / parts * tileRows, nRows) - begin, ofPart);
  };
  if (team == 1) {
    for (std::size_t part = 0; part < parts; ++part)
      one(part, threads);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> errors(team); // no memory
  PoolLease pool(threads);
  pool->run([&](unsigned thread) {
    try {
      for (std::size_t part; (part = next.fetch_add(1)) < parts;)
        one(part, 1);
    } catch (...) {
      errors[thread] = std::current_exception();
    }
  });
  for (const std::exception_ptr &error : errors)
    if (error)
      std::rethrow_exception(error);
}

// A row has the same bits with any others, any threads and any instruction set.
//
// Throws Error: inputs no multiple of 32, outputs none of 16, other bits, nThreads or isa as in
// KVCache.
void multiplyFewBits(const FewBitsProduct &product, std::int64_t nThreads, const std::string &isa);

} // namespace sparq::cpu
