// SPDX-License-Identifier: Apache-2.0
#include "two_ways.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace sparq {
namespace cpu {
namespace {

// 0 1 1 0 1 0 0 1 ...: threads that run side by side have each way as often, and so their
// processors, of which one may be slower.
unsigned wayOf(unsigned number) { return static_cast<unsigned>(__builtin_parity(number)); }

} // namespace

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
  number = owner.begun.fetch_add(1, std::memory_order_relaxed);
  way = wayOf(number);
  start = std::chrono::steady_clock::now();
}

TwoWays::Run::~Run() {
  if (!length || number >= owner.paces.size())
    return;
  const auto ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  // Of each two runs that follow one another there is one of each way.
  owner.paces[way * owner.tries + number / 2] = (static_cast<std::uint64_t>(ns) << 20) / length;
  // The second only where it is quicker by more than chance: where it is as quick now, it may be
  // slower when the memory is busier. Not by the quickest run of each: one that finds its data in a
  // cache is quicker than memory allows, and says nothing about it.
  if (owner.ended.fetch_add(1) + 1 == owner.paces.size())
    owner.chosen = owner.median(1) < owner.median(0) / 20 * 19 ? 1 : 0;
}

std::uint64_t TwoWays::median(unsigned way) {
  const auto begin = paces.begin() + static_cast<std::ptrdiff_t>(way * tries);
  const auto middle = begin + tries / 2;
  std::nth_element(begin, middle, begin + tries);
  return *middle;
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
