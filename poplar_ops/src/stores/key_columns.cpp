// SPDX-License-Identifier: Apache-2.0
//
// Key columns in streaming memory: fp16, or with few bits of each block of 64 positions of a
// component a record (docs/exactness.md E9).
#include "arith/half_bits.hpp"
#include "arith/key_index.hpp"
#include "codelets/cache.cycles.hpp"
#include "index.hpp"
#include <algorithm>

namespace sparq {

namespace {

// Positions of a row of key columns: one packet of fp16. A packet costs as much as 36 bytes more,
// so that the shorter rows of an index are worth twice the positions with 4 bits, and four times
// with 2; more would come on chip for nothing where a length ends within them.
unsigned maxChunk(unsigned indexBits) {
  return indexBits == 2 ? 2048 : indexBits == 4 ? 1024 : 512;
}

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

// The host's side: the chunks that tokens complete go to streaming memory, the rest of them to the
// tail.
class HostKeyColumns final : public HostStore {
public:
  HostKeyColumns(RemoteRows rows, const HostTail &tail, const CacheLayout &layout,
                 unsigned layerRows)
      : rows_(std::move(rows)), layout_(layout), layerRows_(layerRows),
        recordWords_(layout.quantised() ? recordWords(layout.indexBits) : 0),
        rowWords_(layout.quantised() ? layout.columnElements(layout.chunk) : 0), tail_(tail),
        columns_(std::size_t(layout.chunk) * layout.headDim), records_(rowWords_ * layout.headDim) {
  }
  void write(Engine &engine, HostTokens &tokens) override {
    const unsigned d = layout_.headDim, chunk = layout_.chunk;
    // Keys of the unfilled chunk, of which the whole tail is made anew.
    std::vector<std::vector<std::uint16_t>> old(layout_.nTasks);
    std::vector<HostRange> ranges;
    for (unsigned task = 0; task != layout_.nTasks; ++task) {
      const unsigned held = tokens.heldBy(task);
      old[task].resize(std::size_t(held % chunk) * d);
      ranges.push_back({task, held - held % chunk, held, old[task].data(), nullptr});
    }
    tokens.rows.read(engine, tokens.layer, ranges);
    RemoteRows::Writer writer(rows_, engine);
    HostTail::Values tail = tail_.empty();
    for (unsigned task = 0; task != layout_.nTasks; ++task) {
      const unsigned held = tokens.heldBy(task), end = held + tokens.countOf(task);
      const auto gather = [&](unsigned first, unsigned n) {
        for (unsigned i = 0; i != n; ++i) {
          const unsigned position = first + i;
          const std::uint16_t *const key =
              position >= held ? tokens.keys + tokens.at(task, position - held)
                               : &old[task][std::size_t(position - ranges[task].begin) * d];
          for (unsigned c = 0; c != d; ++c)
            columns_[std::size_t(c) * chunk + i] = key[c];
        }
        if (layout_.quantised())
          quantise(n);
      };
      for (unsigned i = held / chunk; i != end / chunk; ++i) {
        gather(i * chunk, chunk);
        for (unsigned c = 0; c != d; ++c)
          writer.add(std::size_t(tokens.layer) * layerRows_ + layout_.columnRow(task, c, i),
                     row(c));
      }
      gather(end - end % chunk, end % chunk);
      for (unsigned c = 0; c != d; ++c)
        keep(std::size_t(task) * d + c, end % chunk, tail);
    }
    writer.finish();
    tail_.write(engine, tail);
  }
  void reset(Engine &engine) override { tail_.write(engine, tail_.empty()); }

private:
  // The records of the first n positions of a chunk.
  void quantise(unsigned n) {
    for (unsigned c = 0; c != layout_.headDim; ++c)
      for (unsigned i = 0; i != n / blockSize; ++i)
        quantiseBlock(&columns_[std::size_t(c) * layout_.chunk + i * blockSize], layout_.indexBits,
                      &records_[c * rowWords_ + i * recordWords_]);
  }
  const void *row(unsigned component) const {
    if (layout_.quantised())
      return &records_[component * rowWords_];
    return &columns_[std::size_t(component) * layout_.chunk];
  }
  // Keeps n positions of component `at` % headDim of a task: the records of full blocks and the
  // positions behind them.
  void keep(std::size_t at, unsigned n, HostTail::Values &tail) const {
    const std::size_t c = at % layout_.headDim, nBlocks = layout_.quantised() ? n / blockSize : 0,
                      first = nBlocks * blockSize;
    std::copy_n(columns_.begin() + c * layout_.chunk + first, n - first,
                tail.columns.begin() + at * layout_.tailWidth());
    std::copy_n(records_.begin() + c * rowWords_, nBlocks * recordWords_,
                tail.records.begin() + at * rowWords_);
  }

  RemoteRows rows_;
  const CacheLayout layout_;
  const unsigned layerRows_;
  const std::size_t recordWords_, rowWords_;
  HostTail tail_;
  // Of a chunk: {headDim, chunk}, {headDim, rowWords}.
  std::vector<std::uint16_t> columns_;
  std::vector<std::uint32_t> records_;
};

// ---- prefill

// Working tensors {slots, nTailParts, headDim * size}, on the parts that score the tail.
Tensor fillPieces(FillStep &step, const Type &type, std::size_t size, const char *name) {
  const Placement &p = step.placement();
  const CacheLayout &layout = step.layout();
  return onceIn(step.variables, name, [&] {
    return addOnParts(step.graph, p, type, p.slots, layout.nTailParts(), {layout.headDim * size},
                      {step.dc, name}, [&](unsigned i) { return layout.tailFirst + i; });
  });
}

// One slot's as {headDim, chunk}.
Tensor byComponent(const FillStep &step, const Tensor &pieces) {
  const CacheLayout &layout = step.layout();
  const std::size_t d = layout.headDim, n = layout.nTailParts(), size = pieces.dim(1) / d;
  return pieces.reshape({n, d, size})
      .dimShuffle({1, 0, 2})
      .reshape({d, n * size})
      .slice(0, size * layout.chunk / layout.tailLength, 1);
}

} // namespace

void KeyColumns::layOut(const Request &request, CacheLayout &layout) {
  const unsigned capacity = request.shape.capacity;
  layout.chunk = maxChunk(layout.indexBits);
  // The tail of every task stays in SRAM: smaller chunks where that would be much of it, or where
  // the capacity is smaller.
  const auto tailBytes = [&] {
    return std::uint64_t(layout.nTasks) * layout.headDim * layout.columnBytes(layout.chunk) *
           layout.nCopies() / request.nTiles;
  };
  while (layout.chunk > block &&
         (layout.chunk / 2 >= capacity || tailBytes() > request.tileBytes / 5))
    layout.chunk /= 2;
  layout.capacity = roundUp(capacity, layout.chunk);
}

KeyColumns::KeyColumns(Graph &graph, const Cache &cache, bool hostWrites)
    : Index(graph, cache),
      buffer_(addBuffer(graph, cache, "key_columns", columnType(cache.layout()),
                        cache.layout().columnElements(cache.layout().chunk),
                        std::size_t(cache.layout().nLayers) * layerRows(cache), hostWrites)),
      nChunks_(cache.layout().nChunks()) {}

std::uint64_t KeyColumns::streamingBytes(const Target &target) const {
  return bytesOf(buffer_, target);
}

Sequence KeyColumns::flush(const Append &step, const Tensor &full) const {
  const Placement &p = step.cache.plan.placement;
  const CacheLayout &layout = step.cache.layout();
  const unsigned d = layout.headDim;
  const Tensor &chunks = layout.quantised() ? records() : tail();
  const Tensor rows =
      addSliced(step.graph, p, UNSIGNED_INT, p.slots, 1, 1, d, {step.dc, "flush_rows"})
          .squeeze({1});
  Sequence program({}, {step.dc, "flush"});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const ComputeSet cs = step.within(program).execute("flush_offsets");
    const unsigned n = p.nActive(round), first = p.firstTask(round);
    for (unsigned slot = 0; slot != n; ++slot) {
      const unsigned task = first + slot;
      addVertex(step.graph, cs, "sparq::FlushOffsets", p.home(slot), cycles::flushOffsets(d),
                "filled"_f = step.cache.filled[task], "full"_f = full[task],
                "layer"_f = step.cache.layer[slot][0], "rows"_f = rows[slot], "headDim"_f = d,
                "layerRows"_f = layerRows(step.cache), "nChunks"_f = layout.nChunks(),
                "chunk"_f = layout.chunk, "rowBase"_f = layout.columnRow(task, 0, 0),
                "scratchRow"_f = layout.scratchColumn(slot));
    }
    step.cache.lockstep->write(
        buffer_, chunks.slice(first, first + n, 0).reshape({std::size_t(n) * d, chunks.dim(2)}),
        rows.slice(0, n, 0).flatten(), program, {step.dc, "write_key_columns"});
  }
  return program;
}

// With records full blocks become these, and from there full chunks go to streaming memory.
void KeyColumns::appended(const Append &step, const Tensor &full) const {
  if (!step.layout().quantised())
    return addIfAny(step, full, flush(step, full), "flush");
  Sequence program({}, {step.dc, "quantise"});
  const Tensor chunkFull = addQuantise(step, full, program);
  addIfAny(step.within(program), chunkFull, flush(step, chunkFull), "flush");
  addIfAny(step, full, program, "block");
}

std::shared_ptr<HostStore> KeyColumns::host(const HostSite &site) const {
  const CacheLayout &layout = site.cache.layout();
  const std::size_t nRows = std::size_t(layout.nLayers) * layerRows(site.cache);
  return std::make_shared<HostKeyColumns>(site.rows(buffer_, nRows, "/key_columns"),
                                          HostTail(site, *this), layout, layerRows(site.cache));
}

// Transposed piece by piece, kept as the tail where the element ends here, and written where the
// chunk is full. A chunk beyond the length is written too; it is never read.
void KeyColumns::fill(FillStep &step) const {
  const CacheLayout &layout = step.layout();
  const Placement &p = step.placement();
  const unsigned n = step.n(), d = layout.headDim;
  const Tensor numbers = onceIn(step.variables, "fill_column_rows", [&] {
    return addSliced(step.graph, p, UNSIGNED_INT, p.slots, 1, 1, d, {step.dc, "fill_column_rows"})
        .squeeze({1});
  });
  const ComputeSet transpose = step.execute("fill_columns");
  const Tensor columns = fillPieces(step, HALF, layout.tailLength, "fill_columns");
  Tensor records;
  std::optional<ComputeSet> index;
  const auto pieceWords = static_cast<unsigned>(layout.columnElements(layout.tailLength));
  if (layout.quantised()) {
    records = fillPieces(step, UNSIGNED_INT, pieceWords, "fill_index");
    index = step.execute("fill_index");
  }
  step.keep = step.execute("fill_tail");
  std::vector<Tensor> chunks, rows;
  for (unsigned i = 0; i != step.nTasks; ++i) {
    const unsigned slot = step.slot(i);
    rows.push_back(numbers[slot]);
    step.addOffsets(slot, rows.back(),
                    layout.columnRow(step.firstTask + i, 0, step.begin / layout.chunk),
                    layout.nChunks(), layerRows(step.cache));
    for (unsigned piece = 0, at = 0; at < n; ++piece, at += layout.tailLength) {
      const unsigned own = std::min(layout.tailLength, n - at),
                     tile = p.tile(slot, layout.tailFirst + piece);
      addVertex(step.graph, transpose, "sparq::FillColumns", tile, cycles::fillColumns(d, own),
                "keys"_f = step.keys[i].slice(at, at + own), "columns"_f = columns[slot][piece],
                "n"_f = own, "rowSize"_f = d, "nComponents"_f = d,
                "tailLength"_f = layout.tailLength);
      if (index)
        addVertex(step.graph, *index, "sparq::FillIndex", tile, cycles::fillIndex(d, own / block),
                  "columns"_f = columns[slot][piece], "index"_f = records[slot][piece], "n"_f = own,
                  "headDim"_f = d, "indexBits"_f = layout.indexBits, "columnWords"_f = pieceWords,
                  "tailLength"_f = layout.tailLength);
    }
    const Tensor mine = byComponent(step, columns[slot]);
    chunks.push_back(index ? byComponent(step, records[slot]) : mine);
    fillTail(step, i, mine, chunks.back());
  }
  if (n == layout.chunk)
    step.cache.lockstep->write(buffer_, concat(chunks), concat(rows), step.program,
                               {step.dc, "fill_key_columns"});
}

void KeyColumns::fillTail(const FillStep &step, unsigned i, const Tensor &columns,
                          const Tensor &chunk) const {
  const CacheLayout &layout = step.layout();
  const unsigned task = step.firstTask + i,
                 rowSize = static_cast<unsigned>(layout.columnElements(layout.chunk));
  for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
    const TailSlice own(layout, slice);
    const unsigned tile = step.placement().tile(step.slot(i), slice);
    const Fields both{"held"_f = step.held,
                      "columns"_f = own.of(columns),
                      "tail"_f = own.of(tail()[task]),
                      "index"_f = step.begin / layout.chunk,
                      "chunk"_f = layout.chunk,
                      "nComponents"_f = own.n()};
    if (layout.quantised())
      addVertex(step.graph, *step.keep, "sparq::FillTailIndex", tile,
                cycles::fillTailIndex(own.n(), rowSize), both, "columnIndex"_f = own.of(chunk),
                "tailIndex"_f = own.of(records()[task]), "indexBits"_f = layout.indexBits,
                "columnWords"_f = rowSize);
    else
      addVertex(step.graph, *step.keep, "sparq::FillTail", tile,
                cycles::fillTail(own.n(), step.n()), both);
  }
}

} // namespace sparq
