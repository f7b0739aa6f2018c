// SPDX-License-Identifier: Apache-2.0
#include "read_ahead.hpp"

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace sparq {
namespace cpu {
namespace {

// On an Intel Xeon 4 to 16 KiB are alike, less is not enough for grouped heads.
constexpr std::size_t usual = 8192;
constexpr unsigned long most = 65536;
// Shorter runs say little.
constexpr std::size_t shortest = 128 << 10;

} // namespace

ReadAhead::ReadAhead() : distance(usual), begun(0) {
  const char *const wanted = std::getenv("SPARQ_CPU_READ_AHEAD");
  if (!wanted || !*wanted)
    return;
  char *end;
  errno = 0;
  const unsigned long number = std::strtoul(wanted, &end, 10);
  if (*wanted < '0' || *wanted > '9' || *end || errno || number > most)
    throw std::invalid_argument("KVCache: SPARQ_CPU_READ_AHEAD must be in [0, " +
                                std::to_string(most) + "], got '" + wanted + "'");
  distance = number;
  begun = 2 * tries;
}

ReadAhead::Run::Run(ReadAhead &ownerIn, std::size_t lengthIn)
    : bytes(ownerIn.bytes()), owner(ownerIn),
      length(lengthIn < shortest || owner.begun.load(std::memory_order_relaxed) >= 2 * tries
                 ? 0
                 : lengthIn) {
  if (!length)
    return;
  way = owner.begun.fetch_add(1, std::memory_order_relaxed) % 2;
  bytes = way == 0 ? usual : 0;
  start = std::chrono::steady_clock::now();
}

ReadAhead::Run::~Run() {
  if (!length)
    return;
  const auto ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  const std::uint64_t pace = (static_cast<std::uint64_t>(ns) << 20) / length;
  std::uint64_t before = owner.quickest[way].load(std::memory_order_relaxed);
  while (pace < before && !owner.quickest[way].compare_exchange_weak(before, pace)) {
  }
  // Without only where that is quicker by more than chance: where it is as quick now, it may be
  // slower when the memory is busier.
  if (owner.ended.fetch_add(1) + 1 == 2 * tries)
    owner.distance = owner.quickest[1] < owner.quickest[0] / 20 * 19 ? 0 : usual;
}

} // namespace cpu
} // namespace sparq
