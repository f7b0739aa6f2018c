// SPDX-License-Identifier: Apache-2.0
#include "codelets/approx_scores.cycles.hpp"
#include "key_index.hpp"
#include "remote_copy.hpp"
#include "stores/index.hpp"
#include <poplar/Program.hpp>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// The key columns of one round: from streaming memory wave by wave, and from the tail.
class ColumnScores {
public:
  ColumnScores(const KeyColumns &storeIn, const Context &contextIn, const SparqSettings &settings,
               const Waves &wavesIn, const QueryComponents &qIn, const WaveIndex &waveIn,
               const Scores &scoresIn)
      : store(storeIn), context(contextIn), graph(contextIn.graph), p(contextIn.placement()),
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
                   {"layer", context.cache.layer[slot][part]},
                   {"components", q.components[slot][part]},
                   {"offsets", offsets[slot].slice(first, first + own).flatten()}},
                  {{"rank", r},
                   {"nOwn", own},
                   {"firstChunk", first},
                   {"chunksPerWave", chunksPerWave},
                   {"nChunks", layout.nChunks()},
                   {"layerRows", KeyColumns::layerRows(context.cache)},
                   {"rowBase", static_cast<unsigned>(layout.columnRow(context.task(slot), 0, 0))}},
                  cycles::columnOffsets(own, r));
      }
  }

  // Where each part computes: its own positions of each selected component. {slots, parts, rank,
  // positions}
  Tensor createColumns() const {
    return context.perPart(columnType(layout), {r, layout.columnElements(waves.length)}, "columns");
  }

  // A tensor {slots, nTailParts, shape...} with each piece on the part that scores it.
  Tensor createPieces(const Type &type, const std::vector<std::size_t> &shape,
                      const char *name) const {
    return context.once(name, [&] {
      std::vector<std::size_t> full{p.slots, layout.nTailParts()};
      full.insert(full.end(), shape.begin(), shape.end());
      const Tensor t = graph.addVariable(type, full, {context.dc, name});
      for (unsigned slot = 0; slot != p.slots; ++slot)
        for (unsigned i = 0; i != layout.nTailParts(); ++i)
          graph.setTileMapping(t[slot][i], p.tile(slot, layout.tailFirst + i));
      return t;
    });
  }
  ScoredTail createTail() const {
    const std::size_t d = context.headDim();
    ScoredTail tail{context.begin(createPieces(HALF, {d, layout.scoredWidth()}, "scored_tail")),
                    {}};
    if (layout.quantised())
      tail.index = context.begin(createPieces(
          columnType(layout), {d, layout.columnElements(layout.tailLength)}, "scored_tail_index"));
    return tail;
  }

  // Pairs of tensors of one type, for one copy.
  struct Moves {
    std::vector<Tensor> from, to;
    void add(const Tensor &source, const Tensor &target) {
      from.push_back(source.flatten());
      to.push_back(target.flatten());
    }
    void copy(const Context &context, const DebugContext &dc) const {
      context.copy(concat(from), concat(to), dc);
    }
  };

  // The tail, from where it is kept to its pieces; `byPiece` is what is cut up: fp16 columns of the
  // chunk, or records.
  void gatherTail(Moves &byPiece, const ScoredTail &tail) const {
    const bool quantised = layout.quantised();
    const Tensor &kept = quantised ? store.records() : store.tail();
    const Tensor &pieces = quantised ? tail.index : tail.columns;
    const std::size_t size = pieces.dim(3), row = kept.dim(2);
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (std::size_t i = 0, begin = 0; i != layout.nTailParts(); ++i, begin += size) {
        const std::size_t end = std::min(begin + size, row);
        byPiece.add(kept[context.task(slot)].slice(begin, end, 1),
                    pieces[slot][i].slice(0, end - begin, 1));
      }
  }
  // The block that is being filled, to every piece.
  void gatherOpenBlock(Moves &moves, const ScoredTail &tail) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i)
        moves.add(store.tail()[context.task(slot)], tail.columns[slot][i]);
  }

  // {slots, chunks, rank, row} -> each part's {rank, positions}
  void spread(Moves &moves, const Tensor &landing, const Tensor &columns) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const Tensor byComponent =
          landing[slot].dimShuffle({1, 0, 2}).reshape({r, chunksPerWave * rowSize});
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part) {
        const std::size_t first = layout.columnElements(part * waves.length),
                          room = layout.columnElements(waves.room(part));
        moves.add(byComponent.slice(first, first + room, 1), columns[slot][part].slice(0, room, 1));
      }
    }
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

  void addTailScores(const ComputeSet &cs, const ScoredTail &tail) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i) {
        const unsigned part = layout.tailFirst + i;
        addVertex(graph, cs, "sparq::TailScores", context.tile(slot, part),
                  {{"tail", tail.columns[slot][i].flatten()},
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
  const KeyColumns &store;
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

void KeyColumns::score(const Context &context, const SparqSettings &settings, const Waves &waves,
                       const QueryComponents &q, const Scores &scores) const {
  const WaveIndex wave = context.waveIndex(waves.nWaves);
  const ColumnScores steps(*this, context, settings, waves, q, wave, scores);
  const Tensor landing = steps.createLanding(), offsets = steps.createOffsets(),
               columns = context.begin(steps.createColumns()); // a part may have room for more
  const ScoredTail tail = steps.createTail();
  Sequence body({}, {context.dc, "wave"});
  const Context inner = context.within(body);
  steps.addOffsets(inner.execute("column_offsets"), offsets);
  readRemote(*context.cache.lockstep, buffer_, steps.landingRows(landing),
             context.active(offsets).flatten(), body, {context.dc, "read_key_columns"});
  // Behind the waves, but for the steps of the tail that run beside the only one.
  Sequence behind({}, {context.dc, "tail"});
  const Context last = context.within(steps.tailBeside() ? body : behind);
  const bool quantised = context.layout().quantised();
  ColumnScores::Moves spread, gather, openBlock;
  steps.spread(spread, landing, columns);
  steps.gatherTail(steps.tailBeside() ? spread : gather, tail);
  spread.copy(inner, {context.dc, "spread_columns"});
  if (!steps.tailBeside())
    gather.copy(context.within(behind), {context.dc, "gather_tail"});
  if (quantised) {
    steps.gatherOpenBlock(openBlock, tail);
    openBlock.copy(last, {context.dc, "gather_open_block"});
  }
  const auto forTail = [&](const ComputeSet &ofWave, const char *name) {
    return steps.tailBeside() ? ofWave : last.execute(name);
  };
  if (quantised) {
    const IndexScores index(context, settings, waves, q, scores);
    const ComputeSet coefficients = inner.execute("block_coefficients");
    index.addCoefficients(coefficients, columns);
    index.addTailCoefficients(forTail(coefficients, "tail_coefficients"), tail);
    const ComputeSet score = inner.execute("approx_scores");
    index.addScores(score, wave, columns);
    index.addTailScores(forTail(score, "tail_scores"), tail);
  } else {
    const ComputeSet score = inner.execute("approx_scores");
    steps.addScores(score, columns);
    steps.addTailScores(forTail(score, "tail_scores"), tail);
  }
  addWaveLoop(context, waves, wave, body);
  context.program.add(behind);
}

} // namespace sparq
