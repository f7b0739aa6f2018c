// SPDX-License-Identifier: Apache-2.0
#include "schedule.hpp"

#include <algorithm>

namespace sparq::cpu {
namespace {

// Shorter pairs are not worth the barriers between the steps.
constexpr std::size_t shortestSplit = 2048;
// The last pair may make one thread finish later than the others by this part of a thread's work.
constexpr double imbalance = 0.12;

} // namespace

std::size_t schedulePairs(std::uint32_t *pairs, std::size_t n, const std::size_t *lengths,
                          unsigned nThreads) {
  std::sort(pairs, pairs + n, [&](std::uint32_t a, std::uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
  double left = 0;
  for (std::size_t i = 0; i < n; ++i)
    left += static_cast<double>(lengths[pairs[i]]);
  std::size_t split = 0;
  for (; split < n; ++split) {
    const std::size_t longest = lengths[pairs[split]];
    const bool even = longest == lengths[pairs[n - 1]] && (n - split) % nThreads == 0;
    const bool fine = static_cast<double>(longest) * nThreads <= imbalance * left;
    if (nThreads == 1 || even || fine || longest < shortestSplit)
      break;
    left -= static_cast<double>(longest);
  }
  return split;
}

} // namespace sparq::cpu
