// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include "../codelets/arith.hpp"
#include "schedule.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>

#include <unistd.h>

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

// What is fetched ahead of the score step: runs of this size (bytes of all columns together), and
// at most so much before a pair is begun.
constexpr std::size_t runBytes = 64 << 10;
constexpr std::size_t sweepRun = 16384;
std::size_t aheadBytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (level2 > 0)
    return std::max<std::size_t>(static_cast<std::size_t>(level2) / 2, runBytes);
#endif
  return 256 << 10;
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
    columns = carve.take<const Half *>(rank);
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
    if (call->isDense(pair.length))
      return;
    chooseComponents(g, d);
    for (unsigned j = 0; j < rank; ++j)
      columns[j] = pair.keyColumns + components[j] * cache.columnStride;
  }

  // Nothing asked for yet of the positions [begin, end), multiples of 64, that a thread will read.
  // Null where no columns are read.
  Ahead *startAhead(std::size_t begin, std::size_t end) {
    if (call->isDense(pair.length))
      return nullptr;
    std::size_t run = sweepRun;
    if (call->groupSize > 1) // so much of all columns
      run = std::max<std::size_t>(runBytes / sizeof(Half) / rank / 64 * 64, 256);
    ahead = {columns, rank, run, begin, end, aheadBytes() / 64, 0, begin, 0, begin};
    return &ahead;
  }
  Ahead *startAhead() { return startAhead(0, roundUp(pair.length, blockSize)); }

  float *query;                        // (g, headDim)
  std::uint32_t *components = nullptr; // (rank,) ascending
  const Half **columns = nullptr;      // (rank,) of these components
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
    call->kernels.keyTopK({bits, nullptr, 0, d, rank, work, workIndex, components, nullptr});
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
    sums = carve.take<float>(2 * g * teamSize);
    nBlocks = blocks;
    if (teamSize > 1)
      partialSums = carve.take<float>(blocks * g * d);
    if (!call.settings)
      return;
    const std::size_t k = std::min(static_cast<std::size_t>(call.settings->topK), call.maxLength);
    listStride = roundUp(k, 64) + 16;
    // The weights of one head are keys themselves.
    keys = g == 1 ? reinterpret_cast<std::int32_t *>(scores) : carve.take<std::int32_t>(stride);
    keyMaxima = carve.take<std::int32_t>(blocks * 16);
    work = carve.take<std::int32_t>(std::max(stride, k * teamSize));
    workIndex = carve.take<std::uint32_t>(std::max(stride, k * teamSize));
    for (List &list : lists) {
      list.positions = carve.take<std::uint32_t>(listStride);
      list.alpha = carve.take<float>(g);
    }
    candidates = carve.take<std::uint32_t>(k * teamSize);
    candidateCount = carve.take<std::size_t>(teamSize);
    candidateKeys = carve.take<std::int32_t>(k * teamSize);
    listScores = carve.take<float>(g * listStride);
    listBlockSums = carve.take<float>(listStride / 64 + 1);
    listMaxima = carve.take<float>(g);
    listSums = carve.take<float>(g);
  }

  std::size_t stride, nBlocks, listStride = 0;
  float *sum;       // (g, headDim) weighted sum of values
  float *scores;    // (g, stride) scores, then weights
  float *blockSums; // (g, nBlocks) of weights
  float *maxima;    // (team, g)
  float *sums;      // (team, 2, g) sums of weights and their inverses: each member has its own copy
  float *partialSums = nullptr;      // (blocks, g, headDim), of a team
  std::int32_t *keys = nullptr;      // (stride,)
  std::int32_t *keyMaxima = nullptr; // (blocks, 16)
  std::int32_t *work = nullptr;
  std::uint32_t *workIndex = nullptr;
  // What is selected of a pair, and of the one before.
  struct List {
    std::uint32_t *positions = nullptr; // (topK,) ascending
    float *alpha = nullptr;             // (g,)
  } lists[2];
  std::uint32_t *candidates = nullptr;   // (team, topK)
  std::size_t *candidateCount = nullptr; // (team,)
  std::int32_t *candidateKeys = nullptr; // (team * topK,)
  float *listScores = nullptr;           // (g, listStride) of the selected positions
  float *listBlockSums = nullptr;
  float *listMaxima = nullptr, *listSums = nullptr; // (g,)
};

// The left fold of partial sums (contract E3).
float foldBlocks(const float *partial, std::size_t n) {
  float total = 0.0f;
  for (std::size_t i = 0; i < n; ++i)
    total = total + partial[i];
  return total;
}

// Attention of one pair. With one thread it is done in two parts: the rows of the positions that
// `run` selects are fetched while the next pair is run, and `finish` attends to them.
class PairAttention {
public:
  // `now` are the columns that this thread reads of this pair, `next` those that it reads after
  // them; null if there are none. `list` alternates.
  PairAttention(const Call &callIn, std::size_t pairIndex, const PairQuery &prepared,
                const Scratch &scratch, const Team &teamIn, Ahead *now, Ahead *nextIn,
                unsigned listIn)
      : call(callIn), cache(callIn.cache), kernels(callIn.kernels), query(prepared), s(scratch),
        list(scratch.lists[listIn]), team(teamIn), ahead(now), next(nextIn), index(pairIndex),
        pair(callIn.cache.pair(pairIndex)), g(static_cast<unsigned>(call.groupSize)),
        d(static_cast<unsigned>(cache.headDim)), length(pair.length),
        blocks((length + blockSize - 1) / blockSize), scale(scaleOf(d)) {}

  // `before` is the pair that is to be finished on the way, or null.
  void run(PairAttention *before) {
    if (call.isDense(length)) {
      if (before)
        before->finish();
      dense();
    } else {
      sparq(before);
    }
    team.barrier(); // the scratch is free for the next pair
  }

  // Attention over the selected positions (none: dense attention is complete).
  void finish() {
    if (rows.count == 0)
      return;
    kernels.fetchRows(&rows, rows.count);
    gather();
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
      kernels.softmaxWeights({s.scores + h * s.stride + begin, (last - first) * blockSize,
                              maximum(h), s.blockSums + h * s.nBlocks + first, nullptr, next});
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
        write(h, foldBlocks(s.blockSums + h * s.nBlocks, blocks), nullptr);
  }

  void sparq(PairAttention *before) {
    // Step 1: approximate scores, their softmax.
    const std::size_t first = team.begin(blocks), last = team.end(blocks);
    const std::size_t begin = first * blockSize, end = last * blockSize;
    const auto rank = static_cast<unsigned>(call.settings->rank);
    kernels.approxScores({query.columns, rank, query.selected, g, query.invTau, begin, end, length,
                          s.scores, s.stride, s.maxima + team.member * g, ahead, next,
                          before && before->rows.count ? &before->rows : nullptr});
    if (before)
      before->finish();
    team.barrier();
    std::int32_t *const blockMaxima = s.keyMaxima + first * 16;
    for (unsigned h = 0; h < g; ++h)
      kernels.softmaxWeights({s.scores + h * s.stride + begin, end - begin, maximum(h),
                              s.blockSums + h * s.nBlocks + first, g == 1 ? blockMaxima : nullptr,
                              next});
    team.barrier();
    float *const weightSum = s.sums + team.member * 2 * g, *const inverse = weightSum + g;
    for (unsigned h = 0; h < g; ++h) {
      weightSum[h] = foldBlocks(s.blockSums + h * s.nBlocks, blocks);
      inverse[h] = 1.0f / weightSum[h];
    }

    // Step 2: the positions.
    const Merit merit{s.scores, s.stride, weightSum, g};
    if (g > 1)
      kernels.roughKeys({merit, inverse, begin, end, s.keys, s.keyMaxima});
    const std::size_t count = std::min(static_cast<std::size_t>(call.settings->topK), length);
    const std::size_t local = std::min(static_cast<std::size_t>(call.settings->nLocal), count);
    const std::size_t firstLocal = length - local, nBest = count - local;
    selectBest(merit, begin, end, firstLocal, nBest);
    team.barrier();
    if (team.member != 0)
      return;
    mergeBest(merit, nBest);
    for (std::size_t i = 0; i < local; ++i)
      list.positions[nBest + i] = static_cast<std::uint32_t>(firstLocal + i);
    shareOfWeights(count, weightSum);
    rows = {pair.keyRows, pair.valueRows, d, list.positions, count, 0};
    if (team.size > 1)
      finish();
  }

  // alpha: the share of the approximate weights that the selected positions have.
  void shareOfWeights(std::size_t count, const float *weightSum) {
    const std::size_t padded = roundUp(count, blockSize);
    float *const weights = s.listScores;
    for (unsigned h = 0; h < g; ++h) {
      for (std::size_t i = 0; i < count; ++i)
        weights[i] = s.scores[h * s.stride + list.positions[i]];
      std::fill(weights + count, weights + padded, 0.0f);
      list.alpha[h] = std::min(1.0f, flush(laneFold(weights, padded) / weightSum[h]));
    }
  }

  // Of this member's positions before the local ones, those that may be among the best of all.
  void selectBest(const Merit &merit, std::size_t begin, std::size_t end, std::size_t firstLocal,
                  std::size_t nBest) {
    end = std::min(end, firstLocal);
    const std::size_t n = begin < end ? std::min(nBest, end - begin) : 0;
    s.candidateCount[team.member] = n;
    std::uint32_t *to = team.size == 1 ? list.positions : s.candidates + team.member * nBest;
    if (n)
      kernels.keyTopK(
          {s.keys, s.keyMaxima, begin, end, n, s.work + begin, s.workIndex + begin, to, &merit});
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
        {s.candidateKeys, nullptr, 0, n, nBest, s.work, s.workIndex, list.positions, nullptr});
    for (std::size_t i = 0; i < nBest; ++i)
      list.positions[i] = s.candidates[list.positions[i]];
  }

  void gather() {
    const std::size_t count = rows.count, padded = roundUp(count, blockSize);
    kernels.rowScores({{pair.keyRows, d, list.positions, 0, count},
                       query.query,
                       g,
                       scale,
                       s.listScores,
                       s.listStride,
                       s.listMaxima});
    std::memset(s.sum, 0, g * d * sizeof(float));
    for (unsigned h = 0; h < g; ++h) {
      kernels.softmaxWeights({s.listScores + h * s.listStride, padded, s.listMaxima[h],
                              s.listBlockSums, nullptr, nullptr});
      s.listSums[h] = foldBlocks(s.listBlockSums, padded / blockSize);
    }
    kernels.weightedValues({{pair.valueRows, d, list.positions, 0, count},
                            s.listScores,
                            s.listStride,
                            g,
                            s.sum,
                            true});
    for (unsigned h = 0; h < g; ++h)
      write(h, s.listSums[h], call.settings->meanValue ? &list.alpha[h] : nullptr);
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
  void write(unsigned h, float weightSum, const float *alpha) {
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
  const Scratch::List &list;
  const Team &team;
  Ahead *const ahead, *const next;
  const std::size_t index;
  const KVCache::Pair pair;
  const unsigned g, d;
  const std::size_t length, blocks;
  const float scale;
  RowsAhead rows{}; // selected
};

} // namespace

// The pair before, this one, the next.
constexpr unsigned queriesHeld = 3;

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
  for (unsigned i = 0; i < queriesHeld; ++i)
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
    PairQuery queries[queriesHeld] = {{carve, call}, {carve, call}, {carve, call}};
    if (nSplit) {
      Carver carveTeam(shared);
      const Scratch scratch(carveTeam, call, nThreads);
      const Team team(*pool, thread);
      for (std::size_t i = 0; i < nSplit; ++i) {
        queries[0].prepare(pairs[i]); // each member for itself: that is quicker than waiting
        const std::size_t blocks = roundUp(lengths[pairs[i]], blockSize) / blockSize;
        Ahead *const ahead =
            queries[0].startAhead(team.begin(blocks) * blockSize, team.end(blocks) * blockSize);
        PairAttention(call, pairs[i], queries[0], scratch, team, ahead, nullptr, 0).run(nullptr);
      }
    }
    const Scratch scratch(carve, call, 1);
    const Team alone;
    // While a pair is worked on, the columns of the next and the rows of the one before are on
    // their way.
    std::size_t following = 0;
    const auto claim = [&](PairQuery &query) -> Ahead * {
      following = next.fetch_add(1, std::memory_order_relaxed);
      if (following >= nPairs)
        return nullptr;
      query.prepare(pairs[following]);
      return query.startAhead();
    };
    std::optional<PairAttention> attention[2];
    PairAttention *before = nullptr;
    Ahead *ahead = claim(queries[0]);
    for (unsigned turn = 0; following < nPairs; ++turn) {
      const std::size_t i = following;
      Ahead *const after = claim(queries[(turn + 1) % queriesHeld]);
      std::optional<PairAttention> &now = attention[turn % 2];
      now.emplace(call, pairs[i], queries[turn % queriesHeld], scratch, alone, ahead, after,
                  turn % 2);
      now->run(before);
      before = &*now;
      ahead = after;
    }
    if (before)
      before->finish();
  });
}

} // namespace cpu
} // namespace sparq
