// SPDX-License-Identifier: Apache-2.0
//
// How a host reads and writes a cache that a loaded engine holds, and the lengths it has.
#pragma once

#include "sparq/cache.hpp"
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <poplar/Engine.hpp>
#include <string>
#include <vector>

namespace sparq {

// A tensor that the host writes or reads. Poplar limits a host transfer to 128 MiB, so a large one
// goes in pieces; and a handle serves one direction only, as in the vendor's own programs.
class HostTensor {
public:
  HostTensor() = default;
  // Handles begin with `name`.
  static HostTensor writable(Graph &graph, const Tensor &tensor, const std::string &name);
  static HostTensor readable(Graph &graph, const Tensor &tensor, const std::string &name);

  std::size_t size() const { return pieces_.empty() ? 0 : pieces_.back().end; } // elements

  // size() elements, each as large as the tensor's.
  void write(Engine &engine, const void *data) const;
  void read(Engine &engine, void *data) const;

private:
  struct Piece {
    std::string handle;
    std::size_t begin, end; // elements
  };
  template <class Create>
  static HostTensor inPieces(const Graph &graph, const Tensor &tensor, const std::string &name,
                             const Create &create);

  std::vector<Piece> pieces_;
  std::size_t elementBytes_ = 0;
};

// The programs of an engine by which the host works on a cache: `first` is the number of the first.
struct HostPrograms {
  std::vector<Program> all;
  unsigned first = 0;
};

// One of them.
class HostProgram {
public:
  HostProgram() = default;
  HostProgram(const std::shared_ptr<HostPrograms> &programs, const Program &program)
      : programs_(programs), number_(static_cast<unsigned>(programs->all.size())) {
    programs->all.push_back(program);
  }
  void run(Engine &engine) const { engine.run(programs_->first + number_); }

private:
  std::shared_ptr<const HostPrograms> programs_;
  unsigned number_ = 0;
};

// Rows of a remote buffer that the host writes or reads: a batch of rows in one run of a program,
// which copies them between a staging tensor and the rows that a list names. A call to the engine
// for each row would take minutes for a long cache.
class RemoteRows {
public:
  // Rows in one batch, for a buffer of nRows on nTiles. A buffer has a batch of spare rows behind
  // those in use: the padding of a batch goes there, because a store may not name a row twice.
  static std::size_t batchSize(std::size_t nRows, std::size_t rowBytes, unsigned nTiles);

  // Adds the staging tensor to the graph. The first `nRows` rows of the buffer are in use. Handles
  // begin with `name`.
  RemoteRows(Graph &graph, const RemoteBuffer &buffer, std::size_t nRows, const std::string &name,
             const std::shared_ptr<HostPrograms> &programs);

  // Collects rows; writes them a batch at a time, and what is left when it is told to.
  class Writer {
  public:
    Writer(const RemoteRows &rows, Engine &engine);
    void add(std::size_t row, const void *data);
    void finish();

  private:
    const RemoteRows &rows_;
    Engine &engine_;
    std::vector<std::uint32_t> index_;
    std::vector<char> data_;
  };

  // Calls use(i, data) for each of the rows, in their order.
  void read(Engine &engine, const std::vector<std::size_t> &rows,
            const std::function<void(std::size_t, const void *)> &use) const;

private:
  std::size_t nRows_, rowBytes_, batch_;
  HostTensor rows_, writeData_, readData_;
  HostProgram write_, read_;
};

// How a host reads and writes the history of window attention that a loaded engine holds
// (docs/exactness.md E11).
class HostHistory {
public:
  // Steps of one batch element, the oldest first: the shares of each, by position.
  using Steps = std::vector<std::vector<std::uint32_t>>;

  HostHistory() = default;
  // Adds what the host needs to the graph. The engine of that graph is given to every call.
  HostHistory(Graph &graph, const Cache &cache);

  // The device has taken a step of every batch element, at these lengths.
  void advance(unsigned layer, const std::vector<std::uint32_t> &lengths);
  // The steps of each batch element.
  std::vector<Steps> read(Engine &engine, unsigned layer) const;
  // Throws Error unless there are at most nRecent steps, each of at most capacity positions.
  void check(const std::vector<Steps> &steps) const;
  // As check() asks.
  void write(Engine &engine, unsigned layer, const std::vector<Steps> &steps);
  // Whether any step is remembered.
  bool any(unsigned layer) const;

private:
  struct Layer {
    HostTensor readRows, writeRows, writeSums, writeStep;
    // For each batch element: the lengths at its steps, the oldest first; the row of the newest.
    std::vector<std::deque<std::uint32_t>> lengths;
    std::vector<std::uint32_t> newest;
  };
  // The piece of a batch element that has a position.
  std::size_t piece(unsigned b, std::size_t position) const {
    return b * nPieces_ + position / length_;
  }
  // A row's share of a position.
  std::size_t at(unsigned b, std::size_t row, std::size_t position) const {
    return (piece(b, position) * nRecent_ + row) * length_ + position % length_;
  }

  unsigned nRecent_ = 0, length_ = 1, nPieces_ = 0, batch_ = 0, capacity_ = 0;
  std::vector<Layer> layers_; // none where nothing remembers
};

class HostStore; // src/stores/store.hpp

// Arrays are C-contiguous fp16 bit patterns. Where a call throws Error the cache is as it was.
class HostCache {
public:
  // Adds what the host needs to the graph. The engine of that graph is given to every call.
  HostCache(Graph &graph, const Cache &cache);

  // What the engine has to have among its programs.
  HostPrograms &programs() { return *programs_; }

  // The length of each batch element of a layer.
  const std::vector<std::uint32_t> &lengths(unsigned layer) const { return lengths_[layer]; }

  // Selects the layer that the next program of the engine works on.
  void selectLayer(Engine &engine, unsigned layer) const;
  // Forgets every position of the layer, and its history.
  void reset(Engine &engine, unsigned layer);
  // Appends the first counts[b] of the nTokens of key, value {batch, nKvHeads, nTokens, headDim}.
  void write(Engine &engine, unsigned layer, const std::uint16_t *key, const std::uint16_t *value,
             unsigned nTokens, const std::vector<std::uint32_t> &counts);
  // Keys and values {batch, nKvHeads, nTokens, headDim}; zero at or beyond a length.
  void read(Engine &engine, unsigned layer, std::uint16_t *key, std::uint16_t *value,
            unsigned nTokens) const;
  // Sets the lengths alone: the cache counts as holding these positions.
  void setLengths(Engine &engine, unsigned layer, const std::vector<std::uint32_t> &lengths);
  // Rows of each task that the last attention call fetched; empty without hot rows.
  std::optional<std::vector<std::uint32_t>> misses(Engine &engine) const;
  // Makes all rows of the selected layer cold. False if the cache has no hot rows.
  bool forgetHot(Engine &engine) const;

  // Of window attention; of no step where nothing remembers any.
  HostHistory &history() { return history_; }
  const HostHistory &history() const { return history_; }

  // For programs that append or replace on the device: checks before, and what they did after.
  // Messages count elements from `firstElement`.
  void checkRoom(unsigned layer, unsigned nTokens, const std::vector<std::uint32_t> &counts,
                 unsigned firstElement = 0) const;
  void advance(unsigned layer, const std::vector<std::uint32_t> &counts);

private:
  // Selects a layer and loads it; stores the one that was loaded.
  void load(Engine &engine, unsigned layer) const;
  void store(Engine &engine) const;
  void writeLengths(Engine &engine, unsigned layer) const;

  Shape shape_;
  HostTensor layerNumber_, filled_;
  std::shared_ptr<HostPrograms> programs_ = std::make_shared<HostPrograms>();
  std::vector<std::shared_ptr<HostStore>> stores_;
  HostHistory history_;
  HostProgram load_, store_;                        // with several layers
  std::vector<std::vector<std::uint32_t>> lengths_; // of each layer
};

} // namespace sparq
