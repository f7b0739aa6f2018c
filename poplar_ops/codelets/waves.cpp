// SPDX-License-Identifier: Apache-2.0
//
// The loop over waves: as many as the longest batch element needs, not as many as the capacity has.
#include "lanes.hpp"

namespace sparq {

// Moves to the next wave and says whether it has any position. Start from wave = 2^32 - 1.
class NextWave : public poplar::Vertex {
public:
  WordsIn filled; // [nSlots]
  poplar::InOut<unsigned> wave;
  poplar::Output<bool> more;
  unsigned nSlots, stride, chunk;

  bool compute() {
    unsigned longest = 0;
    for (unsigned slot = 0; slot != nSlots; ++slot) {
      const unsigned flushed = filled[slot] & ~(chunk - 1);
      longest = flushed > longest ? flushed : longest;
    }
    const unsigned next = *wave + 1;
    *wave = next;
    *more = next * stride < longest;
    return true;
  }
};

} // namespace sparq
