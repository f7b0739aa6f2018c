// SPDX-License-Identifier: Apache-2.0
//
// Key columns of few bits (docs/exactness.md E9): of each block of 64 positions of a component a
// record.
#include "arith/half_bits.hpp"
#include "arith/key_index.hpp"
#include "codelets/cache.cycles.hpp"
#include "index.hpp"
#include <algorithm>

namespace sparq {

namespace {

// The record of one component of a block, from its 64 keys: codelets/quantise.cpp for the host.
void quantiseBlock(const std::uint16_t *keys, unsigned indexBits, std::uint32_t *record) {
  float x[blockSize];
  for (unsigned i = 0; i != blockSize; ++i)
    x[i] = widen(keys[i]);
  const auto range = std::minmax_element(x, x + blockSize);
  const float low = *range.first;
  const std::uint16_t step = narrow(unroundedStep(low, *range.second, indexBits));
  const float inverse = inverseStep(widen(step));
  packCodes(record, indexBits, [&](unsigned i) { return codeOf(x[i], low, inverse, indexBits); });
  record[codeWords(indexBits)] = step | std::uint32_t(narrow(low)) << 16;
}

// Chunks of records.
class HostKeyRecords final : public HostKeyColumns {
public:
  HostKeyRecords(RemoteRows rows, const HostTail &tail, const CacheLayout &layoutIn,
                 unsigned layerRows)
      : HostKeyColumns(std::move(rows), tail, layoutIn, layerRows),
        recordWords_(recordWords(layoutIn.indexBits)),
        rowWords_(layoutIn.columnElements(layoutIn.chunk)), records_(rowWords_ * layoutIn.headDim) {
  }

private:
  void gathered(unsigned n) override {
    for (unsigned c = 0; c != layout.headDim; ++c)
      for (unsigned i = 0; i != n / blockSize; ++i)
        quantiseBlock(&columns[std::size_t(c) * layout.chunk + i * blockSize], layout.indexBits,
                      &records_[c * rowWords_ + i * recordWords_]);
  }
  const void *row(unsigned component) const override { return &records_[component * rowWords_]; }
  // Keeps the records of full blocks and the positions behind them.
  void keep(std::size_t at, unsigned n, HostTail::Values &tail) const override {
    const std::size_t c = at % layout.headDim, nBlocks = n / blockSize;
    std::copy_n(columns.begin() + c * layout.chunk + nBlocks * blockSize, n % blockSize,
                tail.columns.begin() + at * layout.tailWidth());
    std::copy_n(records_.begin() + c * rowWords_, nBlocks * recordWords_,
                tail.records.begin() + at * rowWords_);
  }

  const std::size_t recordWords_, rowWords_;
  std::vector<std::uint32_t> records_; // of a chunk: {headDim, rowWords}
};

class KeyRecords final : public KeyColumns {
public:
  using KeyColumns::KeyColumns;

  // Full blocks into records, and from there full chunks to streaming memory.
  void appended(const Append &step, const Tensor &full) const override {
    Sequence program({}, {step.dc, "quantise"});
    const Tensor chunkFull = addQuantise(step, full, program);
    addIfAny(step.graph, step.cache, chunkFull, flush(step, records(), chunkFull), program,
             {step.dc, "flush"});
    addIfAny(step.graph, step.cache, full, program, step.program, {step.dc, "block"});
  }
  std::unique_ptr<HostStore> host(Graph &graph, const Cache &cache) const override {
    return std::make_unique<HostKeyRecords>(hostRows(graph, cache), HostTail(graph, cache, *this),
                                            cache.layout(), layerRows(cache));
  }

private:
  static unsigned pieceWords(const FillStep &step) {
    return static_cast<unsigned>(step.layout().columnElements(step.layout().tailLength));
  }
  static Tensor fillRecords(FillStep &step) {
    return fillPieces(step, UNSIGNED_INT, pieceWords(step), "fill_index");
  }

  void addRecords(FillStep &step) const override {
    const CacheLayout &layout = step.layout();
    const Tensor columns = fillColumns(step), pieces = fillRecords(step);
    const ComputeSet cs = step.execute("fill_index");
    for (unsigned i = 0; i != step.nTasks; ++i)
      for (unsigned piece = 0, at = 0; at < step.n(); ++piece, at += layout.tailLength) {
        const unsigned own = std::min(layout.tailLength, step.n() - at), slot = step.slot(i);
        addVertex(step.graph, cs, "sparq::FillIndex",
                  step.placement().tile(slot, layout.tailFirst + piece),
                  cycles::fillIndex(layout.headDim, own / block),
                  "columns"_f = columns[slot][piece], "index"_f = pieces[slot][piece], "n"_f = own,
                  "headDim"_f = layout.headDim, "indexBits"_f = layout.indexBits,
                  "columnWords"_f = pieceWords(step), "tailLength"_f = layout.tailLength);
      }
  }

  Tensor chunk(FillStep &step, unsigned slot, const Tensor &) const override {
    return byComponent(step, fillRecords(step)[slot]);
  }

  void addTail(const FillStep &step, unsigned i, const TailSlice &own, unsigned tile,
               const Tensor &columns, const Tensor &chunk) const override {
    const CacheLayout &layout = step.layout();
    const unsigned task = step.firstTask + i,
                   rowSize = static_cast<unsigned>(layout.columnElements(layout.chunk));
    addVertex(step.graph, *step.keep, "sparq::FillTailIndex", tile,
              cycles::fillTailIndex(own.n(), rowSize), "held"_f = step.held,
              "columns"_f = own.of(columns), "columnIndex"_f = own.of(chunk),
              "tail"_f = own.of(tail()[task]), "tailIndex"_f = own.of(records()[task]),
              "index"_f = step.begin / layout.chunk, "chunk"_f = layout.chunk,
              "nComponents"_f = own.n(), "indexBits"_f = layout.indexBits,
              "columnWords"_f = rowSize);
  }
};

const KindOf<KeyRecords, KeyColumnsKind> keyRecordsKind;

} // namespace

const StoreKind &keyRecords = keyRecordsKind;

} // namespace sparq
