// SPDX-License-Identifier: Apache-2.0
//
// Stores of keys by component, from which approximate scores are made. All of them keep the
// positions since the last full chunk, the tail, in SRAM.
#pragma once

#include "attention_steps.hpp"
#include "codelets/cache.cycles.hpp"
#include "store.hpp"

namespace sparq {

class Index : public Store {
public:
  // The last parts have the tail: the waves fill up the first ones.
  static void arrange(const Request &, Plan &plan) {
    CacheLayout &layout = plan.layout;
    layout.tailLength = partLength(layout.chunk, plan.placement.parts);
    layout.tailFirst = plan.placement.parts - layout.nTailParts();
    layout.tailComponents = roundUp(ceilDiv(layout.indexDim, plan.placement.parts), 4);
  }
  static TileNeed need(const Plan &plan) {
    return {plan.layout.tailBytes() * plan.placement.nRounds * plan.layout.nCopies(), 0};
  }
  Index(Graph &graph, const Cache &cache) {
    const CacheLayout &layout = cache.layout();
    const unsigned d = layout.indexDim, n = layout.tailComponents;
    tail_ = addLayered(graph, cache, HALF, d, n, layout.tailWidth(), "tail");
    if (!layout.quantised())
      return;
    records_ = addLayered(graph, cache, columnType(layout), d, n,
                          layout.columnElements(layout.chunk), "tail_index");
  }

  // {nTasks, indexDim, tailWidth} HALF: columns of the unfilled chunk. With an index of few bits,
  // of its unfilled block, and {nTasks, indexDim, ...} UNSIGNED_INT: records of its full blocks.
  const Tensor &tail() const { return tail_.state; }
  const Tensor &records() const { return records_.state; }

  // From one component's columns to those of the next, in rows or words.
  virtual unsigned columnStep() const = 0;
  // Whether score() makes the inverse temperatures, beside other work.
  virtual bool makesTemperatures() const { return false; }
  // The query to the parts, then approximate scores of all positions (docs/exactness.md E6.2).
  virtual void loadQuery(const Context &context, const Waves &, const Tensor &query,
                         const QueryComponents &q) const {
    context.copy(queryOfParts(context, query), context.active(q.query), "query");
  }
  virtual void score(const Context &context, const SparqSettings &settings, const Waves &waves,
                     const QueryComponents &q, const Scores &scores) const = 0;

  std::vector<Layered> layered() const override {
    return records().valid() ? std::vector<Layered>{tail_, records_} : std::vector<Layered>{tail_};
  }
  void addAppend(const Append &step, const ComputeSet &cs, unsigned task) const override {
    const CacheLayout &layout = step.cache.layout();
    const Placement &p = step.cache.plan.placement;
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      addVertex(step.graph, cs, "sparq::AppendTail", p.tile(task % p.slots, slice),
                cycles::appendTail(own.n()), "filled"_f = step.cache.filled[task],
                "active"_f = step.active[task], "key"_f = own.of(step.keys[task]),
                "tail"_f = own.of(tail()[task]), "nComponents"_f = own.n(),
                "width"_f = layout.tailWidth());
    }
  }
  unsigned unit(const CacheLayout &layout) const override { return layout.tailWidth(); }

protected:
  // Adds what makes records of full blocks; {nTasks} UNSIGNED_INT: whether that fills the chunk.
  Tensor addQuantise(const Append &step, const Tensor &blockFull, Sequence &program) const {
    const Placement &p = step.cache.plan.placement;
    const CacheLayout &layout = step.cache.layout();
    const Tensor &filled = step.cache.filled;
    const Tensor full = step.perTask("chunk_full");
    const ComputeSet cs = step.within(program).execute("quantise_tail");
    for (unsigned task = 0; task != p.nTasks; ++task) {
      const unsigned slot = task % p.slots;
      for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
        const TailSlice own(layout, slice);
        addVertex(step.graph, cs, "sparq::QuantiseTail", p.tile(slot, slice),
                  cycles::quantiseTail(own.n()), "filled"_f = filled[task],
                  "full"_f = blockFull[task], "tail"_f = own.of(tail()[task]),
                  "tailIndex"_f = own.of(records()[task]), "nComponents"_f = own.n(),
                  "indexBits"_f = layout.indexBits,
                  "columnWords"_f = layout.columnElements(layout.chunk), "chunk"_f = layout.chunk);
      }
      addVertex(step.graph, cs, "sparq::ChunkFull", p.home(slot), cycles::chunkFull(),
                "filled"_f = filled[task], "blockFull"_f = blockFull[task], "full"_f = full[task],
                "chunk"_f = layout.chunk);
    }
    return full;
  }

private:
  Layered tail_, records_;
};

// The tail, for a host.
class HostTail {
public:
  HostTail(const HostSite &site, const Index &index)
      : columns_(site.writable(index.tail(), "/tail")) {
    if (index.records().valid())
      records_ = site.writable(index.records(), "/tail_index");
  }

  // Of all tasks, zero at first.
  struct Values {
    std::vector<std::uint16_t> columns;
    std::vector<std::uint32_t> records;
  };
  Values empty() const {
    return {std::vector<std::uint16_t>(columns_.size()),
            std::vector<std::uint32_t>(records_.size())};
  }
  void write(Engine &engine, const Values &tail) const {
    columns_.write(engine, tail.columns.data());
    records_.write(engine, tail.records.data());
  }

private:
  HostTensor columns_, records_;
};

// Chunks in streaming memory: of fp16, or of records.
class KeyColumns final : public Index {
public:
  static void layOut(const Request &request, CacheLayout &layout);
  KeyColumns(Graph &graph, const Cache &cache, bool hostWrites);

  unsigned columnStep() const override { return nChunks_; }
  std::uint64_t streamingBytes(const Target &target) const override;
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override; // approx_scores.cpp
  void appended(const Append &step, const Tensor &full) const override;
  unsigned fillStep(const CacheLayout &layout) const override { return layout.chunk; }
  void fill(FillStep &step) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;

  // Numbers to add to a row, layer by layer.
  static unsigned layerRows(const Cache &cache) {
    return static_cast<unsigned>(cache.layout().layerColumns(cache.plan.placement.slots));
  }

private:
  // What a full chunk leaves in the tail, to streaming memory.
  Sequence flush(const Append &step, const Tensor &full) const;
  // Keeps what is of a slot's chunk {headDim, ...} as the tail of task i, where the element ends in
  // it.
  void fillTail(const FillStep &step, unsigned i, const Tensor &columns,
                const Tensor &records) const;

  RemoteBuffer buffer_;
  unsigned nChunks_;
};

// A key index of few bits in SRAM. The block that is being filled is the tail.
class ResidentRecords final : public Index {
public:
  static void layOut(const Request &request, CacheLayout &layout);
  static unsigned mostParts(const Request &request);
  static TileNeed need(const Plan &plan);
  ResidentRecords(Graph &graph, const Cache &cache, bool);

  // {nTasks, parts, nLayers, indexDim, ...} UNSIGNED_INT: of the full blocks among the positions of
  // each part. The parts of a slot take positions in order, so many.
  const Tensor &index() const { return index_; }
  static unsigned partPositions(const Plan &plan) {
    return partLength(plan.layout.capacity, plan.placement.parts);
  }
  bool makesTemperatures() const override { return true; }
  unsigned columnStep() const override { return static_cast<unsigned>(index_.dim(4)); }
  // resident_index.cpp: with the query the block that is being filled
  void loadQuery(const Context &context, const Waves &waves, const Tensor &query,
                 const QueryComponents &q) const override;
  // Scores of full blocks from the index, of the others from the tail.
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override;

  void appended(const Append &step, const Tensor &full) const override;
  void filled(const Steps &steps, const Tensor &replaced) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;

  // Adds what makes the index anew, of the layer that is being worked on, from its rows and
  // lengths.
  void addRebuild(const Steps &steps) const;

private:
  Tensor index_;
};

// Whether codes are taken out of their words once for all heads of a group
// (codelets/code_products.hpp).
bool scoredByGroup(const Plan &plan);

// Six workers have as many words of codes each: what a part has beyond that it lends to a part
// without positions, which scores it and makes weights of it.
struct Lending {
  unsigned nWords = 0;             // that a part lends, the last ones of its last block: 0, 2 or 4
  unsigned nPieces = 0;            // of other parts, on one that helps, at most
  unsigned first = 0, nHelper = 0; // parts that help
  unsigned nOwners = 0;            // parts that lend

  Lending(const Plan &plan, const Waves &waves);
  unsigned positions() const { return nWords * 8; } // of a piece
  unsigned nLent(unsigned part) const { return part < nOwners ? positions() : 0; }
  bool helps(unsigned part) const { return part >= first && part - first < nHelper; }
  // Pieces on a part that helps: of the parts from firstOwner on.
  unsigned firstOwner(unsigned helper) const { return (helper - first) * nPieces; }
  unsigned pieces(unsigned helper) const {
    const unsigned behind = nOwners - firstOwner(helper);
    return behind < nPieces ? behind : nPieces;
  }
};

// {slots, parts} UNSIGNED_INT: positions that a part which helps has scores of.
inline Tensor heldOf(const Context &context) { return context.perPart(UNSIGNED_INT, {}, "held"); }

} // namespace sparq
