// SPDX-License-Identifier: Apache-2.0
//
// What the parts of one attention call share: its inputs, memory, and the threads of a team.
#pragma once

#include "arith/scale.hpp"
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

} // namespace sparq::cpu
