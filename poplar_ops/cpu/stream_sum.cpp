// SPDX-License-Identifier: Apache-2.0
#include "stream_sum.hpp"

#include "dispatch.hpp"
#include "thread_pool.hpp"

#include <stdexcept>
#include <vector>

namespace sparq::cpu {
namespace {

constexpr std::int64_t granule = 4096;

[[noreturn]] void fail(const std::string &rule, std::int64_t got) {
  throw std::invalid_argument("StreamSum: " + rule + ", got " + std::to_string(got));
}

std::int64_t checkedBytes(std::int64_t bytes) {
  if (bytes < 1 || bytes > std::int64_t(1) << 40)
    fail("n_bytes must be in [1, 2^40]", bytes);
  return bytes;
}

} // namespace

StreamSum::StreamSum(std::int64_t bytes, std::int64_t threads, const std::string &isa)
    : nThreads(checkedThreads("StreamSum", threads)), kernels(kernelsNamed("StreamSum", isa)),
      size(static_cast<std::int64_t>(
          roundUp(static_cast<std::size_t>(checkedBytes(bytes)), granule))),
      memory(static_cast<std::size_t>(size)) {
  float *const numbers = memory.as<float>();
  for (std::size_t i = 0; i < static_cast<std::size_t>(size) / sizeof(float); ++i)
    numbers[i] = 1.0f;
}

double StreamSum::run(std::int64_t offset, std::int64_t bytes) const {
  if (offset < 0 || offset % granule || offset > size)
    fail("offset must be a multiple of 4096 in [0, " + std::to_string(size) + "]", offset);
  if (bytes < 0 || bytes % granule || bytes > size - offset)
    fail("n_bytes must be a multiple of 4096 in [0, " + std::to_string(size - offset) + "]", bytes);
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

} // namespace sparq::cpu
