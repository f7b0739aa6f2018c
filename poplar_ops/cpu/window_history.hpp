// SPDX-License-Identifier: Apache-2.0
//
// What window attention selects by: how much of the attention of the last steps each position got
// (contract E11). Shares are integers, so a running sum over the steps is exact, in any order.
#pragma once

#include "buffer.hpp"

#include <cstdint>
#include <vector>

namespace sparq::cpu {

// The steps of one layer, by bank of the cache.
class WindowHistory {
public:
  // Remembers nRecent steps of so many positions. Throws std::bad_alloc.
  WindowHistory(std::size_t nSlots, std::size_t capacity, unsigned nRecent);

  const unsigned nRecent;

  // (capacity,) by position: the shares of the steps remembered, below 2^31.
  const std::int32_t *sums(std::size_t bank) const {
    return totals.as<std::int32_t>() + bank * capacity;
  }

  // Begins a step that is taken at `length` positions, in place of the oldest one if there are
  // nRecent; every share of it is 0. `give` then adds to it.
  void begin(std::size_t bank, std::size_t length);
  void give(std::size_t bank, std::uint32_t position, std::uint32_t share);

  std::size_t nSteps(std::size_t bank) const { return held[bank]; }
  // The shares of a step, the oldest being number 0: (length at that step,).
  std::vector<std::uint32_t> step(std::size_t bank, std::size_t number) const;

  // Forgets the steps that were taken at more positions.
  void truncate(std::size_t bank, std::size_t length);
  void reset();
  void copy(std::size_t from, std::size_t to);

private:
  struct Step {
    std::size_t length, row;
  };
  std::uint32_t *row(std::size_t bank, std::size_t number) const {
    return rows.as<std::uint32_t>() + (bank * nRecent + number) * capacity;
  }
  void forget(std::size_t bank, const Step &step);

  const std::size_t capacity;
  Buffer rows;   // (bank, nRecent, capacity)
  Buffer totals; // (bank, capacity)
  std::vector<std::vector<Step>>
      steps;                     // of each bank nRecent, those remembered first, oldest first
  std::vector<std::size_t> held; // so many of them are remembered
};

} // namespace sparq::cpu
