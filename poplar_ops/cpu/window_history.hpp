// SPDX-License-Identifier: Apache-2.0
//
// What window attention selects by: how much of the attention of the last steps each position got
// (contract E11). Shares are integers, so a running sum over the steps is exact, in any order.
#pragma once

#include "buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace sparq::cpu {

// The steps of one layer, by bank of the cache.
class WindowHistory {
public:
  // Remembers nRecent steps of so many positions. Throws std::bad_alloc.
  WindowHistory(std::size_t nSlots, std::size_t positions, unsigned recent)
      : nRecent(recent), capacity(positions),
        rows(product({nSlots, recent, positions, sizeof(std::uint32_t)})),
        totals(product({nSlots, positions, sizeof(std::int32_t)})),
        steps(nSlots, std::vector<Step>(recent)), held(nSlots, 0) {
    for (std::vector<Step> &of : steps)
      for (std::size_t i = 0; i < recent; ++i)
        of[i] = {0, i};
  }

  const unsigned nRecent;

  // (capacity,) by position: the shares of the steps remembered, below 2^31.
  const std::int32_t *sums(std::size_t bank) const {
    return totals.as<std::int32_t>() + bank * capacity;
  }

  // Begins a step that is taken at `length` positions, in place of the oldest one if there are
  // nRecent; every share of it is 0. `give` then adds to it.
  void begin(std::size_t bank, std::size_t length) {
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
  void give(std::size_t bank, std::uint32_t position, std::uint32_t share) {
    row(bank, steps[bank][held[bank] - 1].row)[position] += share;
    totals.as<std::int32_t>()[bank * capacity + position] += static_cast<std::int32_t>(share);
  }

  std::size_t nSteps(std::size_t bank) const { return held[bank]; }
  // The shares of a step, the oldest being number 0: (length at that step,).
  std::vector<std::uint32_t> step(std::size_t bank, std::size_t number) const {
    const Step &of = steps[bank][number];
    const std::uint32_t *const shares = row(bank, of.row);
    return {shares, shares + of.length};
  }

  // Forgets the steps that were taken at more positions.
  void truncate(std::size_t bank, std::size_t length) {
    std::vector<Step> &of = steps[bank];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < held[bank]; ++i)
      if (of[i].length <= length)
        std::swap(of[kept++], of[i]);
      else
        forget(bank, of[i]);
    held[bank] = kept;
  }
  void copy(std::size_t from, std::size_t to) {
    steps[to] = steps[from];
    held[to] = held[from];
    for (std::size_t i = 0; i < held[to]; ++i) {
      const Step &of = steps[to][i];
      std::memcpy(row(to, of.row), row(from, of.row), of.length * sizeof(std::uint32_t));
    }
    std::int32_t *const all = totals.as<std::int32_t>();
    std::memcpy(all + to * capacity, all + from * capacity, capacity * sizeof(std::int32_t));
  }

private:
  struct Step {
    std::size_t length, row;
  };
  std::uint32_t *row(std::size_t bank, std::size_t number) const {
    return rows.as<std::uint32_t>() + (bank * nRecent + number) * capacity;
  }
  // Takes a step out of the sums.
  void forget(std::size_t bank, const Step &step) {
    const std::uint32_t *const shares = row(bank, step.row);
    std::int32_t *const sum = totals.as<std::int32_t>() + bank * capacity;
    for (std::size_t p = 0; p < step.length; ++p)
      sum[p] -= static_cast<std::int32_t>(shares[p]);
  }

  const std::size_t capacity;
  Buffer rows;   // (bank, nRecent, capacity)
  Buffer totals; // (bank, capacity)
  std::vector<std::vector<Step>>
      steps;                     // of each bank nRecent, those remembered first, oldest first
  std::vector<std::size_t> held; // so many of them are remembered
};

} // namespace sparq::cpu
