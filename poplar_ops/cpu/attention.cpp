// SPDX-License-Identifier: Apache-2.0
#include "pair_attention.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

namespace sparq::cpu {
namespace {

// A pair that is being scored; the one before, whose softmax is computed meanwhile; the next one,
// whose key index is fetched meanwhile.
constexpr unsigned pairsHeld = 3;

// The pairs of one thread, one after the other.
class PairStream {
public:
  PairStream(const Call &callIn, const Scratch &scratchIn, PairQuery *queriesIn)
      : call(callIn), scratch(scratchIn), queries(queriesIn) {}

  void next(std::size_t index) {
    const unsigned turn = count++;
    PairQuery &query = queries[turn % pairsHeld];
    query.prepare(index);
    PairAttention *const now = upcoming;
    upcoming = &pairs[turn % pairsHeld].emplace(call, index, query, scratch, alone, turn % 2);
    if (now)
      compute(now);
  }

  // The pairs that are held back.
  void finish() {
    PairAttention *const now = upcoming;
    upcoming = nullptr;
    if (now)
      compute(now);
    finishBefore();
  }

private:
  void compute(PairAttention *now) {
    if (now->isDense()) {
      finishBefore();
      now->dense();
      return;
    }
    now->score(before, upcoming && !upcoming->isDense() ? upcoming : nullptr);
    finishBefore();
    before = now;
    if (!call.pipelined())
      finishBefore();
  }

  void finishBefore() {
    if (!before)
      return;
    before->softmax();
    before->select();
    before->finish();
    before = nullptr;
  }

  const Call &call;
  const Scratch &scratch;
  PairQuery *const queries; // pairsHeld
  const Team alone;
  std::optional<PairAttention> pairs[pairsHeld];
  PairAttention *before = nullptr, *upcoming = nullptr;
  unsigned count = 0;
};

// Shorter pairs are not worth the barriers between the steps.
constexpr std::size_t shortestSplit = 2048;
// The last pair may make one thread finish later than the others by this part of a thread's work.
constexpr double imbalance = 0.12;

// Who works on what: most pairs (batch element, KV head) go to one thread each, the longest first;
// those that would leave threads idle at the end are split by blocks of positions and done by all
// threads together. Orders `pairs`, 0 .. n - 1 in any order, by length, longest first, equal
// lengths by number; returns how many from the front to split.
std::size_t schedulePairs(std::uint32_t *pairs, std::size_t n, const std::size_t *lengths,
                          unsigned nThreads) {
  std::sort(pairs, pairs + n, [&](std::uint32_t a, std::uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
  double left = 0;
  for (std::size_t i = 0; i < n; ++i)
    left += static_cast<double>(lengths[pairs[i]]);
  std::size_t split = 0;
  for (; split < n; ++split) {
    const std::size_t longest = lengths[pairs[split]];
    const bool even = longest == lengths[pairs[n - 1]] && (n - split) % nThreads == 0;
    const bool fine = static_cast<double>(longest) * nThreads <= imbalance * left;
    if (nThreads == 1 || even || fine || longest < shortestSplit)
      break;
    left -= static_cast<double>(longest);
  }
  return split;
}

} // namespace

void attend(const KVCache &cache, const Query &query, std::size_t nHeads,
            const SparqSettings *settings, std::size_t window, Half *output) {
  PoolLease pool(cache.nThreads);
  const unsigned nThreads = pool->nThreads();
  Call call{cache,    cache.kernels, query, nHeads, nHeads / cache.nKvHeads,
            settings, output,        0,     window};
  const std::size_t nPairs = call.nWorks();
  for (std::size_t i = 0; i < cache.nPairs(); ++i)
    call.maxLength = std::max(call.maxLength, call.lastOf(i).length);

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
  for (unsigned i = 0; i < pairsHeld; ++i)
    PairQuery(measureOwn, call);
  Scratch(measureOwn, call, 1);
  const std::size_t ownBytes = measureOwn.used;
  char *const memory = pool->scratch(measureShared.used + nThreads * ownBytes);
  Carver shared(memory);
  forPairs(shared, pairs, lengths);
  char *const own = memory + measureShared.used;

  for (std::size_t i = 0; i < nPairs; ++i) {
    pairs[i] = static_cast<std::uint32_t>(i);
    lengths[i] = call.lastOf(call.pairNumber(i)).length; // alike: a pair's tokens stay together
  }
  const std::size_t nSplit = schedulePairs(pairs, nPairs, lengths, nThreads);
  // The first of each thread is its own: a thread asks for its second before it computes the first,
  // and would leave none for the others where there are few.
  std::atomic<std::size_t> next{nSplit + nThreads};
  pool->run([&](unsigned thread) {
    Carver carve(own + thread * ownBytes);
    PairQuery queries[pairsHeld] = {{carve, call}, {carve, call}, {carve, call}};
    if (nSplit) {
      Carver carveTeam(shared);
      const Scratch scratch(carveTeam, call, nThreads);
      const Team team(*pool, thread);
      for (std::size_t i = 0; i < nSplit; ++i) {
        queries[0].prepare(pairs[i]); // each member for itself: that is quicker than waiting
        PairAttention pair(call, pairs[i], queries[0], scratch, team, 0);
        if (pair.isDense()) {
          pair.dense();
        } else {
          pair.score(nullptr, nullptr);
          pair.softmax();
          pair.select();
          pair.finish();
        }
      }
    }
    const Scratch scratch(carve, call, 1);
    PairStream stream(call, scratch, queries);
    for (std::size_t i = nSplit + thread; i < nPairs;
         i = next.fetch_add(1, std::memory_order_relaxed))
      stream.next(pairs[i]);
    stream.finish();
  });
}

} // namespace sparq::cpu
