// SPDX-License-Identifier: Apache-2.0
//
// The yardstick of a memory-bound kernel: a plain vectorised sum over memory of the same kind, by
// the same number of threads.
#pragma once

#include "dispatch.hpp"
#include "thread_pool.hpp"

#include <stdexcept>

namespace sparq::cpu {

class StreamSum {
public:
  // Memory of `bytes`, filled with ones (fp32). Throws Error: nThreads or isa as in KVCache.
  StreamSum(std::int64_t bytes, std::int64_t threads, const std::string &isa)
      : nThreads(checkedThreads("StreamSum", threads)), kernels(kernelsNamed("StreamSum", isa)),
        size(static_cast<std::int64_t>(roundUp(static_cast<std::size_t>(bytes), granule))),
        memory(static_cast<std::size_t>(size)) {
    float *const numbers = memory.as<float>();
    for (std::size_t i = 0; i < static_cast<std::size_t>(size) / sizeof(float); ++i)
      numbers[i] = 1.0f;
  }
  // Reads `bytes` from `offset` (both multiples of 4096, inside the memory); returns the sum of
  // what it read.
  double run(std::int64_t offset, std::int64_t bytes) const {
    if (offset < 0 || bytes < 0 || offset % granule || bytes % granule || offset + bytes > size)
      throw std::invalid_argument("StreamSum: what is read must be whole pages of its memory");
    PoolLease pool(nThreads);
    const float *const numbers = memory.as<float>() + offset / 4;
    const auto granules = static_cast<std::size_t>(bytes / granule),
               team = std::size_t(pool->nThreads());
    std::vector<float> sums(team);
    pool->run([&](unsigned thread) {
      const Share share(granules, thread, team);
      constexpr std::size_t each = granule / sizeof(float);
      sums[thread] =
          kernels.streamSum(numbers + share.begin * each, (share.end - share.begin) * each);
    });
    double total = 0;
    for (float sum : sums)
      total += static_cast<double>(sum);
    return total;
  }

private:
  static constexpr std::int64_t granule = 4096;
  const unsigned nThreads;
  const Kernels &kernels;
  const std::int64_t size;
  Buffer memory;
};

} // namespace sparq::cpu
