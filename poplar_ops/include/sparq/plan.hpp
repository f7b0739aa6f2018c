// SPDX-License-Identifier: Apache-2.0
//
// Who computes what, and in how many steps: decided from the shape, the settings and the target
// alone, before any graph exists.
#pragma once

#include "sparq/settings.hpp"
#include <cstdint>
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

// Layout of the cache in streaming memory.
struct CacheLayout {
  unsigned capacity;        // of the request, rounded up to whole chunks
  unsigned positionsPerRow; // of the rows of keys and values: 1, or as many as fill a packet where
                            // rows are only read in sequence
  unsigned chunk;           // positions in a row of key_columns, a power of two; 0: no key columns
  unsigned tailLength; // positions of the unfilled chunk that one part keeps: piece i is on part
  unsigned tailFirst;  // tailFirst + i

  // Pieces of the tail.
  unsigned nTailParts() const { return chunk ? (chunk + tailLength - 1) / tailLength : 0; }
  unsigned nChunks() const { return chunk ? capacity / chunk : 0; }
};

// How positions come on chip: waves of `stride` positions of every slot, `length` to a part.
struct Waves {
  unsigned stride, length, nWaves;
  unsigned tailLength; // positions of the tail segment of a part
  unsigned tailFirst;  // first part that has one
  unsigned chunk;      // positions below the length that a wave may read come in multiples of this

  // Positions that a part has room for.
  unsigned partPositions() const { return nWaves * length + tailLength; }
  unsigned nSegments() const { return nWaves + (tailLength != 0); }
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

// What the programs of a graph need at most.
struct Programs {
  bool denseSram = false;
  bool denseStreaming = false;
  bool append = true;      // without it, and without sparq, rows are packed for reading in sequence
  unsigned fillTokens = 0; // of one call of the prefill program; 0: there is none
  std::vector<SparqSettings> sparq;
};

struct Plan {
  Shape shape;
  Placement placement;
  CacheLayout layout;
  Waves dense;              // of dense-streaming
  Waves resident;           // of dense-sram: one wave, all of the cache
  std::vector<Waves> sparq; // one for each entry of Programs::sparq
};

// Throws Error where a shape or a setting is out of range.
Plan makePlan(const poplar::Target &target, const Shape &shape, const Programs &programs);

} // namespace sparq
