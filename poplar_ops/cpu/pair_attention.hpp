// SPDX-License-Identifier: Apache-2.0
//
// Attention of one pair (batch element, KV head) in steps, so that the steps of neighbouring pairs
// can be computed together.
#pragma once

#include "pair_query.hpp"
#include "scratch.hpp"

namespace sparq::cpu {

class PairAttention {
public:
  // `buffer` (0 or 1) is that of its scores.
  PairAttention(const Call &call, std::size_t index, const PairQuery &query, const Scratch &scratch,
                const Team &team, unsigned buffer);

  bool isDense() const { return call.isDense(length); }
  void dense();

  // SparQ, in this order. The members of a team call a step together.
  //
  // Approximate scores. Meanwhile the softmax of `before` is computed, a pair that is one step
  // further, and the beginning of what `next` scores is fetched into the processor's caches. Either
  // may be null.
  void score(PairAttention *before, PairAttention *next);
  // What is left of the softmax of the approximate scores.
  void softmax();
  // The positions, and alpha.
  void select();
  // Attention over them.
  void finish();

private:
  void scoreColumns(std::size_t begin, std::size_t end, std::size_t origin, float *maxima,
                    SoftmaxWeights *beside) const;
  void scoreIndex(float *maxima, SoftmaxWeights *beside, PairAttention *next);
  CellRange cellRange() const;
  void selectBest(const Merit &merit, std::size_t begin, std::size_t end, std::size_t firstLocal,
                  std::size_t nBest);
  void mergeBest(const Merit &merit, std::size_t nBest);
  void shareOfWeights(std::size_t count, const float *weightSum);
  template <unsigned level> void fetchRows(const unsigned char *rows) const;
  SoftmaxWeights softmaxOf(unsigned h, std::int32_t *blockMaxima) const;
  void softmaxOfAll() const;
  float maximum(unsigned h) const;

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
