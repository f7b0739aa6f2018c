// SPDX-License-Identifier: Apache-2.0
//
// Who computes what, and in how many steps: decided from the shape, the settings and the target
// alone, before any graph exists.
#pragma once

#include "sparq/settings.hpp"
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace poplar {
class Target;
}

namespace sparq {

// A task (one KV head of one batch element) gets a slot: `parts` neighbouring tiles. Where there
// are more tasks than slots they take turns, in rounds.
struct Placement {
  unsigned nTasks, slots, nRounds, parts;
  // Components of a value row that one part sums and combines, a multiple of 8; the first nSlices
  // parts of a slot do.
  unsigned width, nSlices;

  unsigned tile(unsigned slot, unsigned part) const { return slot * parts + part; }
  unsigned home(unsigned slot) const { return tile(slot, 0); }
  unsigned firstTask(unsigned round) const { return round * slots; }
  unsigned nActive(unsigned round) const {
    return firstTask(round) + slots <= nTasks ? slots : nTasks - firstTask(round);
  }
};

// Where a cache keeps what. Streaming memory has two buffers, which hold one layer's rows behind
// the other's, and behind the last some rows more than are in use (RemoteRows):
//
//   rows         one row is positionsPerRow * headDim numbers: all keys, task by task, then one
//                scratch row for each task; behind them the values in the same order
//   key_columns  one row is `chunk` positions of one component of the keys; behind them headDim
//                scratch rows for each slot. With indexBits 16 fp16 numbers, else words: a record
//                for each block of 64 positions, its codes and their parameters side by side
//                (arith/key_index.hpp)
//
// The positions since the last full chunk are the tail: their columns stay in SRAM, those of
// tailComponents components on each part of the task's slot, so that no tile has much of it. With
// an index of few bits these are the records of full blocks, and fp16 columns of one block, the one
// that is being filled. To be scored, they are brought together by position: pieces of tailLength
// positions, on the last parts of the slot.
struct CacheLayout {
  unsigned nTasks, headDim;
  unsigned indexDim;        // components that have key columns, the first ones
  unsigned nLayers;         // all of one shape; below, rows are those of layer 0
  unsigned capacity;        // of the request, rounded up to whole chunks
  unsigned positionsPerRow; // 1, or a packet's worth if rows are only read in sequence
  unsigned chunk;           // a power of two; 0: no key columns, and so no tail
  unsigned tailLength;
  unsigned tailFirst;       // piece i of the tail is scored on part tailFirst + i
  unsigned tailComponents;  // a multiple of 4: a part's share of a key is whole 64-bit words
  unsigned indexBits;       // of the key columns: 16, 8, 4 or 2
  unsigned rowsPerPosition; // 2: keys and values apart; 1: both in one row
  std::size_t rowElements;  // numbers of a row
  bool wideRows;            // in fp32, which the fp16 of rows becomes exactly: SRAM only

  bool quantised() const { return indexBits != 16; }
  // Of what SRAM keeps of a layer: all layers', and where there are several the one being worked
  // on.
  unsigned nCopies() const { return nLayers == 1 ? 1 : nLayers + 1; }
  // Size of `positions` positions of a component in key columns, a multiple of 64: in numbers of
  // fp16 or words, and in bytes.
  std::size_t columnElements(unsigned positions) const;
  std::size_t columnBytes(unsigned positions) const;
  // Positions that the tail holds in fp16, a power of two.
  unsigned tailWidth() const;
  // Of these, the ones that a part needs to score its piece.
  unsigned scoredWidth() const;
  // Bytes that a task's tail takes on a tile that keeps some of it, and on one that scores it.
  std::size_t tailBytes() const {
    return tailComponents * (tailWidth() * std::size_t(2) + (quantised() ? columnBytes(chunk) : 0));
  }
  std::size_t scoredBytes() const {
    return indexDim *
           (scoredWidth() * std::size_t(2) + (quantised() ? columnBytes(tailLength) : 0));
  }
  // Parts that keep some of the tail.
  unsigned nTailSlices() const { return (indexDim + tailComponents - 1) / tailComponents; }
  unsigned nTailParts() const { return (chunk + tailLength - 1) / tailLength; }
  unsigned nChunks() const { return chunk ? capacity / chunk : 0; }
  std::size_t rowsPerTask() const { return capacity / positionsPerRow; }

  std::size_t keyRow(unsigned task, unsigned position) const {
    return task * rowsPerTask() + position / positionsPerRow;
  }
  std::size_t scratchRow(unsigned task) const { return nTasks * rowsPerTask() + task; }
  // How far behind a row of keys the same row of values is.
  std::size_t valueRow() const { return scratchRow(nTasks); }
  // The distance in rows from one layer to the next.
  std::size_t layerRows() const { return rowsPerPosition * valueRow(); }

  std::size_t columnRow(unsigned task, unsigned component, unsigned chunkIndex) const {
    return (std::size_t(task) * headDim + component) * nChunks() + chunkIndex;
  }
  std::size_t scratchColumn(unsigned slot) const {
    return columnRow(nTasks, 0, 0) + std::size_t(slot) * headDim;
  }
  // As layerRows; `slots` slots have scratch rows.
  std::size_t layerColumns(unsigned slots) const { return scratchColumn(slots); }
};

// How positions come on chip: waves of `stride` positions of every slot, `length` to a part.
struct Waves {
  unsigned stride, length, nWaves;
  unsigned tailLength; // positions of the tail segment of a part
  unsigned tailFirst;  // first part that has one
  unsigned chunk;      // positions below the length that a wave may read come in multiples of this

  // Positions that a part has room for.
  unsigned partPositions() const { return nWaves * length + tailLength; }
  // Parts that waves reach: the first ones.
  unsigned nWaveParts() const { return (stride + length - 1) / length; }
  // Positions of a part that may hold data: what its work is.
  unsigned nOwn(unsigned part) const {
    return nWaves * room(part) + (tailLength != 0 && part >= tailFirst ? tailLength : 0);
  }
  // Positions of one wave that land on a part: `length`, less on the last part in use, none on
  // those behind it.
  unsigned room(unsigned part) const {
    const unsigned first = part * length;
    return first >= stride ? 0 : stride - first < length ? stride - first : length;
  }
};

// Of the greatest power of two that is not above n.
inline unsigned log2Of(unsigned n) {
  unsigned log = 0;
  while (n >>= 1)
    ++log;
  return log;
}

// The buffer of hot rows of a task, in a cache in three tiers. Place i belongs to owner i %
// nOwners, a part of the task's slot. Keys are spread over parts by pairs of lanes and by i %
// nSets, values by components.
struct HotRows {
  unsigned nPlaces = 0;            // a multiple of nOwners; 0: there is no such buffer
  unsigned nOwners = 1, nSets = 1; // powers of two, nSets not above nOwners
  unsigned width = 0;              // components of a value on one part: a divisor of headDim
  // Rows that a wave fetches for all tasks together, and the number of lists. The tasks of a list
  // share waveRows / nLists rows, a multiple of cutRows.
  unsigned waveRows = 0, nLists = 1;
  // The last rows of a step come in a smaller wave, where they are at most this number.
  unsigned fewRows = 0;
  // Where most rows are missing, every task fetches this number of its own rows at a time; 0:
  // never.
  unsigned headRows = 0;

  static constexpr unsigned cutRows = 4;   // that arrive on one tile
  static constexpr unsigned readSizes = 8; // of a wave
  // Costs of a wave and of the small last one beside their rows, as the number of rows that could
  // be read in that time.
  static constexpr unsigned waveCost = 128, fewCost = 85;
  static constexpr unsigned nPairs = 4; // of lanes: docs/exactness.md E3
  unsigned listRows() const { return waveRows / nLists; }
  // A wave reads only the rows that are left, rounded up to this unit.
  unsigned readUnit() const {
    const unsigned least = (listRows() + readSizes - 1) / readSizes;
    return (least + cutRows - 1) / cutRows * cutRows;
  }
  // The most bytes of a row on one part: pieces of keys and of values.
  unsigned partBytes(unsigned headDim, unsigned parts) const {
    const auto most = [parts](unsigned pieces) { return (pieces + parts - 1) / parts; };
    return 2 * (most(nPairs * nSets) * headDim / nPairs + most(headDim / width) * width);
  }
  // How often the parts of a slot hold the values: twice where there are parts for it, one copy for
  // each half of the list; else once.
  unsigned valueCopies(unsigned headDim, unsigned parts) const {
    return 2 * (headDim / width) <= parts ? 2 : 1;
  }
  unsigned valueParts(unsigned headDim, unsigned parts) const {
    return valueCopies(headDim, parts) * (headDim / width);
  }
  unsigned nWays() const { return nPlaces / nOwners; }
  unsigned rowsOfSet() const { return nPlaces / nSets; }
  unsigned setShift() const { return log2Of(nSets); }
};

// The history of window attention of a batch element (docs/exactness.md E11): shares of the last
// nRecent steps and their sum, by position, in pieces of `length` positions that are spread over
// all parts of all slots.
struct History {
  unsigned nRecent = 0; // 0: nothing
  unsigned length = 0, nPieces = 0;
  unsigned nTiles = 1; // that have pieces

  unsigned tile(unsigned element, unsigned piece) const {
    return (element * nPieces + piece) % nTiles;
  }
  // Bytes of one piece: in each layer; and the sums of the layer that is being worked on, where
  // there are several.
  std::uint64_t pieceBytes(unsigned nLayers) const {
    return nLayers * (std::uint64_t(nRecent + 1) * length * 4 + 4) +
           (nLayers != 1 ? length * 4 : 0);
  }
};

struct Kernel;    // sparq/kernels.hpp
struct StoreKind; // src/stores/store.hpp

// One attention program: a kernel, and the settings that it takes, if any.
struct Attention {
  const Kernel *kernel = nullptr;
  SparqSettings settings{};
  WindowSettings window{};

  bool operator==(const Attention &o) const {
    return kernel == o.kernel && settings == o.settings && window == o.window;
  }
  // Positions that it attends to, most.
  unsigned topK() const;
  // Whether it selects by the attention of earlier steps.
  bool remembers() const;
};

// What a caller chooses of a cache in three tiers. Results do not depend on it.
struct TierOptions {
  static constexpr unsigned maxRows = 1u << 16;

  // Hot rows of a KV head, rounded up; 0: four times the largest topK of the programs, at most the
  // capacity.
  unsigned hotRows = 0;
  // For planning: the share of selected rows that is taken to be hot, instead of looking. Below 0:
  // looks.
  double assumedHitRate = -1;
  std::vector<unsigned> assumedMisses; // of each task, instead of a rate; empty: the rate
};

// What a graph is to have on one cache.
struct Programs {
  std::vector<Attention> attention;
  unsigned nLayers = 1; // of one shape, served by these programs one after another
  bool append = true;   // without it, and without key columns, rows are packed for reading in
                        // sequence
  TierOptions tiers{};  // where the cache is in three tiers
  // Nothing else needs the tiles: keys and values in SRAM are wide if there is room.
  bool mayWiden = false;
  // For a plan of several IPUs: only what passes between them. There is no cache, and attention is
  // a branch that is never taken.
  bool onlyBetween = false;
};

struct PlannedAttention : Attention {
  Waves waves{};
};

struct Plan {
  Shape shape;
  Placement placement;
  CacheLayout layout;
  std::vector<const StoreKind *> stores; // that a cache has
  HotRows hot{};
  History history{};
  double assumedHitRate = -1; // see TierOptions
  std::vector<unsigned> assumedMisses;
  std::vector<PlannedAttention> attention; // one for each entry of Programs::attention
};

// Throws Error where a shape or a setting is out of range, or where kernels do not share a cache.
Plan makePlan(const poplar::Target &target, const Shape &shape, const Programs &programs);

} // namespace sparq
