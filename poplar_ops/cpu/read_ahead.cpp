// SPDX-License-Identifier: Apache-2.0
#include "read_ahead.hpp"

namespace sparq {
namespace cpu {
namespace {

// On an Intel Xeon 4 and 8 KiB are alike for grouped heads, where less is not enough; with a head
// for each KV head 4 is quicker.
constexpr std::size_t usual = 4096;
constexpr unsigned long most = 65536;
// Shorter runs say little. Those over selected rows take microseconds, and differ more.
constexpr std::size_t shortestAhead = 128 << 10, shortestFetch = 16 << 10;
constexpr unsigned triesAhead = 8, triesFetch = 32;

} // namespace

ReadAhead::ReadAhead() : distance(usual), ways(shortestAhead, triesAhead) {
  if (const auto number = numberOf("SPARQ_CPU_READ_AHEAD", 0, most)) {
    distance = *number;
    ways.settle(0);
  }
}

FetchLevel::FetchLevel() : ways(shortestFetch, triesFetch) {
  if (const auto number = numberOf("SPARQ_CPU_FETCH_LEVEL", 1, 2))
    ways.settle(static_cast<unsigned>(*number) - 1);
}

} // namespace cpu
} // namespace sparq
