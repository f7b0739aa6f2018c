// SPDX-License-Identifier: Apache-2.0
//
// Brings key columns to the parts that compute approximate scores: rows of streaming memory, wave
// by wave, and the tail.
#pragma once

#include "key_index.hpp"
#include "stores/index.hpp"

namespace sparq {

// Pairs of tensors of one type, for one copy.
struct Moves {
  std::vector<poplar::Tensor> from, to;
  void add(const poplar::Tensor &source, const poplar::Tensor &target) {
    from.push_back(source.flatten());
    to.push_back(target.flatten());
  }
  void copy(const Context &context, const poplar::DebugContext &dc) const {
    context.copy(concat(from), concat(to), dc);
  }
};

// The rows of the query's components, each of one chunk of positions, in streaming memory.
class ColumnRows {
public:
  // components: {slots, parts, rank} UNSIGNED_INT
  ColumnRows(const Context &context, const Waves &waves, const WaveIndex &wave,
             poplar::Tensor components);

  void addOffsets(const poplar::ComputeSet &cs) const;
  // Adds the remote copy of a wave to `body`.
  void read(const poplar::RemoteBuffer &buffer, poplar::program::Sequence &body,
            const char *name) const;
  // From where they land to the parts that compute: {slots, parts, rank, a part's positions}.
  void spread(Moves &moves, const poplar::Tensor &columns) const;
  poplar::Tensor createColumns() const;

private:
  poplar::Tensor createLanding() const;

  const Context &context;
  const Placement &p;
  const CacheLayout &layout;
  const Waves &waves;
  const WaveIndex &wave;
  const poplar::Tensor components;
  const unsigned rank;
  const std::size_t rowSize;
  const unsigned chunksPerWave;
  const unsigned nOwn; // chunks that a part addresses
  poplar::Tensor landing, offsets;
};

// The tail, by position, on the parts that score it.
class TailColumns {
public:
  TailColumns(const Index &store, const Context &context);

  // From where it is kept: `byPiece` is what is cut up, fp16 columns of the chunk, or records.
  void gather(Moves &byPiece) const;
  // The block that is being filled, to every piece.
  void gatherOpenBlock(Moves &moves) const;

  const ScoredTail &tail() const { return tail_; }

private:
  // A tensor {slots, nTailParts, shape...} with each piece on the part that scores it.
  poplar::Tensor createPieces(const poplar::Type &type, const std::vector<std::size_t> &shape,
                              const char *name) const;

  const Index &store;
  const Context &context;
  const CacheLayout &layout;
  ScoredTail tail_;
};

// Whether the tail is scored beside the only wave: one wave, and other parts have the tail.
inline bool tailBeside(const CacheLayout &layout, const Waves &waves) {
  return waves.nWaves == 1 && layout.tailFirst >= waves.nWaveParts();
}

} // namespace sparq
