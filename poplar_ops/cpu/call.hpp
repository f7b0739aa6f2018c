// SPDX-License-Identifier: Apache-2.0
//
// What the parts of one attention call share: its inputs, memory, and the threads of a team.
#pragma once

#include "arith/row_codes.hpp"
#include "kv_cache.hpp"
#include "thread_pool.hpp"

#include <algorithm>

namespace sparq::cpu {

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
  std::size_t begin(std::size_t n) const { return Share(n, member, size).begin; }
  std::size_t end(std::size_t n) const { return Share(n, member, size).end; }

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
  std::size_t window = 0; // of dense attention: the most recent positions that a token sees; 0: all

  // Each token of the query has its own work on a pair: number pair * nTokens + token. It sees the
  // positions up to its own.
  std::size_t pairNumber(std::size_t index) const { return index / query.nTokens; }
  KVCache::Pair pair(std::size_t index) const {
    return seenBy(pairNumber(index), query.nTokens - 1 - index % query.nTokens);
  }
  // What the last token sees of a pair.
  KVCache::Pair lastOf(std::size_t number) const { return seenBy(number, 0); }
  std::size_t nWorks() const { return cache.nPairs() * query.nTokens; }

  // With one head the scores of a pair and the softmax of the one before are computed together.
  bool pipelined() const { return settings && groupSize == 1; }
  bool isDense(std::size_t length) const {
    // With all positions selected alpha is 1 and what remains is dense attention (contract E7).
    return !settings || settings->topK >= length;
  }

private:
  // By the token so many before the last one.
  KVCache::Pair seenBy(std::size_t number, std::size_t back) const {
    KVCache::Pair seen = cache.pair(number);
    seen.length -= back;
    if (!settings && window && seen.length > window) { // dense attention reads rows alone
      seen.keyRows += (seen.length - window) * cache.rowBytes;
      seen.valueRows += (seen.length - window) * cache.rowBytes;
      seen.length = window;
    }
    return seen;
  }
};

// Of a block of rows of 8 bits: two for each scale, and a vector that may be written beyond.
constexpr std::size_t nFactors(unsigned headDim) {
  return blockSize * 2 * nRowScales(headDim) + 16;
}

// Memory for the pairs that a thread, or a team, is working on. `stride` is the padded length, `g`
// the group size.
struct Scratch {
  Scratch(Carver &carve, const Call &call, unsigned teamSize)
      : stride(roundUp(call.maxLength, 64) + 16) { // heads apart by an odd number of cache lines
    const std::size_t g = call.groupSize, d = call.cache.headDim, blocks = stride / 64 + 1;
    sum = carve.take<float>(g * d);
    scores[0] = carve.take<float>(g * stride);
    scores[1] = call.pipelined() ? carve.take<float>(g * stride) : scores[0];
    blockSums = carve.take<float>(g * blocks);
    maxima = carve.take<float>(g * teamSize);
    sums = carve.take<float>(2 * g * teamSize);
    nBlocks = blocks;
    if (call.cache.spec.rowBits == 8)
      factors = carve.take<float>(nFactors(call.cache.spec.headDim) * teamSize);
    if (teamSize > 1)
      partialSums = carve.take<float>(blocks * g * d);
    if (!call.settings)
      return;
    if (call.cache.keyIndex.quantised) {
      indexRank = roundUp(call.settings->rank, 4);
      openMaxima = carve.take<float>(g * teamSize);
      indexRows = carve.take<const unsigned char *>(2 * indexRank * teamSize);
      indexProducts = carve.take<float>(64 * indexRank * teamSize);
      indexWords = carve.take<std::int32_t>(32 * indexRank * teamSize);
    }
    const std::size_t k = std::min(std::size_t(call.settings->topK), call.maxLength);
    listStride = roundUp(k, 64) + 16;
    if (g > 1) // the weights of one head are keys themselves
      keys = carve.take<std::int32_t>(stride);
    keyMaxima = carve.take<std::int32_t>(blocks * 16);
    work = carve.take<std::int32_t>(std::max(stride, k * teamSize));
    workIndex = carve.take<std::uint32_t>(std::max(stride, k * teamSize) + 16 * teamSize);
    positions = carve.take<std::uint32_t>(listStride);
    alpha = carve.take<float>(g);
    candidates = carve.take<std::uint32_t>(k * teamSize);
    candidateCount = carve.take<std::size_t>(teamSize);
    candidateKeys = carve.take<std::int32_t>(k * teamSize);
    listScores = carve.take<float>(g * listStride);
    listBlockSums = carve.take<float>(listStride / 64 + 1);
  }

  std::size_t stride, nBlocks, listStride = 0, indexRank = 0;
  float *sum;       // (g, headDim) weighted sum of values
  float *scores[2]; // (g, stride) scores, then weights; of neighbouring pairs in turn
  float *blockSums; // (g, nBlocks) of weights
  float *maxima;    // (team, g)
  float *sums;      // (team, 2, g) sums of weights and their inverses: each member has its own copy
  float *factors = nullptr;     // (team, nFactors), of rows of 8 bits
  float *partialSums = nullptr; // (blocks, g, headDim), of a team
  // Of a quantised key index, for each member of a team: see IndexScores.
  float *openMaxima = nullptr;               // (team, g) of the open block
  const unsigned char **indexRows = nullptr; // (team, 2, indexRank)
  float *indexProducts = nullptr;            // (team, 64 indexRank)
  std::int32_t *indexWords = nullptr;        // (team, 32 indexRank)
  std::int32_t *keys = nullptr;              // (stride,)
  std::int32_t *keyMaxima = nullptr;         // (blocks, 16)
  std::int32_t *work = nullptr;
  std::uint32_t *workIndex = nullptr;
  std::uint32_t *positions = nullptr;    // (topK,) selected, ascending
  float *alpha = nullptr;                // (g,) their share of the approximate weights
  std::uint32_t *candidates = nullptr;   // (team, topK)
  std::size_t *candidateCount = nullptr; // (team,)
  std::int32_t *candidateKeys = nullptr; // (team * topK,)
  float *listScores = nullptr;           // (g, listStride) of the selected positions
  float *listBlockSums = nullptr;
};

} // namespace sparq::cpu
