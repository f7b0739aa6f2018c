// SPDX-License-Identifier: Apache-2.0
//
// The vertices that score positions from a key index of 8, 4 or 2 bits (docs/exactness.md E9): for
// each block the coefficients of the query, then sums of products with its codes.
#pragma once

#include "query_components.hpp"
#include "softmax.hpp"

namespace sparq {

// The tail by position: {slots, nTailParts, headDim, ...}, each piece on the part that scores it.
struct ScoredTail {
  poplar::Tensor
      columns;          // HALF: the piece; with an index of few bits the block that is being filled
  poplar::Tensor index; // UNSIGNED_INT: with an index of few bits, the piece's records
};

// Of one round. The first two are for the positions of a wave, from columns {slots, parts, rank,
// words}; the others for the tail.
class IndexScores {
public:
  IndexScores(const Context &context, const SparqSettings &settings, const Waves &waves,
              const QueryComponents &q, const Scores &scores);

  void addCoefficients(const poplar::ComputeSet &cs, const poplar::Tensor &columns) const;
  void addScores(const poplar::ComputeSet &cs, const WaveIndex &wave,
                 const poplar::Tensor &columns) const;
  void addTailCoefficients(const poplar::ComputeSet &cs, const ScoredTail &tail) const;
  void addTailScores(const poplar::ComputeSet &cs, const ScoredTail &tail) const;

private:
  struct Coefficients {
    poplar::Tensor coefficients;   // {slots, parts, blocks, groupSize, rank} INT
    poplar::Tensor units, offsets; // {slots, parts, blocks, groupSize} FLOAT
  };
  Coefficients createCoefficients(unsigned length, const std::string &name) const;
  unsigned columnWords(unsigned positions) const;
  // Adds one vertex for so many positions, of which there is room for `length`, with what all such
  // have.
  void coefficientVertex(const poplar::ComputeSet &cs, const char *type, unsigned slot,
                         unsigned part, const Coefficients &of, unsigned length, unsigned positions,
                         std::vector<Edge> edges, std::vector<Setting> settings) const;
  void scoreVertex(const poplar::ComputeSet &cs, const char *type, unsigned slot, unsigned part,
                   const Coefficients &of, unsigned length, unsigned positions,
                   std::vector<Edge> edges, std::vector<Setting> settings) const;

  const Context &context;
  const CacheLayout &layout;
  const Waves &waves;
  const QueryComponents &q;
  const Scores &scores;
  const unsigned g, r, bits;
  const float limit;
  const Coefficients ofWave, ofTail;
};

} // namespace sparq
