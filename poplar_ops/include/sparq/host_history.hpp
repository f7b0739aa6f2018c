// SPDX-License-Identifier: Apache-2.0
//
// How a host reads and writes the history of window attention that a loaded engine holds
// (docs/exactness.md E11).
#pragma once

#include "sparq/cache.hpp"
#include "sparq/host_tensor.hpp"
#include <cstdint>
#include <deque>
#include <poplar/Engine.hpp>
#include <vector>

namespace sparq {

// Calls but `advance` are for the layer that was selected last (HostCache::selectLayer).
class HostHistory {
public:
  // Steps of one batch element, the oldest first: the shares of each, by position.
  using Steps = std::vector<std::vector<std::uint32_t>>;

  HostHistory() = default;
  // Adds what the host needs to the graph. The engine of that graph is given to every call.
  HostHistory(poplar::Graph &graph, const Cache &cache);

  // What the engine has to have among its programs, the first of them as number `first`.
  std::vector<poplar::program::Program> programs() const;
  void setFirstProgram(unsigned first) { firstProgram_ = first; }

  // The device has taken a step of every batch element, at these lengths.
  void advance(unsigned layer, const std::vector<std::uint32_t> &lengths);
  // The steps of each batch element.
  std::vector<Steps> read(poplar::Engine &engine, unsigned layer) const;
  // Throws Error unless there are at most nRecent steps, each of at most capacity positions.
  void check(const std::vector<Steps> &steps) const;
  // Throws Error as check() does.
  void write(poplar::Engine &engine, unsigned layer, const std::vector<Steps> &steps);
  // Whether any step is remembered.
  bool any(unsigned layer) const;

private:
  // Number i of a step by position p, in the array that has a batch element's rows.
  std::size_t at(std::size_t row, std::size_t position) const {
    return (position / length_ * nRecent_ + row) * length_ + position % length_;
  }

  unsigned nRecent_ = 0, length_ = 1, nPieces_ = 0, batch_ = 0, capacity_ = 0;
  HostTensor readRows_, writeRows_, writeSums_, writeStep_;
  poplar::program::Sequence load_, store_; // with several layers
  unsigned firstProgram_ = 0;
  // For each layer and batch element: the lengths at its steps, the oldest first; and the row of
  // the newest.
  std::vector<std::vector<std::deque<std::uint32_t>>> lengths_;
  std::vector<std::vector<std::uint32_t>> newest_;
};

} // namespace sparq
