// SPDX-License-Identifier: Apache-2.0
//
// The loop over waves: it ends behind the longest batch element, not at the capacity.
#include "lanes.hpp"

namespace sparq {

static inline unsigned maximum(unsigned a, unsigned b) { return a > b ? a : b; }

// The largest number of positions in full chunks, one partial result a worker: once a query.
struct LongestRow : poplar::MultiVertex {
  WordsIn filled;   // [nSlots]
  WordsOut longest; // [6]
  unsigned nSlots, chunk;

  void compute(unsigned worker) {
    unsigned most = 0;
    for (unsigned slot = worker; slot < nSlots; slot += numWorkers())
      most = maximum(filled[slot], most);
    longest[worker] = most & ~(chunk - 1);
  }
};

// Moves to the next wave; `more` is whether it has any position. Starts from wave = 2^32 - 1.
struct NextWave : poplar::Vertex {
  WordsIn longest; // [6]
  poplar::InOut<unsigned> wave;
  poplar::Output<bool> more;
  unsigned stride;

  void compute() {
    unsigned most = longest[0];
    for (unsigned i = 1; i != 6; ++i)
      most = maximum(longest[i], most);
    const unsigned next = *wave + 1;
    *wave = next;
    *more = next * stride < most;
  }
};

} // namespace sparq
