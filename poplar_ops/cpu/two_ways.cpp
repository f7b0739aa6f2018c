// SPDX-License-Identifier: Apache-2.0
#include "two_ways.hpp"

#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace sparq {
namespace cpu {

void TwoWays::settle(unsigned wayIn) {
  chosen = wayIn;
  begun = 2 * tries;
}

TwoWays::Run::Run(TwoWays &ownerIn, std::size_t lengthIn)
    : way(ownerIn.now()), owner(ownerIn),
      length(lengthIn < owner.shortest ||
                     owner.begun.load(std::memory_order_relaxed) >= 2 * owner.tries
                 ? 0
                 : lengthIn) {
  if (!length)
    return;
  way = owner.begun.fetch_add(1, std::memory_order_relaxed) % 2;
  start = std::chrono::steady_clock::now();
}

TwoWays::Run::~Run() {
  if (!length)
    return;
  const auto ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  const std::uint64_t pace = (static_cast<std::uint64_t>(ns) << 20) / length;
  std::uint64_t before = owner.quickest[way].load(std::memory_order_relaxed);
  while (pace < before && !owner.quickest[way].compare_exchange_weak(before, pace)) {
  }
  // The second only where it is quicker by more than chance: where it is as quick now, it may be
  // slower when the memory is busier.
  if (owner.ended.fetch_add(1) + 1 == 2 * owner.tries)
    owner.chosen = owner.quickest[1] < owner.quickest[0] / 20 * 19 ? 1 : 0;
}

std::optional<unsigned long> numberOf(const char *variable, unsigned long least,
                                      unsigned long most) {
  const char *const wanted = std::getenv(variable);
  if (!wanted || !*wanted)
    return {};
  char *end;
  errno = 0;
  const unsigned long number = std::strtoul(wanted, &end, 10);
  if (*wanted < '0' || *wanted > '9' || *end || errno || number < least || number > most)
    throw std::invalid_argument("KVCache: " + std::string(variable) + " must be in [" +
                                std::to_string(least) + ", " + std::to_string(most) + "], got '" +
                                wanted + "'");
  return number;
}

} // namespace cpu
} // namespace sparq
