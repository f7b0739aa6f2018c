// SPDX-License-Identifier: Apache-2.0
#include "resident_index.hpp"
#include "arith/key_index.hpp"
#include "codelets/approx_scores.cycles.hpp"
#include "codelets/cycles.hpp"
#include "codelets/resident_index.cycles.hpp"
#include "sparq/step_names.hpp"
#include "stores/resident_records.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// The block that is being filled: its scores are the last part's, but other parts that hold no full
// blocks help to make them. The keys of a block are a lot for one tile to receive.
class OpenBlock {
public:
  OpenBlock(const Context &contextIn, const Tensor &tailIn, const Waves &wavesIn,
            const Lending &lending)
      : ofAll(tailIn), context(contextIn), waves(wavesIn), last(contextIn.parts() - 1),
        helped(waves.nWaveParts() <= last),
        nIdle(helped ? context.parts() - waves.nWaveParts() - lending.nHelper : 1),
        nPieces(std::min(lending.nHelper != 0 ? nIdle - 1 : nIdle, block / four)) {
    for (unsigned i = 0; i != nPieces; ++i) {
      const std::string name = "open_" + std::to_string(i);
      pieces.push_back(context.once(name, [&] {
        const Placement &p = context.placement();
        const Tensor t = context.graph.addVariable(
            HALF, {p.slots, context.layout().indexDim, end(i) - begin(i)}, {context.dc, name});
        for (unsigned slot = 0; slot != p.slots; ++slot)
          context.graph.setTileMapping(t[slot], p.tile(slot, part(i)));
        return t;
      }));
    }
  }

  // The keys {headDim, positions} of each piece, to the parts that score them: to what is copied.
  void gather(std::vector<Tensor> &fromWhere, std::vector<Tensor> &toWhere) const {
    const unsigned first = context.task(0), nSlots = context.nSlots();
    const Tensor tail = ofAll.slice(first, first + nSlots, 0);
    for (unsigned i = 0; i != nPieces; ++i) {
      fromWhere.push_back(tail.slice(begin(i), end(i), 2).flatten());
      toWhere.push_back(context.active(pieces[i]).flatten());
    }
  }

  // Whether it is scored before full blocks, and not beside them: where a part has both, which
  // write to one tensor.
  bool isBefore() const { return !helped; }
  // Adds the vertices that score it.
  void score(const ComputeSet &cs, unsigned slot, const QueryComponents &q, const Tensor &scores) {
    const unsigned g = context.groupSize(), r = static_cast<unsigned>(q.components.dim(2)),
                   tailBegin = waves.nWaves * waves.length;
    const Tensor ofTail = scores[slot][last].slice(tailBegin, tailBegin + block, 1);
    for (unsigned i = 0; i != nPieces; ++i) {
      const Tensor ofPiece = ofTail.slice(begin(i), end(i), 1);
      Tensor made = ofPiece;
      if (part(i) != last) { // there, for a vertex would fetch what it writes over
        const std::string name = "open_scores_" + std::to_string(i);
        made = context.once(name, [&] {
          const Placement &p = context.placement();
          const Tensor t =
              context.graph.addVariable(FLOAT, {p.slots, g, end(i) - begin(i)}, {context.dc, name});
          for (unsigned of = 0; of != p.slots; ++of)
            context.graph.setTileMapping(t[of], p.tile(of, part(i)));
          return t;
        })[slot];
        scored.push_back(made.flatten());
        to.push_back(ofPiece.flatten());
      }
      addVertex(context.graph, cs, "sparq::TailScores", context.tile(slot, part(i)),
                {{"tail", pieces[i][slot].flatten()},
                 {"components", q.components[slot][part(i)]},
                 {"selectedQuery", q.selectedQuery[slot][part(i)]},
                 {"inverseTemperature", q.inverseTemperature[slot][part(i)]},
                 {"scores", made.flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"tailLength", end(i) - begin(i)},
                 {"tailBegin", 0u},
                 {"partPositions", end(i) - begin(i)}},
                cycles::tailScores(end(i) - begin(i), g, r));
    }
  }

  // Brings these scores together, once all are made.
  void bring() const {
    if (!scored.empty())
      context.copy(concat(scored), concat(to), {context.dc, steps::openScores});
  }

private:
  // Piece i has these positions, whole fours, and is on this part.
  unsigned begin(unsigned i) const { return block / four * i / nPieces * four; }
  unsigned end(unsigned i) const { return begin(i + 1); }
  // The last part only where all others without blocks have a piece: it would copy its own.
  unsigned part(unsigned i) const { return last - i - (nIdle > nPieces ? 1 : 0); }

  static constexpr unsigned four = 4;
  const Tensor ofAll; // {nTasks, headDim, 64}
  const Context &context;
  const Waves &waves;
  const unsigned last;
  const bool helped;
  const unsigned nIdle, nPieces; // parts that hold no full blocks, or one
  std::vector<Tensor> pieces, scored, to;
};

} // namespace

bool scoredByGroup(const Plan &plan) {
  return plan.layout.indexBits < 8 && plan.shape.groupSize() > 1;
}

Lending::Lending(const Plan &plan, const Waves &waves) {
  if (plan.hot.nPlaces == 0 || !scoredByGroup(plan) || plan.layout.indexBits != 4)
    return;
  const unsigned ofPart = waves.length / block * codeWords(4), beyond = ofPart % cycles::nWorkers,
                 parts = plan.placement.parts, owners = waves.nWaveParts();
  if (beyond == 0)
    return;
  const unsigned pieces = (ofPart - beyond) / beyond, helpers = ceilDiv(owners, pieces);
  if (owners + helpers + 2 > parts) // the open block wants parts too
    return;
  nWords = beyond;
  nPieces = pieces;
  first = owners;
  nHelper = helpers;
  nOwners = owners;
}

void ResidentRecords::loadQuery(const Context &context, const Waves &waves, const Tensor &query,
                                const QueryComponents &q) const {
  std::vector<Tensor> from{queryOfParts(context, query).flatten()},
      to{context.active(q.query).flatten()};
  OpenBlock(context, tail(), waves, Lending(context.plan(), waves)).gather(from, to);
  context.copy(concat(from), concat(to), {context.dc, "query"});
}

void ResidentRecords::score(const Context &context, const SparqSettings &settings,
                            const Waves &waves, const QueryComponents &q,
                            const Scores &scores) const {
  const CacheLayout &layout = context.layout();
  const unsigned g = context.groupSize(), r = settings.rank, bits = layout.indexBits,
                 nBlocks = waves.length / block;
  const bool byGroup = scoredByGroup(context.plan());
  const Lending lending(context.plan(), waves);
  const unsigned nPieces = nBlocks * (block / 8) - lending.nWords; // of eight positions
  const Tensor coefficients =
                   byGroup ? context.perPart(FLOAT, {nBlocks, ceilDiv(g, 2), r, 2}, "coefficients")
                           : context.perPart(INT, {nBlocks, g, r}, "coefficients"),
               units = context.perPart(FLOAT, {nBlocks, g}, "units"),
               offsets = context.perPart(FLOAT, {nBlocks, g}, "offsets"),
               columns = columnsOf(context, r);
  Tensor codes, lentWords;
  if (byGroup) {
    codes = context.perPart(FLOAT, {cycles::nWorkers, r, 8}, "codes");
    lentWords = context.perPart(UNSIGNED_INT, {std::max(1u, r * lending.nWords)}, "lent_words");
  }
  OpenBlock open(context, tail(), waves, lending);
  const ComputeSet coefficient = context.execute(steps::blockCoefficients),
                   before = open.isBefore() ? context.execute(steps::tailScores) : ComputeSet(),
                   score = context.execute(steps::approxScores);
  addTemperatures(context, coefficient, q);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    open.score(open.isBefore() ? before : score, slot, q, scores.weights);
    for (unsigned part = 0; part != waves.nWaveParts(); ++part) {
      const unsigned tile = context.tile(slot, part);
      const Tensor index = index_[context.task(slot)][part].flatten();
      std::vector<Edge> coefficientEdges{{"filled", context.filled(slot, part)},
                                         {"index", index},
                                         {"columns", columns[slot][part]},
                                         {"selectedQuery", q.selectedQuery[slot][part]},
                                         {"coefficients", coefficients[slot][part].flatten()},
                                         {"units", units[slot][part].flatten()},
                                         {"offsets", offsets[slot][part].flatten()}};
      std::vector<Setting> coefficientSettings{
          {"groupSize", g},     {"rank", r},
          {"indexBits", bits},  {"firstBlock", part * nBlocks},
          {"nBlocks", nBlocks}, {"limit", static_cast<float>(coefficientLimit(bits, r))}};
      std::vector<Edge> scoreEdges{{"filled", context.filled(slot, part)},
                                   {"index", index},
                                   {"columns", columns[slot][part]},
                                   {"coefficients", coefficients[slot][part].flatten()},
                                   {"units", units[slot][part].flatten()},
                                   {"offsets", offsets[slot][part].flatten()},
                                   {"inverseTemperature", q.inverseTemperature[slot][part]},
                                   {"scores", scores.weights[slot][part].flatten()}};
      std::vector<Setting> scoreSettings{
          {"groupSize", g},     {"rank", r},
          {"indexBits", bits},  {"firstBlock", part * nBlocks},
          {"nBlocks", nBlocks}, {"partPositions", waves.partPositions()}};
      if (byGroup) {
        scoreEdges.push_back({"codes", codes[slot][part].flatten()});
        coefficientEdges.push_back({"lent", lentWords[slot][part]});
        coefficientSettings.push_back({"nLent", lending.nWords});
        scoreSettings.push_back({"nPieces", nPieces});
      }
      addVertex(context.graph, coefficient,
                byGroup ? "sparq::GroupCoefficients" : "sparq::ResidentCoefficients", tile,
                coefficientEdges, coefficientSettings,
                byGroup ? cycles::groupCoefficients(nBlocks, g, r, lending.nWords)
                        : cycles::residentCoefficients(nBlocks, g, r));
      addVertex(context.graph, score, byGroup ? "sparq::GroupScores" : "sparq::ResidentScores",
                tile, scoreEdges, scoreSettings,
                byGroup ? cycles::groupScores(nPieces, g, r, bits)
                        : cycles::residentScores(nBlocks, g, r, bits));
    }
    for (unsigned i = 0; i != lending.nHelper; ++i) {
      const unsigned helper = lending.first + i, owner = lending.firstOwner(helper),
                     n = lending.pieces(helper);
      const auto lent = [&](const Tensor &perPart) { // of the owners' last blocks
        return perPart[slot].slice(owner, owner + n).slice(nBlocks - 1, nBlocks, 1).flatten();
      };
      addVertex(context.graph, score, "sparq::LentScores", context.tile(slot, helper),
                {{"filled", context.filled(slot, helper)},
                 {"words", lentWords[slot].slice(owner, owner + n).flatten()},
                 {"coefficients", lent(coefficients)},
                 {"units", lent(units)},
                 {"offsets", lent(offsets)},
                 {"inverseTemperature", q.inverseTemperature[slot][helper]},
                 {"codes", codes[slot][helper].flatten()},
                 {"scores", scores.weights[slot][helper].flatten()},
                 {"held", heldOf(context)[slot][helper]}},
                {{"groupSize", g},
                 {"rank", r},
                 {"nWords", lending.nWords},
                 {"wordsShift", log2Of(lending.nWords)},
                 {"nPieces", n},
                 {"firstBlock", owner * nBlocks + nBlocks - 1},
                 {"blocksOfPart", nBlocks},
                 {"partPositions", waves.partPositions()}},
                cycles::groupScores(n * lending.nWords, g, r));
    }
  }
  open.bring();
}

} // namespace sparq
