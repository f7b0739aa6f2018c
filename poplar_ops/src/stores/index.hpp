// SPDX-License-Identifier: Apache-2.0
//
// Stores of keys by component, from which approximate scores are made. All of them keep the positions
// since the last full chunk, the tail, in SRAM.
#pragma once

#include "host_store.hpp"
#include "steps.hpp"
#include "store.hpp"

namespace sparq {

class Index : public Store {
public:
  static constexpr const char *what = "a key index";
  Index(poplar::Graph &graph, const Cache &cache);

  // {nTasks, headDim, tailWidth} HALF: columns of the unfilled chunk. With an index of few bits, of its
  // unfilled block, and {nTasks, headDim, ...} UNSIGNED_INT: records of its full blocks.
  const poplar::Tensor &tail() const { return tail_.state; }
  const poplar::Tensor &records() const { return tail_.words; }

  // Approximate scores of all positions (docs/exactness.md E6.2).
  virtual void score(const Context &context, const SparqSettings &settings, const Waves &waves,
                     const QueryComponents &q, const Scores &scores) const = 0;

  std::vector<Layered> layered() const override { return {tail_}; }
  void addAppend(const Append &step, const poplar::ComputeSet &cs, unsigned task) const override;
  unsigned unit(const CacheLayout &layout) const override { return layout.tailWidth(); }

protected:
  // Adds what makes records of full blocks; {nTasks} UNSIGNED_INT: whether that fills the chunk.
  poplar::Tensor addQuantise(const Append &step, const poplar::Tensor &blockFull,
                             poplar::program::Sequence &program) const;

private:
  Layered tail_;
};

class IndexKind : public StoreKind {
public:
  void arrange(const Request &request, Plan &plan) const override;
  TileNeed need(const Plan &plan) const override;
};

// The tail, for a host.
class HostTail {
public:
  HostTail(poplar::Graph &graph, const Cache &cache, const Index &index);

  // Of all tasks, zero at first.
  struct Values {
    std::vector<std::uint16_t> columns;
    std::vector<std::uint32_t> records;
  };
  Values empty() const {
    return {std::vector<std::uint16_t>(columns_.size()),
            std::vector<std::uint32_t>(records_.size())};
  }
  void write(poplar::Engine &engine, const Values &tail) const;

private:
  HostTensor columns_, records_;
};

// Chunks of fp16 in streaming memory.
class KeyColumns : public Index {
public:
  static constexpr const char *what = "key columns in streaming memory";
  KeyColumns(poplar::Graph &graph, const Cache &cache, bool hostWrites);
  const poplar::RemoteBuffer &buffer() const { return buffer_; }

  std::uint64_t streamingBytes(const poplar::Target &target) const override;
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override; // approx_scores.cpp
  void appended(const Append &step, const poplar::Tensor &full) const override;
  unsigned fillStep(const CacheLayout &layout) const override { return layout.chunk; }
  std::unique_ptr<StoreFill> fill(poplar::Graph &graph, const Cache &cache, unsigned length,
                                  const poplar::DebugContext &dc) const override;
  std::unique_ptr<HostStore> host(poplar::Graph &graph, const Cache &cache) const override;

  // Numbers to add to a row, layer by layer.
  static unsigned layerRows(const Cache &cache) {
    return static_cast<unsigned>(cache.layout().layerColumns(cache.plan.placement.slots));
  }

protected:
  // What a full chunk leaves in the tail {nTasks, headDim, row}, to streaming memory.
  poplar::program::Sequence flush(const Append &step, const poplar::Tensor &chunks,
                                  const poplar::Tensor &full) const;
  RemoteRows hostRows(poplar::Graph &graph, const Cache &cache) const;

private:
  poplar::RemoteBuffer buffer_;
};

class KeyColumnsKind : public IndexKind {
public:
  void layOut(const Request &request, CacheLayout &layout) const final;
  std::shared_ptr<const Store> make(poplar::Graph &graph, const Cache &cache,
                                    bool hostWrites) const override;
};

// A prefill program's side of key columns: chunk by chunk.
class ColumnFill : public StoreFill {
public:
  ColumnFill(poplar::Graph &graph, const Cache &cache, const KeyColumns &store,
             const poplar::DebugContext &dc);
  void add(FillStep &step) const final;

protected:
  // {slots, nTailParts, size} on the parts that score the tail.
  static poplar::Tensor addPieces(poplar::Graph &graph, const Cache &cache,
                                  const poplar::Type &type, std::size_t size,
                                  const poplar::DebugContext &dc);
  // A slot's pieces {nTailParts, headDim * n} as {headDim, chunk}.
  static poplar::Tensor byComponent(const FillStep &step, const poplar::Tensor &pieces);
  unsigned chunkIndex(const FillStep &step) const { return step.begin / step.cache.layout().chunk; }

  // What streaming memory gets of a slot's chunk {headDim, row}, once it is made from its columns.
  virtual void addRecords(FillStep &) const {}
  virtual poplar::Tensor chunk(const FillStep &step, unsigned slot) const;
  // Keeps the components of a part as the tail, where the element ends in this chunk.
  virtual void addTail(const FillStep &step, unsigned i, const TailSlice &own, unsigned tile) const;

  const KeyColumns &store;
  poplar::Tensor columns; // {slots, nTailParts, headDim * tailLength} HALF

private:
  poplar::Tensor rows_; // {slots, headDim} UNSIGNED_INT
};

// The host's side: the chunks that tokens complete go to streaming memory, the rest of them to the tail.
class HostKeyColumns : public HostRemoteStore {
public:
  HostKeyColumns(RemoteRows rows, const HostTail &tail, const CacheLayout &layout,
                 unsigned layerRows);
  void write(poplar::Engine &engine, HostTokens &tokens) override;
  void reset(poplar::Engine &engine) override { tail_.write(engine, tail_.empty()); }

protected:
  // The first n positions of a chunk are in `columns`.
  virtual void gathered(unsigned) {}
  virtual const void *row(unsigned component) const {
    return &columns[std::size_t(component) * layout.chunk];
  }
  // Keeps n positions of component `at` % headDim of a task.
  virtual void keep(std::size_t at, unsigned n, HostTail::Values &tail) const;

  const CacheLayout layout;
  std::vector<std::uint16_t> columns; // {headDim, chunk}

private:
  HostTail tail_;
  unsigned layerRows_;
};

} // namespace sparq
