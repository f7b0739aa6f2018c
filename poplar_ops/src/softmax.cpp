// SPDX-License-Identifier: Apache-2.0
#include "codelets/attention.cycles.hpp"
#include "planning.hpp"
#include "sparq/step_names.hpp"
#include "stores/index.hpp"

#include <cmath>

namespace sparq {

Tensor ascending(const Tensor &perPart, const Waves &waves, unsigned unit) {
  const std::size_t parts = perPart.dim(0), g = perPart.dim(1), inUse = waves.nWaveParts();
  const std::size_t perWave = waves.length / unit, inWaves = perWave * waves.nWaves;
  const Tensor ordered = perPart.slice(0, inUse, 0)
                             .slice(0, inWaves, 2)
                             .reshape({inUse, g, waves.nWaves, perWave})
                             .dimShuffle({1, 2, 0, 3})
                             .reshape({g, waves.nWaves * inUse * perWave});
  if (waves.tailLength == 0)
    return ordered;
  const std::size_t inTail = waves.tailLength / unit;
  const Tensor tail = perPart.slice(waves.tailFirst, parts, 0)
                          .slice(inWaves, inWaves + inTail, 2)
                          .dimShuffle({1, 0, 2})
                          .reshape({g, (parts - waves.tailFirst) * inTail});
  return concat(ordered, tail, 1);
}

bool headsApart(const Context &context) {
  return context.plan().hot.nPlaces != 0 && context.groupSize() > 1;
}

unsigned partOfHead(const Context &context, unsigned head) {
  return context.parts() - 1 - (head + 1) % context.parts(); // the last one has other work
}

Tensor perHead(const Context &context, unsigned firstHead, const char *name) {
  return context.onParts(FLOAT, context.groupSize(), {}, name,
                         [&](unsigned h) { return partOfHead(context, firstHead + h); });
}

void addFoldSums(const Context &context, const ComputeSet &cs, unsigned slot, unsigned part,
                 unsigned firstHead, const Tensor &blockSums, const Tensor &sums) {
  const unsigned g = context.groupSize(), nBlocks = static_cast<unsigned>(blockSums.dim(1));
  const auto add = [&](unsigned on, const Tensor &from, const Tensor &to, unsigned n) {
    context.addVertex(cs, "sparq::FoldSums", slot, on, cycles::foldSums(nBlocks, n),
                      "blockSums"_f = from, "sums"_f = to, "nBlocks"_f = nBlocks,
                      "groupSize"_f = n);
  };
  if (!headsApart(context))
    return add(part, blockSums, sums, g);
  for (unsigned h = 0; h != g; ++h)
    add(partOfHead(context, firstHead + h), blockSums[h], sums.slice(h, h + 1), 1);
}

Tensor holding(const Tensor &perPart, const Waves &waves) {
  std::vector<Tensor> used;
  for (unsigned part = 0; part != perPart.dim(0); ++part)
    if (waves.nOwn(part) != 0)
      used.push_back(perPart.slice(part, part + 1, 0));
  return concat(used, 0);
}

Fields positionSettings(const Waves &waves, unsigned part) {
  return {
      "part"_f = part,           "stride"_f = waves.stride,         "length"_f = waves.length,
      "nWaves"_f = waves.nWaves, "tailLength"_f = waves.tailLength, "tailFirst"_f = waves.tailFirst,
      "chunk"_f = waves.chunk};
}

// Partial maxima of a part's scores of one head: as many as take the fewest cycles until every part
// has the largest of all.
static unsigned nMaxPieces(const Context &context, const Waves &waves) {
  const unsigned g = context.groupSize();
  unsigned nHolding = Lending(context.plan(), waves).nHelper, nOwn = 0;
  for (unsigned part = 0; part != context.parts(); ++part) {
    nHolding += waves.nOwn(part) != 0;
    nOwn = std::max(nOwn, waves.nOwn(part));
  }
  const auto cycles = [&](unsigned n) { // a word of a tile arrives in a cycle
    return cycles::partialMax(nOwn, g, n) + std::uint64_t(nHolding) * n * g +
           cycles::reduceMax(nHolding * n, g);
  };
  unsigned best = cycles::nWorkers;
  for (const unsigned n : {3u, 2u, 1u})
    if (cycles(n) < cycles(best))
      best = n;
  return best;
}

Scores createScores(const Context &context, const Waves &waves) {
  const std::size_t g = context.groupSize(), n = waves.partPositions();
  Scores scores;
  scores.weights = context.begin(context.perPart(FLOAT, {g, n}, "weights"));
  scores.maxima = context.perPart(FLOAT, {nMaxPieces(context, waves) * g}, "maxima");
  scores.maximum = context.perPart(FLOAT, {6 * g}, "maximum");
  scores.blockSums = context.perPart(FLOAT, {g, n / block}, "block_sums");
  scores.sums = headsApart(context)
                    ? perHead(context, 0, "sums").expand({1}).broadcast(context.parts(), 1)
                    : context.perPart(FLOAT, {g}, "sums");
  return scores;
}

// Of all {n, groupSize}, flat.
static void addReduceMax(const Context &context, const ComputeSet &cs, unsigned slot, unsigned part,
                         const Tensor &all, const Tensor &maximum) {
  const unsigned g = context.groupSize(), n = static_cast<unsigned>(all.numElements()) / g;
  context.addVertex(cs, "sparq::ReduceMax", slot, part, cycles::reduceMax(n, g), "maxima"_f = all,
                    "maximum"_f = maximum, "nPartials"_f = n, "groupSize"_f = g,
                    "each"_f = roundUp(ceilDiv(n, cycles::nWorkers), 2));
}

void reduceMax(const Context &context, const std::vector<Tensor> &maxima, const Tensor &maximum) {
  const ComputeSet cs = context.execute(steps::reduceMax);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor all = maxima[slot].flatten();
    for (unsigned part = 0; part != context.parts(); ++part)
      addReduceMax(context, cs, slot, part, all, maximum[slot][part]);
  }
}

// Of many partial results first those of groups, each on a part of its own.
static void reduceInGroups(const Context &context, std::vector<Tensor> &maxima) {
  const unsigned g = context.groupSize(), n = static_cast<unsigned>(maxima[0].numElements()) / g,
                 each = static_cast<unsigned>(std::sqrt(double(cycles::nWorkers) * n));
  if (n * (g + 3) < 800) // another step takes as long
    return;
  const ComputeSet cs = context.execute("reduce_groups");
  const Tensor maximum = context.perPart(FLOAT, {cycles::nWorkers * g}, "group_maxima");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor all = maxima[slot].flatten();
    for (unsigned part = 0, first = 0; first < n; ++part, first += each) {
      const unsigned end = std::min(first + each, n);
      addReduceMax(context, cs, slot, part, all.slice(first * g, end * g), maximum[slot][part]);
    }
    maxima[slot] = maximum[slot].slice(0, ceilDiv(n, each));
  }
}

void softmaxWeights(const Context &context, const Waves &waves, const Scores &scores,
                    bool inGroups) {
  const unsigned g = context.groupSize(), n = waves.partPositions();
  const Lending lending(context.plan(), waves);
  // The positions of a part whose scores it has: not those that it has lent, but those that others
  // have.
  const auto own = [&](unsigned part) {
    Waves of = waves;
    if (lending.helps(part)) {
      of.stride = of.length = lending.nPieces * lending.positions();
      of.tailLength = 0;
      of.chunk = 1;
    } else if (lending.nLent(part) != 0) {
      of.stride = (part + 1) * of.length - lending.positions();
    }
    return of;
  };
  const auto settings = [&](unsigned part) {
    Fields all = positionSettings(own(part), lending.helps(part) ? 0 : part);
    all.insert(all.end(), {"groupSize"_f = g, "partPositions"_f = n});
    return all;
  };
  const auto filled = [&](unsigned slot, unsigned part) {
    return lending.helps(part) ? heldOf(context)[slot][part] : context.filled(slot, part);
  };
  const auto nOwn = [&](unsigned part) {
    return lending.helps(part) ? lending.pieces(part) * lending.positions()
                               : waves.nOwn(part) - lending.nLent(part);
  };
  const auto nPieces = static_cast<unsigned>(scores.maxima.dim(2)) / g;
  const ComputeSet partial = context.execute(steps::partialMax);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts(); ++part)
      context.addVertex(
          partial, "sparq::PartialMax", slot, part, cycles::partialMax(nOwn(part), g, nPieces),
          "filled"_f = filled(slot, part), "scores"_f = scores.weights[slot][part],
          "maxima"_f = scores.maxima[slot][part], "nPieces"_f = nPieces, settings(part));
  std::vector<Tensor> maxima;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor &all = scores.maxima[slot];
    maxima.push_back(holding(all, waves));
    if (lending.nHelper != 0)
      maxima[slot] = concat(std::vector<Tensor>{
          maxima[slot], all.slice(lending.first, lending.first + lending.nHelper)});
  }
  if (inGroups)
    reduceInGroups(context, maxima);
  reduceMax(context, maxima, scores.maximum);
  const ComputeSet weights = context.execute(steps::softmaxWeights);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts(); ++part)
      context.addVertex(weights, "sparq::SoftmaxWeights", slot, part,
                        cycles::softmaxWeights(nOwn(part), n, g), "filled"_f = filled(slot, part),
                        "maximum"_f = scores.maximum[slot][part],
                        "weights"_f = scores.weights[slot][part], settings(part));
}

void softmax(const Context &context, const Waves &waves, const Scores &scores) {
  softmaxWeights(context, waves, scores, false);
  const unsigned g = context.groupSize(), n = waves.partPositions();
  const Lending lending(context.plan(), waves);
  std::vector<Tensor> lent, taken;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned owner = 0; owner != lending.nOwners; ++owner) {
      const unsigned helper = lending.first + owner / lending.nPieces,
                     at = owner % lending.nPieces * lending.positions();
      const Tensor &all = scores.weights[slot];
      lent.push_back(all[helper].slice(at, at + lending.positions(), 1).flatten());
      taken.push_back(
          all[owner].slice(waves.length - lending.positions(), waves.length, 1).flatten());
    }
  if (!lent.empty())
    context.copy(concat(lent), concat(taken), steps::lentWeights);
  const ComputeSet blocks = context.execute(steps::blockSums);
  const ComputeSet fold = context.execute(steps::foldSums);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor sums = ascending(scores.blockSums[slot], waves, block);
    for (unsigned part = 0; part != context.parts(); ++part) {
      context.addVertex(blocks, "sparq::BlockSums", slot, part, cycles::blockSums(g * n / block),
                        "weights"_f = scores.weights[slot][part],
                        "blockSums"_f = scores.blockSums[slot][part], "nBlocks"_f = g * n / block);
      if (part == 0 || !headsApart(context)) // of heads apart all parts have the same sums
        addFoldSums(context, fold, slot, part, 0, sums, scores.sums[slot][part]);
    }
  }
}

} // namespace sparq
