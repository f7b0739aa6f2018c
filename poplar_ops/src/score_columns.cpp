// SPDX-License-Identifier: Apache-2.0
#include "score_columns.hpp"
#include "codelets/approx_scores.cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

ColumnRows::ColumnRows(const Context &contextIn, const Waves &wavesIn, const WaveIndex &waveIn,
                       Tensor componentsIn)
    : context(contextIn), p(contextIn.placement()), layout(contextIn.layout()), waves(wavesIn),
      wave(waveIn), components(std::move(componentsIn)),
      rank(static_cast<unsigned>(components.dim(2))), rowSize(layout.columnElements(layout.chunk)),
      chunksPerWave(waves.stride / layout.chunk), nOwn((chunksPerWave + p.parts - 1) / p.parts),
      landing(createLanding()),
      // Chunk c of a wave: its row numbers on part c / nOwn. {slots, chunks, rank}
      offsets(context.sliced(UNSIGNED_INT, chunksPerWave, nOwn, rank, "columns_offsets")) {}

// Rows land wherever there is room, all tiles alike: a remote copy is fastest when it is spread
// wide. {slots, chunks, rank, row}
Tensor ColumnRows::createLanding() const {
  return context.once("columns_landing", [&] {
    Graph &graph = context.graph;
    const Tensor t = graph.addVariable(columnType(layout), {p.slots, chunksPerWave, rank, rowSize},
                                       {context.dc, "columns_landing"});
    const std::size_t n = std::size_t(p.slots) * chunksPerWave * rank,
                      nTiles = graph.getTarget().getNumTiles();
    const std::size_t rowsPerTile = (n + nTiles - 1) / nTiles;
    Graph::TileToTensorMapping mapping(nTiles);
    for (std::size_t row = 0, tile = 0; row < n; row += rowsPerTile, ++tile)
      mapping[tile].emplace_back(row * rowSize, std::min(row + rowsPerTile, n) * rowSize);
    graph.setTileMapping(t, mapping);
    return t;
  });
}

void ColumnRows::addOffsets(const ComputeSet &cs) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned first = 0, part = 0; first < chunksPerWave; first += nOwn, ++part) {
      const unsigned own = std::min(nOwn, chunksPerWave - first);
      addVertex(context.graph, cs, "sparq::ColumnOffsets", context.tile(slot, part),
                {{"wave", wave.on(slot, part)},
                 {"layer", context.cache.layer[slot][part]},
                 {"components", components[slot][part]},
                 {"offsets", offsets[slot].slice(first, first + own).flatten()}},
                {{"rank", rank},
                 {"nOwn", own},
                 {"firstChunk", first},
                 {"chunksPerWave", chunksPerWave},
                 {"nChunks", layout.nChunks()},
                 {"layerRows", KeyColumns::layerRows(context.cache)},
                 {"rowBase", static_cast<unsigned>(layout.columnRow(context.task(slot), 0, 0))}},
                cycles::columnOffsets(own, rank));
    }
}

void ColumnRows::read(const RemoteBuffer &buffer, Sequence &body, const char *name) const {
  context.cache.lockstep->read(buffer,
                               context.active(landing).reshape(
                                   {std::size_t(context.nSlots()) * chunksPerWave * rank, rowSize}),
                               context.active(offsets).flatten(), body, {context.dc, name});
}

Tensor ColumnRows::createColumns() const {
  return context.perPart(columnType(layout), {rank, layout.columnElements(waves.length)},
                         "columns");
}

void ColumnRows::spread(Moves &moves, const Tensor &columns) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor byComponent =
        landing[slot].dimShuffle({1, 0, 2}).reshape({rank, chunksPerWave * rowSize});
    for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part) {
      const std::size_t first = layout.columnElements(part * waves.length),
                        room = layout.columnElements(waves.room(part));
      moves.add(byComponent.slice(first, first + room, 1), columns[slot][part].slice(0, room, 1));
    }
  }
}

TailColumns::TailColumns(const Index &storeIn, const Context &contextIn)
    : store(storeIn), context(contextIn), layout(contextIn.layout()) {
  const std::size_t d = context.headDim();
  tail_.columns = context.begin(createPieces(HALF, {d, layout.scoredWidth()}, "scored_tail"));
  if (layout.quantised())
    tail_.index = context.begin(createPieces(
        columnType(layout), {d, layout.columnElements(layout.tailLength)}, "scored_tail_index"));
}

Tensor TailColumns::createPieces(const Type &type, const std::vector<std::size_t> &shape,
                                 const char *name) const {
  const Placement &p = context.placement();
  return context.once(name, [&] {
    std::vector<std::size_t> full{p.slots, layout.nTailParts()};
    full.insert(full.end(), shape.begin(), shape.end());
    const Tensor t = context.graph.addVariable(type, full, {context.dc, name});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i)
        context.graph.setTileMapping(t[slot][i], p.tile(slot, layout.tailFirst + i));
    return t;
  });
}

void TailColumns::gather(Moves &byPiece) const {
  const bool quantised = layout.quantised();
  const Tensor &kept = quantised ? store.records() : store.tail();
  const Tensor &pieces = quantised ? tail_.index : tail_.columns;
  const std::size_t size = pieces.dim(3), row = kept.dim(2);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (std::size_t i = 0, begin = 0; i != layout.nTailParts(); ++i, begin += size) {
      const std::size_t end = std::min(begin + size, row);
      byPiece.add(kept[context.task(slot)].slice(begin, end, 1),
                  pieces[slot][i].slice(0, end - begin, 1));
    }
}

void TailColumns::gatherOpenBlock(Moves &moves) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != layout.nTailParts(); ++i)
      moves.add(store.tail()[context.task(slot)], tail_.columns[slot][i]);
}

} // namespace sparq
