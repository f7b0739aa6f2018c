// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores from key columns in streaming memory (docs/exactness.md E6.2, E9): rows come
// to the parts that compute wave by wave, and the tail.
#include "arith/key_index.hpp"
#include "codelets/scores.cycles.hpp"
#include "sparq/step_names.hpp"
#include "stores/index.hpp"

namespace sparq {

namespace {

// The tail by position: {slots, nTailParts, headDim, ...}, each piece on the part that scores it.
struct ScoredTail {
  Tensor columns; // HALF: the piece; with an index of few bits the block that is being filled
  Tensor index;   // UNSIGNED_INT: with an index of few bits, the piece's records
};

// From an index of few bits: coefficients, then scores, of the positions of a wave and of the tail.
class IndexScores {
public:
  IndexScores(const Context &contextIn, const SparqSettings &settings, const Waves &wavesIn,
              const QueryComponents &qIn, const Scores &scoresIn)
      : context(contextIn), layout(contextIn.layout()), waves(wavesIn), q(qIn), scores(scoresIn),
        g(contextIn.groupSize()), r(settings.rank), bits(layout.indexBits),
        limit(static_cast<float>(coefficientLimit(bits, r))) {}

  // columns: {slots, parts, rank, words}
  void addWave(const ComputeSet &coefficient, const ComputeSet &score, const WaveIndex &wave,
               const Tensor &columns) const {
    const Coefficients of = createCoefficients(waves.length, "");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part) {
        const unsigned room = waves.room(part);
        const Fields both{"columns"_f = columns[slot][part], "nBlocks"_f = room / blockSize};
        coefficientVertex(coefficient, "sparq::BlockCoefficients", slot, part, of, waves.length,
                          room, both);
        scoreVertex(score, "sparq::IndexScores", slot, part, of, waves.length, room, both,
                    "wave"_f = wave.on(slot, part), "length"_f = waves.length);
      }
  }
  // A full piece has no open block; one that is not full has a block less to decode, which costs
  // about as much as the open block in its place.
  void addTail(const ComputeSet &coefficient, const ComputeSet &score,
               const ScoredTail &tail) const {
    const unsigned length = waves.tailLength;
    const Coefficients of = createCoefficients(length, "tail_");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i) {
        const unsigned part = layout.tailFirst + i;
        const Fields both{"filled"_f = context.filled(slot, part),
                          "tailIndex"_f = tail.index[slot][i],
                          "components"_f = q.components[slot][part],
                          "piece"_f = i,
                          "tailLength"_f = length,
                          "chunk"_f = layout.chunk};
        coefficientVertex(coefficient, "sparq::TailCoefficients", slot, part, of, length, length,
                          both);
        scoreVertex(score, "sparq::TailIndexScores", slot, part, of, length, length, both,
                    "tail"_f = tail.columns[slot][i],
                    "selectedQuery"_f = q.selectedQuery[slot][part],
                    "tailBegin"_f = waves.nWaves * waves.length);
      }
  }

private:
  struct Coefficients {
    Tensor coefficients;   // {slots, parts, blocks, groupSize, rank} INT
    Tensor units, offsets; // {slots, parts, blocks, groupSize} FLOAT
  };
  IndexScores::Coefficients createCoefficients(unsigned length, const std::string &name) const {
    const std::size_t nBlocks = length / blockSize;
    const auto create = [&](const Type &type, std::vector<std::size_t> shape, const char *what) {
      return context.perPart(type, shape, (name + what).c_str());
    };
    return {create(INT, {nBlocks, g, r}, "coefficients"), create(FLOAT, {nBlocks, g}, "units"),
            create(FLOAT, {nBlocks, g}, "offsets")};
  }
  unsigned columnWords(unsigned positions) const {
    return static_cast<unsigned>(layout.columnElements(positions));
  }
  // Adds one vertex for so many positions, of which there is room for `length`, with what all such
  // have.
  template <class... Some>
  void coefficientVertex(const ComputeSet &cs, const char *type, unsigned slot, unsigned part,
                         const Coefficients &of, unsigned length, unsigned positions,
                         const Some &...fields) const {
    context.addVertex(cs, type, slot, part, cycles::blockCoefficients(positions / blockSize, g, r),
                      fields..., "selectedQuery"_f = q.selectedQuery[slot][part],
                      "coefficients"_f = of.coefficients[slot][part],
                      "units"_f = of.units[slot][part], "offsets"_f = of.offsets[slot][part],
                      "groupSize"_f = g, "rank"_f = r, "indexBits"_f = bits,
                      "columnWords"_f = columnWords(length), "limit"_f = limit);
  }
  template <class... Some>
  void scoreVertex(const ComputeSet &cs, const char *type, unsigned slot, unsigned part,
                   const Coefficients &of, unsigned length, unsigned positions,
                   const Some &...fields) const {
    context.addVertex(cs, type, slot, part, cycles::indexScores(positions / blockSize, g, r, bits),
                      fields..., "coefficients"_f = of.coefficients[slot][part],
                      "units"_f = of.units[slot][part], "offsets"_f = of.offsets[slot][part],
                      "inverseTemperature"_f = q.inverseTemperature[slot],
                      "scores"_f = scores.weights[slot][part], "groupSize"_f = g, "rank"_f = r,
                      "indexBits"_f = bits, "columnWords"_f = columnWords(length),
                      "partPositions"_f = waves.partPositions());
  }

  const Context &context;
  const CacheLayout &layout;
  const Waves &waves;
  const QueryComponents &q;
  const Scores &scores;
  const unsigned g, r, bits;
  const float limit;
};

// Pairs of tensors of one type, for one copy.
struct Moves {
  std::vector<Tensor> from, to;
  void add(const Tensor &source, const Tensor &target) {
    from.push_back(source.flatten());
    to.push_back(target.flatten());
  }
  void copy(const Context &context, const char *name) const {
    context.copy(concat(from), concat(to), name);
  }
};

// The rows of the query's components, each of one chunk of positions, in streaming memory.
class ColumnRows {
public:
  ColumnRows(const Context &contextIn, const Waves &wavesIn, const WaveIndex &waveIn,
             const QueryComponents &q)
      : context(contextIn), p(contextIn.placement()), layout(contextIn.layout()), waves(wavesIn),
        wave(waveIn), firstRows(q.columns), rank(static_cast<unsigned>(firstRows.dim(2))),
        rowSize(layout.columnElements(layout.chunk)), chunksPerWave(waves.stride / layout.chunk),
        nOwn((chunksPerWave + p.parts - 1) / p.parts), landing(createLanding()),
        // Chunk c of a wave: its row numbers on part c / nOwn. {slots, chunks, rank}
        offsets(context.sliced(UNSIGNED_INT, chunksPerWave, nOwn, rank, "columns_offsets")) {}

  void addOffsets(const ComputeSet &cs) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned first = 0, part = 0; first < chunksPerWave; first += nOwn, ++part) {
        const unsigned own = std::min(nOwn, chunksPerWave - first);
        context.addVertex(cs, "sparq::ColumnOffsets", slot, part, cycles::columnOffsets(own, rank),
                          "wave"_f = wave.on(slot, part),
                          "layer"_f = context.cache.layer[slot][part],
                          "columns"_f = firstRows[slot][part],
                          "offsets"_f = offsets[slot].slice(first, first + own), "rank"_f = rank,
                          "nOwn"_f = own, "firstChunk"_f = first, "chunksPerWave"_f = chunksPerWave,
                          "nChunks"_f = layout.nChunks(),
                          "otherRows"_f = KeyColumns::layerRows(context.cache) -
                                          layout.headDim * layout.nChunks(),
                          "rowBase"_f = layout.columnRow(context.task(slot), 0, 0));
      }
  }
  // Adds the remote copy of a wave to `body`.
  void read(const RemoteBuffer &buffer, Sequence &body, const char *name) const {
    context.cache.lockstep->read(
        buffer,
        context.active(landing).reshape(
            {std::size_t(context.nSlots()) * chunksPerWave * rank, rowSize}),
        context.active(offsets).flatten(), body, {context.dc, name});
  }
  // From where they land to the parts that compute: {slots, parts, rank, a part's positions}.
  void spread(Moves &moves, const Tensor &columns) const {
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
  Tensor createColumns() const {
    return context.perPart(columnType(layout), {rank, layout.columnElements(waves.length)},
                           "columns");
  }

private:
  // Rows land wherever there is room, all tiles alike: a remote copy is fastest when it is spread
  // wide. {slots, chunks, rank, row}
  Tensor createLanding() const {
    return context.once("columns_landing", [&] {
      Graph &graph = context.graph;
      const Tensor t =
          graph.addVariable(columnType(layout), {p.slots, chunksPerWave, rank, rowSize},
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

  const Context &context;
  const Placement &p;
  const CacheLayout &layout;
  const Waves &waves;
  const WaveIndex &wave;
  const Tensor firstRows; // {slots, parts, rank} UNSIGNED_INT: of components
  const unsigned rank;
  const std::size_t rowSize;
  const unsigned chunksPerWave;
  const unsigned nOwn; // chunks that a part addresses
  Tensor landing, offsets;
};

ScoredTail createTail(const Context &context) {
  const CacheLayout &layout = context.layout();
  const auto create = [&](const Type &type, std::size_t width, const char *name) {
    return context.begin(context.onParts(type, layout.nTailParts(), {context.headDim(), width},
                                         name, [&](unsigned i) { return layout.tailFirst + i; }));
  };
  return {create(HALF, layout.scoredWidth(), "scored_tail"),
          layout.quantised() ? create(columnType(layout), layout.columnElements(layout.tailLength),
                                      "scored_tail_index")
                             : Tensor()};
}

// From where the tail is kept, fp16 columns of the chunk or records, to the pieces that are scored.
void gather(const Context &context, const Tensor &kept, const Tensor &pieces, Moves &byPiece) {
  const std::size_t size = pieces.dim(3), row = kept.dim(2);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (std::size_t i = 0, begin = 0; i != pieces.dim(1); ++i, begin += size) {
      const std::size_t end = std::min(begin + size, row);
      byPiece.add(kept[context.task(slot)].slice(begin, end, 1),
                  pieces[slot][i].slice(0, end - begin, 1));
    }
}

// Whether the tail is scored beside the only wave: one wave, and other parts have the tail.
bool tailBeside(const CacheLayout &layout, const Waves &waves) {
  return waves.nWaves == 1 && layout.tailFirst >= waves.nWaveParts();
}

} // namespace

void KeyColumns::score(const Context &context, const SparqSettings &settings, const Waves &waves,
                       const QueryComponents &q, const Scores &scores) const {
  const WaveIndex wave = context.waveIndex(waves.nWaves);
  const CacheLayout &layout = context.layout();
  const bool quantised = layout.quantised(), beside = tailBeside(layout, waves);
  const ColumnRows rows(context, waves, wave, q);
  const Tensor columns = context.begin(rows.createColumns()); // a part may have room for more
  const ScoredTail scoredTail = createTail(context);
  Sequence body({}, {context.dc, "wave"});
  const Context inner = context.within(body);
  rows.addOffsets(inner.execute(steps::columnOffsets));
  rows.read(buffer_, body, steps::readKeyColumns);
  // Behind the waves, but for the steps of the tail that run beside the only one.
  Sequence behind({}, {context.dc, "tail"});
  const Context last = context.within(beside ? body : behind);
  Moves spread, later, openBlock;
  rows.spread(spread, columns);
  gather(context, quantised ? records() : tail(), quantised ? scoredTail.index : scoredTail.columns,
         beside ? spread : later);
  spread.copy(inner, steps::spreadColumns);
  if (!beside)
    later.copy(context.within(behind), "gather_tail");
  if (quantised) {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i)
        openBlock.add(tail()[context.task(slot)], scoredTail.columns[slot][i]);
    openBlock.copy(last, "gather_open_block");
  }
  const auto forTail = [&](const ComputeSet &ofWave, const char *name) {
    return beside ? ofWave : last.execute(name);
  };
  if (quantised) {
    const IndexScores index(context, settings, waves, q, scores);
    const ComputeSet coefficients = inner.execute(steps::blockCoefficients),
                     ofTail = forTail(coefficients, steps::tailCoefficients),
                     score = inner.execute(steps::approxScores);
    index.addWave(coefficients, score, wave, columns);
    index.addTail(ofTail, forTail(score, steps::tailScores), scoredTail);
  } else {
    const unsigned g = context.groupSize(), r = settings.rank;
    const ComputeSet score = inner.execute(steps::approxScores),
                     ofTail = forTail(score, steps::tailScores);
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != context.parts(); ++part) {
        const Fields both{"selectedQuery"_f = q.selectedQuery[slot][part],
                          "inverseTemperature"_f = q.inverseTemperature[slot],
                          "scores"_f = scores.weights[slot][part],
                          "groupSize"_f = g,
                          "rank"_f = r,
                          "partPositions"_f = waves.partPositions()};
        if (waves.room(part) != 0)
          context.addVertex(score, "sparq::ApproxScores", slot, part,
                            cycles::approxScores(waves.room(part), g, r), both,
                            "wave"_f = wave.on(slot, part), "columns"_f = columns[slot][part],
                            "length"_f = waves.length, "nPositions"_f = waves.room(part));
        const unsigned piece = part - layout.tailFirst;
        if (part >= layout.tailFirst && piece < layout.nTailParts())
          context.addVertex(
              ofTail, "sparq::TailScores", slot, part, cycles::tailScores(waves.tailLength, g, r),
              both, "tail"_f = scoredTail.columns[slot][piece],
              "components"_f = q.components[slot][part], "tailLength"_f = waves.tailLength,
              "tailBegin"_f = waves.nWaves * waves.length);
      }
  }
  addWaveLoop(context, waves, wave, body);
  context.program.add(behind);
}

} // namespace sparq
