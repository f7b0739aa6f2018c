// SPDX-License-Identifier: Apache-2.0
#include "arith/window_history.hpp"
#include "list_attention.hpp"
#include "pair_query.hpp"

#include <atomic>

namespace sparq::cpu {
namespace {

// The positions of one batch element.
struct Selection {
  std::uint32_t *positions; // (most,) ascending
  std::size_t most, count;
};

// Working memory of a selection among n positions.
struct SelectionScratch {
  SelectionScratch(Carver &carve, std::size_t n)
      : work(carve.take<std::int32_t>(n)), workIndex(carve.take<std::uint32_t>(n + 16)) {}
  std::int32_t *work;
  std::uint32_t *workIndex;
};

void select(Selection &to, const Kernels &kernels, const WindowSettings &settings,
            std::size_t length, const std::int32_t *sums, const SelectionScratch &scratch) {
  const std::size_t most = std::min(std::size_t(settings.topK), length);
  const std::size_t firstLocal = length - std::min(std::size_t(settings.nLocal), most);
  std::size_t nBest = most - (length - firstLocal);
  if (nBest != 0 && sums) {
    kernels.keyTopK({sums, nullptr, 0, firstLocal, nBest, scratch.work, scratch.workIndex,
                     to.positions, nullptr});
  } else if (nBest != 0) {
    const std::size_t stride = (firstLocal + nBest - 1) / nBest;
    nBest = (firstLocal + stride - 1) / stride;
    for (std::size_t i = 0; i < nBest; ++i)
      to.positions[i] = static_cast<std::uint32_t>(firstLocal - 1 - (nBest - 1 - i) * stride);
  }
  for (std::size_t p = firstLocal; p < length; ++p)
    to.positions[nBest + p - firstLocal] = static_cast<std::uint32_t>(p);
  to.count = nBest + length - firstLocal;
}

// Attention of one pair over the selected positions; `shares` (count,), where there is one, gets
// those of its heads, summed.
void attendPair(const Call &call, std::size_t index, const PairQuery &query, const Scratch &s,
                const Selection &selected, std::uint32_t *shares) {
  const auto g = static_cast<unsigned>(call.groupSize);
  const ListAttention list{selected.positions, selected.count, s.scores[0], s.stride, s.maxima,
                           s.blockSums,        s.sums,         s.sum,       s.factors};
  list.attend(call, call.cache.pair(index), query.query);
  if (shares)
    std::fill(shares, shares + selected.count, 0);
  for (unsigned h = 0; h < g; ++h) {
    for (std::size_t i = 0; shares && i < selected.count; ++i)
      shares[i] += shareOf(s.scores[0][h * s.stride + i], s.sums[h]);
    writeOutput(call, index, h, s.sum + h * call.cache.headDim, s.sums[h]);
  }
}

} // namespace

void attendInWindow(const KVCache &cache, WindowHistory *history, const Query &query,
                    std::size_t nHeads, const WindowSettings &settings, std::size_t back,
                    Half *output) {
  PoolLease pool(cache.nThreads);
  Call call{cache, cache.kernels, query, nHeads, nHeads / cache.nKvHeads, nullptr, output, 0};
  const auto lengthOf = [&](std::size_t b) { return cache.pair(b * cache.nKvHeads).length - back; };
  std::size_t longest = 0;
  for (std::size_t b = 0; b < cache.batch; ++b)
    longest = std::max(longest, lengthOf(b));
  call.maxLength = std::min(std::size_t(settings.topK), longest); // of a list of positions
  const std::size_t nPairs = cache.nPairs(), most = call.maxLength;

  // Scratch: the positions of each element, the shares of each pair, memory for each thread.
  const auto forAll = [&](Carver &carve, std::uint32_t *&positions, std::uint32_t *&shares) {
    positions = carve.take<std::uint32_t>(cache.batch * most);
    shares = carve.take<std::uint32_t>(history ? nPairs * most : 0);
  };
  const auto forThread = [&](Carver &carve) {
    const PairQuery pairQuery(carve, call);
    const Scratch scratch(carve, call, 1);
    return std::make_pair(pairQuery, scratch);
  };
  std::uint32_t *positions, *shares;
  Carver measureAll(nullptr), measureThread(nullptr), measureSelection(nullptr);
  forAll(measureAll, positions, shares);
  forThread(measureThread);
  SelectionScratch(measureSelection, longest);
  const std::size_t ownBytes = std::max(measureThread.used, measureSelection.used);
  char *const memory = pool->scratch(measureAll.used + pool->nThreads() * ownBytes);
  Carver carveAll(memory);
  forAll(carveAll, positions, shares);
  char *const own = memory + measureAll.used;

  std::vector<Selection> selections;
  for (std::size_t b = 0; b < cache.batch; ++b)
    selections.push_back({positions + b * most, most, 0});
  std::atomic<std::size_t> nextElement{0}, nextPair{0}, nextHistory{0};
  pool->run([&](unsigned thread) {
    char *const memoryOfThread = own + thread * ownBytes;
    Carver carveSelection(memoryOfThread);
    const SelectionScratch selection(carveSelection, longest);
    for (std::size_t b; (b = nextElement.fetch_add(1, std::memory_order_relaxed)) < cache.batch;)
      select(selections[b], call.kernels, settings, lengthOf(b),
             history ? history->sums(cache.bankOf(b)) : nullptr, selection);
    pool->barrier();
    Carver carve(memoryOfThread);
    auto [pairQuery, scratch] = forThread(carve);
    for (std::size_t i; (i = nextPair.fetch_add(1, std::memory_order_relaxed)) < nPairs;) {
      pairQuery.prepare(i);
      attendPair(call, i, pairQuery, scratch, selections[i / cache.nKvHeads],
                 history ? shares + i * most : nullptr);
    }
    pool->barrier();
    if (!history)
      return;
    for (std::size_t b; (b = nextHistory.fetch_add(1, std::memory_order_relaxed)) < cache.batch;) {
      const std::size_t bank = cache.bankOf(b);
      history->begin(bank, lengthOf(b));
      for (std::size_t kv = 0; kv < cache.nKvHeads; ++kv) {
        const std::uint32_t *const given = shares + (b * cache.nKvHeads + kv) * most;
        for (std::size_t i = 0; i < selections[b].count; ++i)
          history->give(bank, selections[b].positions[i], given[i]);
      }
    }
  });
}

} // namespace sparq::cpu
