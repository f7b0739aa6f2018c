// SPDX-License-Identifier: Apache-2.0
//
// What approximate scores are made from, on its way to the parts that make them: rows of streaming memory, wave by
// wave, and the tail.
#pragma once

#include "key_index.hpp"
#include "stores/index.hpp"
#include <string>

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

// Rows of a buffer, each of one chunk of positions: in every wave `nRows` of them for each chunk.
class ColumnRows {
public:
  // Which rows: number * nChunks of the task's rows, and the chunk.
  struct Of {
    const char *name;            // that names of tensors and steps begin with
    poplar::Type type;           // of its numbers
    poplar::Tensor numbers;      // {slots, parts, nRows} UNSIGNED_INT
    unsigned rowsOfTask;         // all rows that a task has, of one chunk
    unsigned layerRows;          // of a layer: how far its rows are from those of the layer before
    std::size_t elementsOfBlock; // numbers of a row, of 64 positions
  };
  ColumnRows(const Context &context, const Waves &waves, const WaveIndex &wave, Of of);

  void addOffsets(const poplar::ComputeSet &cs) const;
  // Adds to `body` what brings them.
  void read(const poplar::RemoteBuffer &buffer, poplar::program::Sequence &body,
            const char *name) const;
  // From where they land to the parts that compute: {slots, parts, nRows, numbers of the part's positions}.
  void spread(Moves &moves, const poplar::Tensor &columns) const;
  poplar::Tensor createColumns() const;

private:
  std::string name(const char *what) const { return of.name + std::string(what); }
  std::size_t elements(unsigned positions) const { return positions / block * of.elementsOfBlock; }
  poplar::Tensor createLanding() const;

  const Context &context;
  const Placement &p;
  const CacheLayout &layout;
  const Waves &waves;
  const WaveIndex &wave;
  const Of of;
  const unsigned nRows;
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
