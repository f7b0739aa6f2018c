// SPDX-License-Identifier: Apache-2.0
//
// Attention of one pair (batch element, KV head) in steps, so that the steps of neighbouring pairs
// can be computed together.
#pragma once

#include "fetch.hpp"
#include "list_attention.hpp"
#include "pair_query.hpp"

#include <limits>

namespace sparq::cpu {

// Bytes at which dense attention asks for rows before it reads them. On an Intel Xeon, heads that
// share a KV head need no less, and 8 KiB is slower for a head of its own.
constexpr std::size_t readAhead = 4096;

// The cache into which selected rows are fetched. With the second one a call takes 0.83 to 0.97 of
// the time on an AMD Zen 4, which has room there for more lines on their way, the same on a Zen 5,
// and longer on an Intel Xeon.
inline unsigned fetchLevel() {
#ifdef SPARQ_X86
  static const bool second = __builtin_cpu_is("amd");
#else
  constexpr bool second = false;
#endif
  return second ? 2 : 1;
}

class PairAttention {
public:
  // `buffer` (0 or 1) is that of its scores.
  PairAttention(const Call &callIn, std::size_t indexIn, const PairQuery &queryIn,
                const Scratch &scratch, const Team &teamIn, unsigned buffer)
      : call(callIn), cache(callIn.cache), kernels(callIn.kernels), query(queryIn), s(scratch),
        team(teamIn), scores(scratch.scores[buffer]), index(indexIn), pair(callIn.pair(indexIn)),
        g(static_cast<unsigned>(call.groupSize)), d(static_cast<unsigned>(cache.headDim)),
        length(pair.length), blocks((length + blockSize - 1) / blockSize),
        first(team.begin(blocks)), last(team.end(blocks)), scale(attentionScale(d)) {}

  bool isDense() const { return call.isDense(length); }

  void dense() {
    const std::size_t begin = first * blockSize, end = std::min(last * blockSize, length);
    float *const factors = s.factors ? s.factors + team.member * nFactors(d) : nullptr;
    const auto sequence = [&](const unsigned char *rows) -> Rows {
      return {rows, d, nullptr, begin, end - begin, readAhead, factors};
    };
    kernels.rowScores({sequence(pair.keyRows), query.query, g, scale, scores + begin, s.stride,
                       s.maxima + team.member * g});
    team.barrier();
    softmaxOfAll();
    const bool alone = team.size == 1;
    float *const partial = alone ? s.sum : s.partialSums + first * g * d;
    if (alone)
      std::memset(s.sum, 0, g * d * sizeof(float));
    kernels.weightedValues({sequence(pair.valueRows), scores + begin, s.stride, g, partial, alone});
    team.barrier();
    if (!alone) {
      const std::size_t from = team.begin(g * d), to = team.end(g * d);
      for (std::size_t c = from; c < to; ++c)
        s.sum[c] = 0.0f;
      for (std::size_t block = 0; block < blocks; ++block)
        for (std::size_t c = from; c < to; ++c)
          s.sum[c] = s.sum[c] + s.partialSums[block * g * d + c];
      team.barrier();
    }
    if (team.member == 0)
      for (unsigned h = 0; h < g; ++h)
        writeOutput(call, index, h, s.sum + h * d, foldBlocks(s.blockSums + h * s.nBlocks, blocks));
    team.barrier(); // the scratch is free for the next pair
  }

  // SparQ, in this order. The members of a team call a step together.
  //
  // Approximate scores. Meanwhile the softmax of `before` is computed, a pair that is one step
  // further, and the beginning of what `next` scores is fetched into the processor's caches. Either
  // may be null.
  void score(PairAttention *before, PairAttention *next) {
    float *const maxima = s.maxima + team.member * g;
    SoftmaxWeights *const beside = before ? &before->softmaxBegun : nullptr;
    if (cache.keyIndex.quantised)
      scoreIndex(maxima, beside, next);
    else
      scoreColumns(first, last, 0, maxima, beside);
    team.barrier();
    if (g == 1) // the maxima of bits serve the selection, whose keys the weights are
      softmaxBegun = softmaxOf(0, s.keyMaxima + first * 16);
  }

  // What is left of the softmax of the approximate scores.
  void softmax() {
    if (g == 1)
      kernels.softmaxWeights(softmaxBegun);
    else
      softmaxOfAll();
    team.barrier();
  }

  // The positions, and alpha.
  void select() {
    float *const weightSum = s.sums + team.member * 2 * g, *const inverse = weightSum + g;
    for (unsigned h = 0; h < g; ++h) {
      weightSum[h] = foldBlocks(s.blockSums + h * s.nBlocks, blocks);
      inverse[h] = 1.0f / weightSum[h];
    }
    const Merit merit{scores, s.stride, weightSum, g};
    const std::size_t begin = first * blockSize, end = last * blockSize;
    if (g > 1)
      kernels.roughKeys({merit, inverse, begin, end, s.keys, s.keyMaxima});
    const std::size_t count = std::min(std::size_t(call.settings->topK), length);
    const std::size_t local = std::min(std::size_t(call.settings->nLocal), count);
    const std::size_t firstLocal = length - local, nBest = count - local;
    selectBest(merit, begin, end, firstLocal, nBest);
    team.barrier();
    if (team.member == 0) {
      mergeBest(merit, nBest);
      for (std::size_t i = 0; i < local; ++i)
        s.positions[nBest + i] = static_cast<std::uint32_t>(firstLocal + i);
      shareOfWeights(count, weightSum);
      nSelected = count;
    }
  }

  // Attention over them.
  void finish() {
    if (team.member == 0) {
      // The rows are anywhere in memory: ask for all of them now.
      for (const unsigned char *rows : {pair.keyRows, pair.valueRows})
        fetchLevel() == 1 ? fetchRows<1>(rows) : fetchRows<2>(rows);
      const ListAttention list{s.positions,     nSelected, s.listScores, s.listStride, s.maxima,
                               s.listBlockSums, s.sums,    s.sum,        s.factors};
      list.attend(call, pair, query.query);
      for (unsigned h = 0; h < g; ++h)
        writeOutput(call, index, h, s.sum + h * d, s.sums[h],
                    call.settings->meanValue ? &s.alpha[h] : nullptr);
    }
    team.barrier(); // the scratch is free for the next pair
  }

private:
  // Blocks [begin, end) from fp16 columns, which start with block `origin`.
  void scoreColumns(std::size_t begin, std::size_t end, std::size_t origin, float *maxima,
                    SoftmaxWeights *beside) const {
    ApproxScores step{};
    step.columns = query.columns;
    step.rank = call.settings->rank;
    step.query = query.selected;
    step.groupSize = g;
    step.invTau = query.invTau;
    step.begin = (begin - origin) * blockSize;
    step.end = (end - origin) * blockSize;
    step.length = length - origin * blockSize;
    step.scores = scores + origin * blockSize;
    step.scoreStride = s.stride;
    step.maximum = maxima;
    step.softmax = beside;
    kernels.approxScores(step);
  }

  // Full blocks from the quantised index; the open block from its columns, which are few lines,
  // asked for before anything else.
  void scoreIndex(float *maxima, SoftmaxWeights *beside, PairAttention *next) {
    const CellRange range = cellRange(), nextRange = next ? next->cellRange() : CellRange{};
    const std::size_t full = length / blockSize;
    const bool open = last > full && first < last;
    if (open)
      for (unsigned j = 0; j < range.rank; ++j)
        for (std::size_t p = 0; p < length % blockSize; p += 32)
          fetchLine(query.columns[j] + p);
    std::fill(maxima, maxima + g, -std::numeric_limits<float>::infinity());
    if (range.begin < range.end) {
      const std::size_t at = team.member * s.indexRank;
      IndexScores step{};
      step.range = range;
      step.fetched = fetched;
      if (nextRange.begin < nextRange.end) {
        step.next = &nextRange;
        next->fetched = true;
      }
      step.query = query.selected;
      step.groupSize = g;
      step.invTau = query.invTau;
      step.scores = scores;
      step.scoreStride = s.stride;
      step.maximum = maxima;
      step.softmax = beside;
      step.rows = s.indexRows + 2 * at;
      step.nextRows = step.rows + s.indexRank;
      step.products = s.indexProducts + 64 * at;
      step.words = s.indexWords + 32 * at;
      kernels.indexScores(step);
    }
    if (open) {
      float *const openMaxima = s.openMaxima + team.member * g;
      scoreColumns(full, full + 1, full, openMaxima, nullptr);
      for (unsigned h = 0; h < g; ++h)
        maxima[h] = std::max(maxima[h], openMaxima[h]);
    }
  }

  // This member's full blocks.
  CellRange cellRange() const {
    return {pair.cells, query.components, call.settings->rank, first,
            std::min(last, length / blockSize)};
  }

  // Of this member's positions before the local ones, those that may be among the best of all.
  void selectBest(const Merit &merit, std::size_t begin, std::size_t end, std::size_t firstLocal,
                  std::size_t nBest) {
    end = std::min(end, firstLocal);
    const std::size_t n = begin < end ? std::min(nBest, end - begin) : 0;
    s.candidateCount[team.member] = n;
    std::uint32_t *const to = team.size == 1 ? s.positions : s.candidates + team.member * nBest;
    const std::int32_t *const keys =
        g == 1 ? reinterpret_cast<const std::int32_t *>(scores) : s.keys;
    if (n == 0)
      return;
    kernels.keyTopK({keys, s.keyMaxima, begin, end, n, s.work + begin,
                     s.workIndex + begin + 16 * team.member, to, &merit});
  }

  // The best of all members' candidates. They are in ascending order, so ties among them go to the
  // lower position too.
  void mergeBest(const Merit &merit, std::size_t nBest) {
    if (team.size == 1 || nBest == 0)
      return;
    std::size_t n = 0;
    for (unsigned member = 0; member < team.size; ++member)
      for (std::size_t i = 0; i < s.candidateCount[member]; ++i, ++n)
        s.candidates[n] = s.candidates[member * nBest + i]; // n is not past what it overwrites
    kernels.meritsAt(merit, s.candidates, n, s.candidateKeys);
    kernels.keyTopK(
        {s.candidateKeys, nullptr, 0, n, nBest, s.work, s.workIndex, s.positions, nullptr});
    for (std::size_t i = 0; i < nBest; ++i)
      s.positions[i] = s.candidates[s.positions[i]];
  }

  // alpha: the share of the approximate weights that the selected positions have, summed by
  // absolute blocks with +0 for the others (contract E6.5). Adding +0 to a weight changes nothing,
  // so one or two of a block need no lanes.
  void shareOfWeights(std::size_t count, const float *weightSum) {
    for (unsigned h = 0; h < g; ++h) {
      const float *const weights = scores + h * s.stride;
      float total = 0.0f;
      for (std::size_t i = 0, end; i < count; i = end) {
        const std::uint32_t block = s.positions[i] / blockSize;
        for (end = i + 1; end < count && s.positions[end] / blockSize == block;)
          ++end;
        float partial;
        if (end - i == 1) {
          partial = weights[s.positions[i]];
        } else if (end - i == 2) {
          partial = weights[s.positions[i]] + weights[s.positions[i + 1]];
        } else {
          float lanes[nLanes] = {};
          for (std::size_t j = i; j < end; ++j) {
            float &lane = lanes[s.positions[j] % nLanes];
            lane = lane + weights[s.positions[j]];
          }
          partial = treeSum(lanes);
        }
        total = total + partial;
      }
      s.alpha[h] = std::min(1.0f, flush(total / weightSum[h]));
    }
  }

  // Into the cache of that level.
  template <unsigned level> void fetchRows(const unsigned char *rows) const {
    for (std::size_t i = 0; i < nSelected; ++i) {
      const unsigned char *const row = rows + s.positions[i] * cache.rowBytes;
      for (std::size_t c = 0; c < cache.rowBytes; c += 64)
        fetchLine<level>(row + c);
      if (cache.rowBytes % 64) // it may end in a line more
        fetchLine<level>(row + cache.rowBytes - 1);
    }
  }

  SoftmaxWeights softmaxOf(unsigned h, std::int32_t *blockMaxima) const {
    return {scores + h * s.stride + first * blockSize, (last - first) * blockSize, maximum(h),
            s.blockSums + h * s.nBlocks + first, blockMaxima};
  }

  void softmaxOfAll() const {
    for (unsigned h = 0; h < g; ++h) {
      SoftmaxWeights step = softmaxOf(h, nullptr);
      kernels.softmaxWeights(step);
    }
  }

  // The maximum over the team's parts.
  float maximum(unsigned h) const {
    float most = s.maxima[h];
    for (unsigned member = 1; member < team.size; ++member)
      most = std::max(most, s.maxima[member * g + h]);
    return most;
  }

  const Call &call;
  const KVCache &cache;
  const Kernels &kernels;
  const PairQuery &query;
  const Scratch &s;
  const Team &team;
  float *const scores; // (g, s.stride)
  const std::size_t index;
  const KVCache::Pair pair;
  const unsigned g, d;
  const std::size_t length, blocks;
  const std::size_t first, last; // blocks of this member
  const float scale;
  SoftmaxWeights softmaxBegun{}; // of a single head
  std::size_t nSelected = 0;
  bool fetched = false; // what score() reads first
};

} // namespace sparq::cpu
