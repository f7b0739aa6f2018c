// SPDX-License-Identifier: Apache-2.0
#include "window_history.hpp"

#include <algorithm>
#include <cstring>

namespace sparq {
namespace cpu {

WindowHistory::WindowHistory(std::size_t nSlots, std::size_t positions, unsigned recent)
    : nRecent(recent), capacity(positions),
      rows(product({nSlots, recent, positions, sizeof(std::uint32_t)})),
      totals(product({nSlots, positions, sizeof(std::int32_t)})),
      steps(nSlots, std::vector<Step>(recent)), held(nSlots, 0) {
  for (std::vector<Step> &of : steps)
    for (std::size_t i = 0; i < recent; ++i)
      of[i] = {0, i};
}

void WindowHistory::begin(std::size_t slot, std::size_t length) {
  std::vector<Step> &of = steps[slot];
  if (held[slot] == nRecent) {
    forget(slot, of.front());
    std::rotate(of.begin(), of.begin() + 1, of.end());
    --held[slot];
  }
  Step &now = of[held[slot]++];
  now.length = length;
  std::memset(row(slot, now.row), 0, length * sizeof(std::uint32_t));
}

void WindowHistory::give(std::size_t slot, std::uint32_t position, std::uint32_t share) {
  row(slot, steps[slot][held[slot] - 1].row)[position] += share;
  totals.as<std::int32_t>()[slot * capacity + position] += static_cast<std::int32_t>(share);
}

std::vector<std::uint32_t> WindowHistory::step(std::size_t slot, std::size_t number) const {
  const Step &of = steps[slot][number];
  const std::uint32_t *const shares = row(slot, of.row);
  return {shares, shares + of.length};
}

void WindowHistory::truncate(std::size_t slot, std::size_t length) {
  std::vector<Step> &of = steps[slot];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < held[slot]; ++i)
    if (of[i].length <= length)
      std::swap(of[kept++], of[i]);
    else
      forget(slot, of[i]);
  held[slot] = kept;
}

void WindowHistory::reset() {
  for (std::size_t slot = 0; slot < held.size(); ++slot)
    while (held[slot] != 0)
      forget(slot, steps[slot][--held[slot]]);
}

void WindowHistory::copy(std::size_t from, std::size_t to) {
  steps[to] = steps[from];
  held[to] = held[from];
  for (std::size_t i = 0; i < held[to]; ++i) {
    const Step &of = steps[to][i];
    std::memcpy(row(to, of.row), row(from, of.row), of.length * sizeof(std::uint32_t));
  }
  std::int32_t *const all = totals.as<std::int32_t>();
  std::memcpy(all + to * capacity, all + from * capacity, capacity * sizeof(std::int32_t));
}

// Takes a step out of the sums.
void WindowHistory::forget(std::size_t slot, const Step &step) {
  const std::uint32_t *const shares = row(slot, step.row);
  std::int32_t *const sum = totals.as<std::int32_t>() + slot * capacity;
  for (std::size_t p = 0; p < step.length; ++p)
    sum[p] -= static_cast<std::int32_t>(shares[p]);
}

} // namespace cpu
} // namespace sparq
