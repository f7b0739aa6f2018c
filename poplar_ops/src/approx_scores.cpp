// SPDX-License-Identifier: Apache-2.0
#include "cycles.hpp"
#include "steps.hpp"
#include <poplar/Program.hpp>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

void approxScores(const Context &context, const SparqSettings &settings, const Waves &waves,
                  const QueryComponents &q, const WaveIndex &wave, const Scores &scores) {
  const Placement &p = context.placement();
  const CacheLayout &layout = context.layout();
  const unsigned g = context.groupSize(), r = settings.rank, n = waves.partPositions();
  const unsigned chunksPerWave = waves.stride / layout.chunk,
                 nOwn = (chunksPerWave + p.parts - 1) / p.parts;
  Graph &graph = context.graph;

  // Rows land wherever there is room, all tiles alike: a remote copy is fastest when it is spread
  // wide. {slots, chunks, rank, chunk}
  const Tensor landing = context.once("landing", [&] {
    const Tensor t =
        graph.addVariable(HALF, {p.slots, chunksPerWave, r, layout.chunk}, {context.dc, "landing"});
    const std::size_t nRows = std::size_t(p.slots) * chunksPerWave * r,
                      nTiles = graph.getTarget().getNumTiles();
    const std::size_t rowsPerTile = (nRows + nTiles - 1) / nTiles;
    Graph::TileToTensorMapping mapping(nTiles);
    for (std::size_t row = 0, tile = 0; row < nRows; row += rowsPerTile, ++tile)
      mapping[tile].emplace_back(row * layout.chunk,
                                 std::min(row + rowsPerTile, nRows) * layout.chunk);
    graph.setTileMapping(t, mapping);
    return t;
  });
  // Chunk c of a wave: its row numbers on part c / nOwn. {slots, chunks, rank}
  const Tensor offsets = context.sliced(UNSIGNED_INT, chunksPerWave, nOwn, r, "column_offsets");
  // Where each part computes: its own positions of each selected component. {slots, parts, rank,
  // length}
  const Tensor columns = context.perPart(HALF, {r, waves.length}, "columns");

  Sequence body({}, {context.dc, "wave"});
  const Context inner = context.within(body);
  const ComputeSet addresses = inner.execute("column_offsets");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned first = 0, part = 0; first < chunksPerWave; first += nOwn, ++part) {
      const unsigned own = std::min(nOwn, chunksPerWave - first);
      addVertex(graph, addresses, "sparq::ColumnOffsets", context.tile(slot, part),
                {{"wave", wave.on(slot, part)},
                 {"components", q.components[slot][part]},
                 {"offsets", offsets[slot].slice(first, first + own).flatten()}},
                {{"rank", r},
                 {"nOwn", own},
                 {"firstChunk", first},
                 {"chunksPerWave", chunksPerWave},
                 {"nChunks", layout.nChunks()},
                 {"rowBase", static_cast<unsigned>(layout.columnRow(context.task(slot), 0, 0))}},
                cycles::multi(own * (cycles::share(r) * cycles::scalarStep + 6)));
    }
  readRemote(context.cache.keyColumns,
             context.active(landing).reshape(
                 {std::size_t(context.nSlots()) * chunksPerWave * r, layout.chunk}),
             context.active(offsets).flatten(), body, {context.dc, "read_key_columns"});
  // {slots, chunks, rank, chunk} -> each part's {rank, positions}
  std::vector<Tensor> from, to;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor byComponent = landing[slot].dimShuffle({1, 0, 2}).reshape({r, waves.stride});
    for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part) {
      const unsigned first = part * waves.length, room = waves.room(part);
      from.push_back(byComponent.slice(first, first + room, 1).flatten());
      to.push_back(columns[slot][part].slice(0, room, 1).flatten());
    }
  }
  body.add(Copy(concat(from), concat(to), false, {context.dc, "spread_columns"}));
  const ComputeSet score = inner.execute("approx_scores");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part)
      addVertex(graph, score, "sparq::ApproxScores", context.tile(slot, part),
                {{"wave", wave.on(slot, part)},
                 {"columns", columns[slot][part].flatten()},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"inverseTemperature", q.inverseTemperature[slot][part]},
                 {"scores", scores.weights[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"length", waves.length},
                 {"nPositions", waves.room(part)},
                 {"partPositions", n}},
                cycles::shared(waves.room(part) / 4, g * (r * 2 * cycles::accumulatePair + 4)));
  // The tail's scores: beside the only wave's where there is one wave and other parts have the
  // tail.
  const bool beside = waves.nWaves == 1 && layout.tailFirst >= waves.nWaveParts();
  const ComputeSet tail = beside ? score : graph.addComputeSet({context.dc, "tail_scores"});
  const unsigned tailBegin = waves.nWaves * waves.length;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != layout.nTailParts(); ++i) {
      const unsigned part = layout.tailFirst + i;
      addVertex(graph, tail, "sparq::TailScores", context.tile(slot, part),
                {{"tail", context.cache.tail[context.task(slot)][i].flatten()},
                 {"components", q.components[slot][part]},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"inverseTemperature", q.inverseTemperature[slot][part]},
                 {"scores", scores.weights[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"tailLength", waves.tailLength},
                 {"tailBegin", tailBegin},
                 {"partPositions", n}},
                cycles::shared(waves.tailLength / 4, g * (r * 2 * cycles::accumulatePair + 4)));
    }
  addWaveLoop(context, waves, wave, body);
  if (!beside)
    context.program.add(Execute(tail, {context.dc, "tail_scores"}));
}

} // namespace sparq
