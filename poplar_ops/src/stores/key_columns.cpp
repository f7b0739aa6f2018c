// SPDX-License-Identifier: Apache-2.0
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

const KindOf<KeyColumns, KeyColumnsKind> keyColumnsKind;

} // namespace

const StoreKind &keyColumns = keyColumnsKind;

void KeyColumnsKind::layOut(const Request &request, CacheLayout &layout) const {
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

RemoteRows KeyColumns::hostRows(Graph &graph, const Cache &cache) const {
  return {graph, buffer_, std::size_t(cache.layout().nLayers) * layerRows(cache),
          cache.name + "/key_columns"};
}

Sequence KeyColumns::flush(const Append &step, const Tensor &chunks, const Tensor &full) const {
  const Placement &p = step.cache.plan.placement;
  const CacheLayout &layout = step.cache.layout();
  const unsigned d = layout.headDim;
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
                "chunk"_f = layout.chunk,
                "rowBase"_f = static_cast<unsigned>(layout.columnRow(task, 0, 0)),
                "scratchRow"_f = static_cast<unsigned>(layout.scratchColumn(slot)));
    }
    step.cache.lockstep->write(
        buffer_, chunks.slice(first, first + n, 0).reshape({std::size_t(n) * d, chunks.dim(2)}),
        rows.slice(0, n, 0).flatten(), program, {step.dc, "write_key_columns"});
  }
  return program;
}

void KeyColumns::appended(const Append &step, const Tensor &full) const {
  addIfAny(step.graph, step.cache, full, flush(step, tail(), full), step.program,
           {step.dc, "flush"});
}

std::unique_ptr<HostStore> KeyColumns::host(Graph &graph, const Cache &cache) const {
  return std::make_unique<HostKeyColumns>(hostRows(graph, cache), HostTail(graph, cache, *this),
                                          cache.layout(), layerRows(cache));
}

// ---- prefill

Tensor KeyColumns::fillPieces(FillStep &step, const Type &type, std::size_t size,
                              const char *name) {
  const Placement &p = step.placement();
  const CacheLayout &layout = step.layout();
  return onceIn(step.variables, name, [&] {
    return addOnParts(step.graph, p, type, p.slots, layout.nTailParts(), {layout.headDim * size},
                      {step.dc, name}, [&](unsigned i) { return layout.tailFirst + i; });
  });
}

Tensor KeyColumns::byComponent(const FillStep &step, const Tensor &pieces) {
  const CacheLayout &layout = step.layout();
  const std::size_t d = layout.headDim, n = layout.nTailParts(), size = pieces.dim(1) / d;
  return pieces.reshape({n, d, size})
      .dimShuffle({1, 0, 2})
      .reshape({d, n * size})
      .slice(0, size * layout.chunk / layout.tailLength, 1);
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
  const Tensor columns = fillColumns(step);
  addRecords(step);
  step.keep = step.execute("fill_tail");
  std::vector<Tensor> chunks, rows;
  for (unsigned i = 0; i != step.nTasks; ++i) {
    const unsigned slot = step.slot(i);
    const Tensor mine = byComponent(step, columns[slot]);
    chunks.push_back(chunk(step, slot, mine));
    rows.push_back(numbers[slot]);
    step.addOffsets(slot, rows.back(),
                    layout.columnRow(step.firstTask + i, 0, step.begin / layout.chunk),
                    layout.nChunks(), layerRows(step.cache));
    for (unsigned piece = 0, at = 0; at < n; ++piece, at += layout.tailLength) {
      const unsigned own = std::min(layout.tailLength, n - at);
      addVertex(step.graph, transpose, "sparq::FillColumns", p.tile(slot, layout.tailFirst + piece),
                cycles::fillColumns(d, own), "keys"_f = step.keys[i].slice(at, at + own),
                "columns"_f = columns[slot][piece], "n"_f = own, "rowSize"_f = d,
                "nComponents"_f = d, "tailLength"_f = layout.tailLength);
    }
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice)
      addTail(step, i, TailSlice(layout, slice), p.tile(slot, slice), mine, chunks.back());
  }
  if (n == layout.chunk)
    step.cache.lockstep->write(buffer_, concat(chunks), concat(rows), step.program,
                               {step.dc, "fill_key_columns"});
}

void KeyColumns::addTail(const FillStep &step, unsigned i, const TailSlice &own, unsigned tile,
                         const Tensor &columns, const Tensor &) const {
  const unsigned chunkSize = step.layout().chunk;
  addVertex(step.graph, *step.keep, "sparq::FillTail", tile, cycles::fillTail(own.n(), step.n()),
            "held"_f = step.held, "columns"_f = own.of(columns),
            "tail"_f = own.of(tail()[step.firstTask + i]), "index"_f = step.begin / chunkSize,
            "chunk"_f = chunkSize, "nComponents"_f = own.n());
}

// ---- the host's side

HostKeyColumns::HostKeyColumns(RemoteRows rows, const HostTail &tail, const CacheLayout &layoutIn,
                               unsigned layerRows)
    : HostRemoteStore(std::move(rows)), layout(layoutIn),
      columns(std::size_t(layoutIn.chunk) * layoutIn.headDim), tail_(tail), layerRows_(layerRows) {}

void HostKeyColumns::write(Engine &engine, HostTokens &tokens) {
  const unsigned d = layout.headDim, chunk = layout.chunk;
  // Keys of the unfilled chunk, of which the whole tail is made anew.
  std::vector<std::vector<std::uint16_t>> old(layout.nTasks);
  std::vector<HostRange> ranges;
  for (unsigned task = 0; task != layout.nTasks; ++task) {
    const unsigned held = tokens.heldBy(task);
    old[task].resize(std::size_t(held % chunk) * d);
    ranges.push_back({task, held - held % chunk, held, old[task].data(), nullptr});
  }
  tokens.rows.read(engine, tokens.layer, ranges);
  RemoteRows::Writer writer(remote, engine);
  HostTail::Values tail = tail_.empty();
  for (unsigned task = 0; task != layout.nTasks; ++task) {
    const unsigned held = tokens.heldBy(task), end = held + tokens.countOf(task);
    const auto gather = [&](unsigned first, unsigned n) {
      for (unsigned i = 0; i != n; ++i) {
        const unsigned position = first + i;
        const std::uint16_t *const key =
            position >= held ? tokens.keys + tokens.at(task, position - held)
                             : &old[task][std::size_t(position - ranges[task].begin) * d];
        for (unsigned c = 0; c != d; ++c)
          columns[std::size_t(c) * chunk + i] = key[c];
      }
      gathered(n);
    };
    for (unsigned i = held / chunk; i != end / chunk; ++i) {
      gather(i * chunk, chunk);
      for (unsigned c = 0; c != d; ++c)
        writer.add(std::size_t(tokens.layer) * layerRows_ + layout.columnRow(task, c, i), row(c));
    }
    gather(end - end % chunk, end % chunk);
    for (unsigned c = 0; c != d; ++c)
      keep(std::size_t(task) * d + c, end % chunk, tail);
  }
  writer.finish();
  tail_.write(engine, tail);
}

void HostKeyColumns::keep(std::size_t at, unsigned n, HostTail::Values &tail) const {
  std::copy_n(columns.begin() + at % layout.headDim * layout.chunk, n,
              tail.columns.begin() + at * layout.chunk);
}

} // namespace sparq
