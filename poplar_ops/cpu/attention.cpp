// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include "../codelets/arith.hpp"
#include "schedule.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

namespace sparq {
namespace cpu {
namespace {

// The threads that work on one pair: one of them, or all of the pool.
class Team {
public:
  Team() = default;
  Team(ThreadPool &p, unsigned thread) : size(p.nThreads()), member(thread), pool(&p) {}
  void barrier() const {
    if (size > 1)
      pool->barrier();
  }
  // This member's part of n things.
  std::size_t begin(std::size_t n) const { return n * member / size; }
  std::size_t end(std::size_t n) const { return n * (member + 1) / size; }

  unsigned size = 1, member = 0;

private:
  ThreadPool *pool = nullptr;
};

// Hands out memory, 64-byte aligned; from a null base it only measures.
class Carver {
public:
  explicit Carver(char *start) : base(start) {}
  template <class T> T *take(std::size_t n) {
    T *const at = base ? reinterpret_cast<T *>(base + used) : nullptr;
    used += roundUp(n * sizeof(T), 64);
    return at;
  }
  std::size_t used = 0;

private:
  char *base;
};

// What a call needs to know.
struct Call {
  const KVCache &cache;
  const Kernels &kernels;
  Query query;
  std::size_t nHeads, groupSize;
  const SparqSettings *settings; // null: dense attention
  Half *output;
  std::size_t maxLength;

  bool isDense(std::size_t length) const {
    // With all positions selected alpha is 1 and what remains is dense attention (contract E7).
    return !settings || static_cast<std::size_t>(settings->topK) >= length;
  }
};

// 1 / sqrt(head_dim), in double, rounded once (contract E4).
float scaleOf(std::size_t headDim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(headDim)));
}

// Lane sum of |x[c]| (contract E3).
template <class Magnitude> float laneSum(std::size_t n, const Magnitude &magnitude) {
  float lanes[nLanes] = {};
  for (std::size_t c = 0; c < n; ++c)
    lanes[c % nLanes] = lanes[c % nLanes] + magnitude(c);
  return treeSum(lanes);
}

// The query heads of one pair, and what they need before the cache is read (contract E6.1 and E4).
class PairQuery {
public:
  PairQuery(Carver &carve, const Call &callIn) : call(&callIn) {
    const std::size_t g = callIn.groupSize, d = callIn.cache.headDim;
    query = carve.take<float>(g * d);
    half = carve.take<Half>(g * d);
    if (!callIn.settings)
      return;
    rank = static_cast<unsigned>(callIn.settings->rank);
    components = carve.take<std::uint32_t>(rank);
    selected = carve.take<float>(g * rank);
    invTau = carve.take<float>(g);
    magnitude = carve.take<float>(d);
    bits = carve.take<std::int32_t>(d);
    work = carve.take<std::int32_t>(d);
    workIndex = carve.take<std::uint32_t>(d);
  }

  // For pair `index`.
  void prepare(std::size_t index) {
    const KVCache &cache = call->cache;
    const std::size_t g = call->groupSize, d = cache.headDim;
    const std::ptrdiff_t *const stride = call->query.stride;
    const char *from = call->query.data +
                       static_cast<std::ptrdiff_t>(index / cache.nKvHeads) * stride[0] +
                       static_cast<std::ptrdiff_t>(index % cache.nKvHeads * g) * stride[1];
    for (std::size_t h = 0; h < g; ++h)
      for (std::size_t c = 0; c < d; ++c)
        std::memcpy(half + h * d + c,
                    from + static_cast<std::ptrdiff_t>(h) * stride[1] +
                        static_cast<std::ptrdiff_t>(c) * stride[2],
                    sizeof(Half));
    call->kernels.widen(half, query, g * d);
    pair = cache.pair(index);
    if (!call->isDense(pair.length))
      chooseComponents(g, d);
  }

  // The columns that the score step reads first. Null where there is none to come.
  const Ahead *firstColumns() {
    if (call->isDense(pair.length))
      return nullptr;
    ahead.n = std::min(rank, Ahead::most);
    for (unsigned j = 0; j < ahead.n; ++j)
      ahead.columns[j] = pair.keyColumns + components[j] * call->cache.columnStride;
    ahead.positions = std::min<std::size_t>(pair.length, Ahead::mostPositions);
    return &ahead;
  }

  float *query;                        // (g, headDim)
  std::uint32_t *components = nullptr; // (rank,) ascending
  float *selected = nullptr;           // (g, rank) the selected components of the query
  float *invTau = nullptr;             // (g,)

private:
  // The components largest in |q| over the group, and the temperature of each head.
  void chooseComponents(std::size_t g, std::size_t d) {
    for (std::size_t c = 0; c < d; ++c) {
      float total = 0.0f;
      for (std::size_t h = 0; h < g; ++h)
        total = total + std::fabs(query[h * d + c]);
      magnitude[c] = total;
    }
    std::memcpy(bits, magnitude, d * sizeof(float)); // bits of numbers >= +0 order as they do
    call->kernels.keyTopK({bits, nullptr, 0, d, rank, work, workIndex, components});
    const float scale = scaleOf(d);
    for (std::size_t h = 0; h < g; ++h) {
      const float *q = query + h * d;
      std::memset(magnitude, 0, d * sizeof(float));
      for (std::size_t j = 0; j < rank; ++j) {
        selected[h * rank + j] = q[components[j]];
        magnitude[components[j]] = std::fabs(q[components[j]]);
      }
      const float all = laneSum(d, [&](std::size_t c) { return std::fabs(q[c]); });
      const float some = laneSum(d, [&](std::size_t c) { return magnitude[c]; });
      invTau[h] = inverseTemperature(all, some, static_cast<float>(d), scale);
    }
  }

  const Call *call;
  unsigned rank = 0;
  Half *half;                                    // (g, headDim)
  float *magnitude = nullptr;                    // (headDim,)
  std::int32_t *bits = nullptr, *work = nullptr; // (headDim,)
  std::uint32_t *workIndex = nullptr;            // (headDim,)
  KVCache::Pair pair{};
  Ahead ahead{};
};

// Memory for one pair at a time, shared by its team. `n` is the padded length, `g` the group size.
struct Scratch {
  Scratch(Carver &carve, const Call &call, unsigned teamSize)
      : stride(roundUp(call.maxLength, 64) + 16) { // heads apart by an odd number of cache lines
    const std::size_t g = call.groupSize, d = call.cache.headDim, blocks = stride / 64 + 1;
    sum = carve.take<float>(g * d);
    scores = carve.take<float>(g * stride);
    blockSums = carve.take<float>(g * blocks);
    maxima = carve.take<float>(g * teamSize);
    sums = carve.take<float>(g * teamSize);
    nBlocks = blocks;
    if (teamSize > 1)
      partialSums = carve.take<float>(blocks * g * d);
    if (!call.settings)
      return;
    const std::size_t k = std::min(static_cast<std::size_t>(call.settings->topK), call.maxLength);
    listStride = roundUp(k, 64) + 16;
    keys = carve.take<std::int32_t>(stride);
    keyMaxima = carve.take<std::int32_t>(blocks * 16);
    work = carve.take<std::int32_t>(std::max(stride, k * teamSize));
    workIndex = carve.take<std::uint32_t>(std::max(stride, k * teamSize));
    positions = carve.take<std::uint32_t>(listStride);
    candidates = carve.take<std::uint32_t>(k * teamSize);
    candidateCount = carve.take<std::size_t>(teamSize);
    candidateKeys = carve.take<std::int32_t>(k * teamSize);
    listScores = carve.take<float>(g * listStride);
    listBlockSums = carve.take<float>(listStride / 64 + 1);
    alpha = carve.take<float>(g);
  }

  std::size_t stride, nBlocks, listStride = 0;
  float *sum;                        // (g, headDim) weighted sum of values
  float *scores;                     // (g, stride) scores, then weights
  float *blockSums;                  // (g, nBlocks) of weights
  float *maxima;                     // (team, g)
  float *sums;                       // (team, g) sums of weights: each member has its own copy
  float *partialSums = nullptr;      // (blocks, g, headDim), of a team
  std::int32_t *keys = nullptr;      // (stride,)
  std::int32_t *keyMaxima = nullptr; // (blocks, 16)
  std::int32_t *work = nullptr;
  std::uint32_t *workIndex = nullptr;
  std::uint32_t *positions = nullptr;    // (topK,)
  std::uint32_t *candidates = nullptr;   // (team, topK)
  std::size_t *candidateCount = nullptr; // (team,)
  std::int32_t *candidateKeys = nullptr; // (team * topK,)
  float *listScores = nullptr;           // (g, listStride) of the selected positions
  float *listBlockSums = nullptr;
  float *alpha = nullptr; // (g,)
};

// The left fold of partial sums (contract E3).
float foldBlocks(const float *partial, std::size_t n) {
  float total = 0.0f;
  for (std::size_t i = 0; i < n; ++i)
    total = total + partial[i];
  return total;
}

class PairAttention {
public:
  // `next` are columns that this thread reads after this pair, or null.
  PairAttention(const Call &callIn, std::size_t pairIndex, const PairQuery &prepared,
                const Scratch &scratch, const Team &teamIn, const Ahead *next)
      : call(callIn), cache(callIn.cache), kernels(callIn.kernels), query(prepared), s(scratch),
        team(teamIn), ahead(next), index(pairIndex), pair(callIn.cache.pair(pairIndex)),
        g(static_cast<unsigned>(call.groupSize)), d(static_cast<unsigned>(cache.headDim)),
        length(pair.length), blocks((length + blockSize - 1) / blockSize), scale(scaleOf(d)) {}

  void run() {
    if (call.isDense(length))
      dense();
    else
      sparq();
    team.barrier(); // the scratch is free for the next pair
  }

private:
  void dense() {
    const std::size_t first = team.begin(blocks), last = team.end(blocks);
    const std::size_t begin = first * blockSize, end = std::min(last * blockSize, length);
    kernels.rowScores({{pair.keyRows, d, nullptr, begin, end - begin},
                       query.query,
                       g,
                       scale,
                       s.scores + begin,
                       s.stride,
                       s.maxima + team.member * g});
    team.barrier();
    for (unsigned h = 0; h < g; ++h)
      kernels.softmaxWeights(s.scores + h * s.stride + begin, (last - first) * blockSize,
                             maximum(h), s.blockSums + h * s.nBlocks + first, nullptr);
    const bool alone = team.size == 1;
    float *const partial = alone ? s.sum : s.partialSums + first * g * d;
    if (alone)
      std::memset(s.sum, 0, g * d * sizeof(float));
    kernels.weightedValues({{pair.valueRows, d, nullptr, begin, end - begin},
                            s.scores + begin,
                            s.stride,
                            g,
                            partial,
                            alone});
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
        finish(h, foldBlocks(s.blockSums + h * s.nBlocks, blocks), nullptr);
  }

  void sparq() {
    // Step 1: approximate scores, their softmax.
    const std::size_t first = team.begin(blocks), last = team.end(blocks);
    const std::size_t begin = first * blockSize, end = last * blockSize;
    const auto rank = static_cast<unsigned>(call.settings->rank);
    kernels.approxScores({pair.keyColumns, cache.columnStride, query.components, rank,
                          query.selected, g, query.invTau, begin, end, length, s.scores, s.stride,
                          s.maxima + team.member * g});
    team.barrier();
    for (unsigned h = 0; h < g; ++h)
      kernels.softmaxWeights(s.scores + h * s.stride + begin, end - begin, maximum(h),
                             s.blockSums + h * s.nBlocks + first, h == 0 ? ahead : nullptr);
    team.barrier();
    float *const weightSum = s.sums + team.member * g;
    for (unsigned h = 0; h < g; ++h)
      weightSum[h] = foldBlocks(s.blockSums + h * s.nBlocks, blocks);

    // Step 2: the positions.
    kernels.groupKeys({s.scores, s.stride, weightSum, g, begin, end, s.keys, s.keyMaxima});
    const std::size_t count = std::min(static_cast<std::size_t>(call.settings->topK), length);
    const std::size_t local = std::min(static_cast<std::size_t>(call.settings->nLocal), count);
    const std::size_t firstLocal = length - local, nBest = count - local;
    selectBest(begin, end, firstLocal, nBest);
    team.barrier();
    if (team.member != 0)
      return;
    mergeBest(nBest);
    for (std::size_t i = 0; i < local; ++i)
      s.positions[nBest + i] = static_cast<std::uint32_t>(firstLocal + i);

    gather(count, weightSum);
  }

  // Of this member's positions before the local ones, those that may be among the best of all.
  void selectBest(std::size_t begin, std::size_t end, std::size_t firstLocal, std::size_t nBest) {
    end = std::min(end, firstLocal);
    const std::size_t n = begin < end ? std::min(nBest, end - begin) : 0;
    s.candidateCount[team.member] = n;
    std::uint32_t *to = team.size == 1 ? s.positions : s.candidates + team.member * nBest;
    if (n)
      kernels.keyTopK(
          {s.keys, s.keyMaxima, begin, end, n, s.work + begin, s.workIndex + begin, to});
  }

  // The best of all members' candidates. They are in ascending order, so ties among them go to the
  // lower position too.
  void mergeBest(std::size_t nBest) {
    if (team.size == 1 || nBest == 0)
      return;
    std::size_t n = 0;
    for (unsigned member = 0; member < team.size; ++member)
      for (std::size_t i = 0; i < s.candidateCount[member]; ++i, ++n) {
        s.candidates[n] = s.candidates[member * nBest + i]; // n is not past what it overwrites
        s.candidateKeys[n] = s.keys[s.candidates[n]];
      }
    kernels.keyTopK({s.candidateKeys, nullptr, 0, n, nBest, s.work, s.workIndex, s.positions});
    for (std::size_t i = 0; i < nBest; ++i)
      s.positions[i] = s.candidates[s.positions[i]];
  }

  // Attention over the selected positions, and the share of the approximate weights that they have.
  void gather(std::size_t count, const float *weightSum) {
    const std::size_t padded = roundUp(count, blockSize);
    // Their rows are anywhere in memory: ask for all of them now, and have them in L2 when the
    // weights are summed.
    fetchRows(pair.keyRows, count);
    fetchRows(pair.valueRows, count);
    for (unsigned h = 0; h < g; ++h) {
      float *const weights = s.listScores + h * s.listStride;
      for (std::size_t i = 0; i < count; ++i)
        weights[i] = s.scores[h * s.stride + s.positions[i]];
      std::fill(weights + count, weights + padded, 0.0f);
      s.alpha[h] = std::min(1.0f, flush(laneFold(weights, padded) / weightSum[h]));
    }
    kernels.rowScores({{pair.keyRows, d, s.positions, 0, count},
                       query.query,
                       g,
                       scale,
                       s.listScores,
                       s.listStride,
                       s.maxima});
    std::memset(s.sum, 0, g * d * sizeof(float));
    for (unsigned h = 0; h < g; ++h) {
      kernels.softmaxWeights(s.listScores + h * s.listStride, padded, s.maxima[h], s.listBlockSums,
                             nullptr);
      s.sums[h] = foldBlocks(s.listBlockSums, padded / blockSize);
    }
    kernels.weightedValues(
        {{pair.valueRows, d, s.positions, 0, count}, s.listScores, s.listStride, g, s.sum, true});
    for (unsigned h = 0; h < g; ++h)
      finish(h, s.sums[h], call.settings->meanValue ? &s.alpha[h] : nullptr);
  }

  void fetchRows(const Half *rows, std::size_t count) const {
    constexpr int read = 0, intoL2 = 2;
    for (std::size_t i = 0; i < count; ++i) {
      const char *const row =
          reinterpret_cast<const char *>(rows + std::size_t(s.positions[i]) * d);
      for (std::size_t byte = 0; byte < d * sizeof(Half); byte += 64)
        __builtin_prefetch(row + byte, read, intoL2);
    }
  }

  // Sum of weights: the lane sum of each block, then the left fold.
  static float laneFold(const float *weights, std::size_t n) {
    float total = 0.0f;
    for (std::size_t at = 0; at < n; at += blockSize)
      total = total + laneSum(blockSize, [&](std::size_t j) { return weights[at + j]; });
    return total;
  }

  // The maximum over the team's parts.
  float maximum(unsigned h) const {
    float most = s.maxima[h];
    for (unsigned member = 1; member < team.size; ++member)
      most = std::max(most, s.maxima[member * g + h]);
    return most;
  }

  // Contract E6.4 and E6.5: divide, mix with the mean value (where there is an alpha), narrow.
  void finish(unsigned h, float weightSum, const float *alpha) {
    float *const y = s.sum + h * d;
    for (unsigned c = 0; c < d; ++c)
      y[c] = flush(y[c]) / weightSum;
    if (alpha) {
      const float rest = 1.0f - *alpha, n = static_cast<float>(length);
      for (unsigned c = 0; c < d; ++c)
        y[c] = *alpha * y[c] + rest * (pair.valueSum[c] / n);
    }
    kernels.narrow(y, call.output + (index * g + h) * d, d);
  }

  const Call &call;
  const KVCache &cache;
  const Kernels &kernels;
  const PairQuery &query;
  const Scratch &s;
  const Team &team;
  const Ahead *const ahead;
  const std::size_t index;
  const KVCache::Pair pair;
  const unsigned g, d;
  const std::size_t length, blocks;
  const float scale;
};

} // namespace

void attend(const KVCache &cache, const Query &query, std::size_t nHeads,
            const SparqSettings *settings, Half *output) {
  PoolLease pool(cache.nThreads);
  const unsigned nThreads = pool->nThreads();
  const std::size_t nPairs = cache.nPairs();
  Call call{cache, cache.kernels, query, nHeads, nHeads / cache.nKvHeads, settings, output, 0};
  for (std::size_t i = 0; i < nPairs; ++i)
    call.maxLength = std::max(call.maxLength, cache.pair(i).length);

  // Scratch: the order of the pairs, memory for the team of all threads, memory for each thread.
  const auto forPairs = [&](Carver &carve, std::uint32_t *&pairs, std::size_t *&lengths) {
    pairs = carve.take<std::uint32_t>(nPairs);
    lengths = carve.take<std::size_t>(nPairs);
  };
  std::uint32_t *pairs;
  std::size_t *lengths;
  Carver measureShared(nullptr), measureOwn(nullptr);
  forPairs(measureShared, pairs, lengths);
  if (nThreads > 1)
    Scratch(measureShared, call, nThreads);
  PairQuery(measureOwn, call);
  PairQuery(measureOwn, call);
  Scratch(measureOwn, call, 1);
  const std::size_t ownBytes = measureOwn.used;
  char *const memory = pool->scratch(measureShared.used + nThreads * ownBytes);
  Carver shared(memory);
  forPairs(shared, pairs, lengths);
  char *const own = memory + measureShared.used;

  for (std::size_t i = 0; i < nPairs; ++i) {
    pairs[i] = static_cast<std::uint32_t>(i);
    lengths[i] = cache.pair(i).length;
  }
  const std::size_t nSplit = schedulePairs(pairs, nPairs, lengths, nThreads);
  std::atomic<std::size_t> next{nSplit};
  pool->run([&](unsigned thread) {
    Carver carve(own + thread * ownBytes);
    PairQuery first(carve, call), second(carve, call);
    PairQuery *now = &first, *then = &second;
    if (nSplit) {
      Carver carveTeam(shared);
      const Scratch scratch(carveTeam, call, nThreads);
      const Team team(*pool, thread);
      for (std::size_t i = 0; i < nSplit; ++i) {
        now->prepare(pairs[i]); // each member for itself: that is quicker than waiting
        PairAttention(call, pairs[i], *now, scratch, team, nullptr).run();
      }
    }
    const Scratch scratch(carve, call, 1);
    const Team alone;
    // One pair ahead: while the weights of a pair are computed, the first columns of the next are
    // on their way.
    const auto claim = [&](PairQuery &query) {
      const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i < nPairs)
        query.prepare(pairs[i]);
      return i;
    };
    for (std::size_t i = claim(*now), following; i < nPairs; i = following, std::swap(now, then)) {
      following = claim(*then);
      const Ahead *const ahead = following < nPairs ? then->firstColumns() : nullptr;
      PairAttention(call, pairs[i], *now, scratch, alone, ahead).run();
    }
  });
}

} // namespace cpu
} // namespace sparq
