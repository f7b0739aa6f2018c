// SPDX-License-Identifier: Apache-2.0
//
// The yardstick of a memory-bound kernel: a plain vectorised sum over memory of the same kind, by
// the same number of threads.
#pragma once

#include "buffer.hpp"
#include "kernels/table.hpp"

#include <cstdint>
#include <string>

namespace sparq::cpu {

class StreamSum {
public:
  // Memory of `bytes`, filled with ones (fp32). Throws Error: bytes not in [1,
  // 2^40], nThreads or isa as in KVCache.
  StreamSum(std::int64_t bytes, std::int64_t nThreads, const std::string &isa);
  // Reads `bytes` from `offset` (both multiples of 4096, inside the memory); returns the sum of
  // what it read.
  double run(std::int64_t offset, std::int64_t bytes) const;

private:
  const unsigned nThreads;
  const Kernels &kernels;
  const std::int64_t size;
  Buffer memory;
};

} // namespace sparq::cpu
