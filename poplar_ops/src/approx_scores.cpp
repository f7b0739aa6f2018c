// SPDX-License-Identifier: Apache-2.0
#include "key_index.hpp"
#include "steps.hpp"
#include "vertex_cycles.hpp"
#include <poplar/Program.hpp>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// The key columns of one round: from streaming memory wave by wave, and from the tail.
class ColumnScores {
public:
  ColumnScores(const Context &contextIn, const SparqSettings &settings, const Waves &wavesIn,
               const QueryComponents &qIn, const WaveIndex &waveIn, const Scores &scoresIn)
      : context(contextIn), graph(contextIn.graph), p(contextIn.placement()),
        layout(contextIn.layout()), waves(wavesIn), q(qIn), wave(waveIn), scores(scoresIn),
        g(contextIn.groupSize()), r(settings.rank) {}

  // Rows land wherever there is room, all tiles alike: a remote copy is fastest when it is spread
  // wide. {slots, chunks, rank, row}
  Tensor createLanding() const {
    return context.once("landing", [&] {
      const Tensor t = graph.addVariable(columnType(layout), {p.slots, chunksPerWave, r, rowSize},
                                         {context.dc, "landing"});
      const std::size_t nRows = std::size_t(p.slots) * chunksPerWave * r,
                        nTiles = graph.getTarget().getNumTiles();
      const std::size_t rowsPerTile = (nRows + nTiles - 1) / nTiles;
      Graph::TileToTensorMapping mapping(nTiles);
      for (std::size_t row = 0, tile = 0; row < nRows; row += rowsPerTile, ++tile)
        mapping[tile].emplace_back(row * rowSize, std::min(row + rowsPerTile, nRows) * rowSize);
      graph.setTileMapping(t, mapping);
      return t;
    });
  }

  // Chunk c of a wave: its row numbers on part c / nOwn. {slots, chunks, rank}
  Tensor createOffsets() const {
    return context.sliced(UNSIGNED_INT, chunksPerWave, nOwn, r, "column_offsets");
  }

  void addOffsets(const ComputeSet &cs, const Tensor &offsets) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned first = 0, part = 0; first < chunksPerWave; first += nOwn, ++part) {
        const unsigned own = std::min(nOwn, chunksPerWave - first);
        addVertex(graph, cs, "sparq::ColumnOffsets", context.tile(slot, part),
                  {{"wave", wave.on(slot, part)},
                   {"components", q.components[slot][part]},
                   {"offsets", offsets[slot].slice(first, first + own).flatten()}},
                  {{"rank", r},
                   {"nOwn", own},
                   {"firstChunk", first},
                   {"chunksPerWave", chunksPerWave},
                   {"nChunks", layout.nChunks()},
                   {"rowBase", static_cast<unsigned>(layout.columnRow(context.task(slot), 0, 0))}},
                  cycles::columnOffsets(own, r));
      }
  }

  // Where each part computes: its own positions of each selected component. {slots, parts, rank,
  // positions}
  Tensor createColumns() const {
    return context.perPart(columnType(layout), {r, layout.columnElements(waves.length)}, "columns");
  }

  // {slots, chunks, rank, row} -> each part's {rank, positions}
  Copy spread(const Tensor &landing, const Tensor &columns) const {
    std::vector<Tensor> from, to;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const Tensor byComponent =
          landing[slot].dimShuffle({1, 0, 2}).reshape({r, chunksPerWave * rowSize});
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part) {
        const std::size_t first = layout.columnElements(part * waves.length),
                          room = layout.columnElements(waves.room(part));
        from.push_back(byComponent.slice(first, first + room, 1).flatten());
        to.push_back(columns[slot][part].slice(0, room, 1).flatten());
      }
    }
    return Copy(concat(from), concat(to), false, {context.dc, "spread_columns"});
  }

  void addScores(const ComputeSet &cs, const Tensor &columns) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part)
        addVertex(graph, cs, "sparq::ApproxScores", context.tile(slot, part),
                  {{"wave", wave.on(slot, part)},
                   {"columns", columns[slot][part].flatten()},
                   {"selectedQuery", q.selectedQuery[slot][part]},
                   {"inverseTemperature", q.inverseTemperature[slot][part]},
                   {"scores", scores.weights[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"rank", r},
                   {"length", waves.length},
                   {"nPositions", waves.room(part)},
                   {"partPositions", waves.partPositions()}},
                  cycles::approxScores(waves.room(part), g, r));
  }

  void addTailScores(const ComputeSet &cs) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i) {
        const unsigned part = layout.tailFirst + i;
        addVertex(graph, cs, "sparq::TailScores", context.tile(slot, part),
                  {{"tail", context.cache.tail[context.task(slot)][i].flatten()},
                   {"components", q.components[slot][part]},
                   {"selectedQuery", q.selectedQuery[slot][part]},
                   {"inverseTemperature", q.inverseTemperature[slot][part]},
                   {"scores", scores.weights[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"rank", r},
                   {"tailLength", waves.tailLength},
                   {"tailBegin", waves.nWaves * waves.length},
                   {"partPositions", waves.partPositions()}},
                  cycles::tailScores(waves.tailLength, g, r));
      }
  }

  // The rows of a wave, {all, row}.
  Tensor landingRows(const Tensor &landing) const {
    return context.active(landing).reshape(
        {std::size_t(context.nSlots()) * chunksPerWave * r, rowSize});
  }
  // Whether the tail is scored beside the only wave: one wave, and other parts have the tail.
  bool tailBeside() const { return waves.nWaves == 1 && layout.tailFirst >= waves.nWaveParts(); }

private:
  const Context &context;
  Graph &graph;
  const Placement &p;
  const CacheLayout &layout;
  const Waves &waves;
  const QueryComponents &q;
  const WaveIndex &wave;
  const Scores &scores;
  const unsigned g, r;
  const std::size_t rowSize = layout.columnElements(layout.chunk);
  const unsigned chunksPerWave = waves.stride / layout.chunk;
  const unsigned nOwn = (chunksPerWave + p.parts - 1) / p.parts; // chunks that a part addresses
};

} // namespace

void approxScores(const Context &context, const SparqSettings &settings, const Waves &waves,
                  const QueryComponents &q, const WaveIndex &wave, const Scores &scores) {
  const ColumnScores steps(context, settings, waves, q, wave, scores);
  const Tensor landing = steps.createLanding(), offsets = steps.createOffsets(),
               columns = steps.createColumns();
  Sequence body({}, {context.dc, "wave"});
  const Context inner = context.within(body);
  steps.addOffsets(inner.execute("column_offsets"), offsets);
  readRemote(context.cache.keyColumns, steps.landingRows(landing),
             context.active(offsets).flatten(), body, {context.dc, "read_key_columns"});
  body.add(steps.spread(landing, columns));

  // Behind the waves, but for the steps of the tail that run beside the only one.
  Sequence behind({}, {context.dc, "tail"});
  const Context last = context.within(steps.tailBeside() ? body : behind);
  const auto forTail = [&](const ComputeSet &ofWave, const char *name) {
    return steps.tailBeside() ? ofWave : last.execute(name);
  };
  if (context.layout().quantised()) {
    const IndexScores index(context, settings, waves, q, scores);
    const ComputeSet coefficients = inner.execute("block_coefficients");
    index.addCoefficients(coefficients, columns);
    index.addTailCoefficients(forTail(coefficients, "tail_coefficients"));
    const ComputeSet score = inner.execute("approx_scores");
    index.addScores(score, wave, columns);
    index.addTailScores(forTail(score, "tail_scores"));
  } else {
    const ComputeSet score = inner.execute("approx_scores");
    steps.addScores(score, columns);
    steps.addTailScores(forTail(score, "tail_scores"));
  }
  addWaveLoop(context, waves, wave, body);
  context.program.add(behind);
}

} // namespace sparq
