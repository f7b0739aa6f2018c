// SPDX-License-Identifier: Apache-2.0
#include "window_history.hpp"

#include <algorithm>
#include <cstring>

namespace sparq::cpu {

WindowHistory::WindowHistory(std::size_t nSlots, std::size_t positions, unsigned recent)
    : nRecent(recent), capacity(positions),
      rows(product({nSlots, recent, positions, sizeof(std::uint32_t)})),
      totals(product({nSlots, positions, sizeof(std::int32_t)})),
      steps(nSlots, std::vector<Step>(recent)), held(nSlots, 0) {
  for (std::vector<Step> &of : steps)
    for (std::size_t i = 0; i < recent; ++i)
      of[i] = {0, i};
}

void WindowHistory::begin(std::size_t bank, std::size_t length) {
  std::vector<Step> &of = steps[bank];
  if (held[bank] == nRecent) {
    forget(bank, of.front());
    std::rotate(of.begin(), of.begin() + 1, of.end());
    --held[bank];
  }
  Step &now = of[held[bank]++];
  now.length = length;
  std::memset(row(bank, now.row), 0, length * sizeof(std::uint32_t));
}

void WindowHistory::give(std::size_t bank, std::uint32_t position, std::uint32_t share) {
  row(bank, steps[bank][held[bank] - 1].row)[position] += share;
  totals.as<std::int32_t>()[bank * capacity + position] += static_cast<std::int32_t>(share);
}

std::vector<std::uint32_t> WindowHistory::step(std::size_t bank, std::size_t number) const {
  const Step &of = steps[bank][number];
  const std::uint32_t *const shares = row(bank, of.row);
  return {shares, shares + of.length};
}

void WindowHistory::truncate(std::size_t bank, std::size_t length) {
  std::vector<Step> &of = steps[bank];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < held[bank]; ++i)
    if (of[i].length <= length)
      std::swap(of[kept++], of[i]);
    else
      forget(bank, of[i]);
  held[bank] = kept;
}

void WindowHistory::reset() {
  for (std::size_t bank = 0; bank < held.size(); ++bank)
    while (held[bank] != 0)
      forget(bank, steps[bank][--held[bank]]);
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
void WindowHistory::forget(std::size_t bank, const Step &step) {
  const std::uint32_t *const shares = row(bank, step.row);
  std::int32_t *const sum = totals.as<std::int32_t>() + bank * capacity;
  for (std::size_t p = 0; p < step.length; ++p)
    sum[p] -= static_cast<std::int32_t>(shares[p]);
}

} // namespace sparq::cpu
