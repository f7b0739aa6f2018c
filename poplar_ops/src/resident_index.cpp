// SPDX-License-Identifier: Apache-2.0
#include "arith/key_index.hpp"
#include "codelets/scores.cycles.hpp"
#include "sparq/step_names.hpp"
#include "stores/index.hpp"

namespace sparq {

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
    for (unsigned i = 0; i != nPieces; ++i)
      pieces.push_back(context.onPart(part(i), HALF, {context.layout().indexDim, end(i) - begin(i)},
                                      "open_" + std::to_string(i)));
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
        made = context.onPart(part(i), FLOAT, {g, end(i) - begin(i)},
                              "open_scores_" + std::to_string(i))[slot];
        scored.push_back(made.flatten());
        to.push_back(ofPiece.flatten());
      }
      context.addVertex(cs, "sparq::TailScores", slot, part(i),
                        cycles::tailScores(end(i) - begin(i), g, r), "tail"_f = pieces[i][slot],
                        "components"_f = q.components[slot][part(i)],
                        "selectedQuery"_f = q.selectedQuery[slot][part(i)],
                        "inverseTemperature"_f = q.inverseTemperature[slot], "scores"_f = made,
                        "groupSize"_f = g, "rank"_f = r, "tailLength"_f = end(i) - begin(i),
                        "tailBegin"_f = 0u, "partPositions"_f = end(i) - begin(i));
    }
  }

  // Brings these scores together, once all are made.
  void bring() const {
    if (!scored.empty())
      context.copy(concat(scored), concat(to), steps::openScores);
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
  context.copy(concat(from), concat(to), "query");
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
               offsets = context.perPart(FLOAT, {nBlocks, g}, "offsets");
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
      const Fields both{"filled"_f = context.filled(slot, part),
                        "index"_f = index_[context.task(slot)][part],
                        "columns"_f = q.columns[slot][part],
                        "coefficients"_f = coefficients[slot][part],
                        "units"_f = units[slot][part],
                        "offsets"_f = offsets[slot][part],
                        "groupSize"_f = g,
                        "rank"_f = r,
                        "indexBits"_f = bits,
                        "firstBlock"_f = part * nBlocks,
                        "nBlocks"_f = nBlocks};
      Fields lent, ofGroup;
      if (byGroup) {
        lent = {"lent"_f = lentWords[slot][part], "nLent"_f = lending.nWords};
        ofGroup = {"codes"_f = codes[slot][part], "nPieces"_f = nPieces};
      }
      context.addVertex(coefficient,
                        byGroup ? "sparq::GroupCoefficients" : "sparq::ResidentCoefficients", slot,
                        part,
                        byGroup ? cycles::groupCoefficients(nBlocks, g, r, lending.nWords)
                                : cycles::residentCoefficients(nBlocks, g, r),
                        both, lent, "selectedQuery"_f = q.selectedQuery[slot][part],
                        "limit"_f = static_cast<float>(coefficientLimit(bits, r)));
      context.addVertex(score, byGroup ? "sparq::GroupScores" : "sparq::ResidentScores", slot, part,
                        byGroup ? cycles::groupScores(nPieces, g, r, bits)
                                : cycles::residentScores(nBlocks, g, r, bits),
                        both, ofGroup, "inverseTemperature"_f = q.inverseTemperature[slot],
                        "scores"_f = scores.weights[slot][part],
                        "partPositions"_f = waves.partPositions());
    }
    for (unsigned i = 0; i != lending.nHelper; ++i) {
      const unsigned helper = lending.first + i, owner = lending.firstOwner(helper),
                     n = lending.pieces(helper);
      const auto lent = [&](const Tensor &perPart) { // of the owners' last blocks
        return perPart[slot].slice(owner, owner + n).slice(nBlocks - 1, nBlocks, 1).flatten();
      };
      context.addVertex(
          score, "sparq::LentScores", slot, helper, cycles::groupScores(n * lending.nWords, g, r),
          "filled"_f = context.filled(slot, helper),
          "words"_f = lentWords[slot].slice(owner, owner + n),
          "coefficients"_f = lent(coefficients), "units"_f = lent(units),
          "offsets"_f = lent(offsets), "inverseTemperature"_f = q.inverseTemperature[slot],
          "codes"_f = codes[slot][helper], "scores"_f = scores.weights[slot][helper],
          "held"_f = heldOf(context)[slot][helper], "groupSize"_f = g, "rank"_f = r,
          "nWords"_f = lending.nWords, "wordsShift"_f = log2Of(lending.nWords), "nPieces"_f = n,
          "firstBlock"_f = owner * nBlocks + nBlocks - 1, "blocksOfPart"_f = nBlocks,
          "partPositions"_f = waves.partPositions());
    }
  }
  open.bring();
}

} // namespace sparq
