// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arith/key_index.hpp"
#include "halves.hpp"

namespace sparq {

// The record of one component of a block, from its 64 keys.
static inline void quantiseBlock(const half *keys, unsigned indexBits, unsigned *record) {
  Lanes least = loadLanes(keys), most = least;
  for (unsigned i = nLanes; i != blockSize; i += nLanes) {
    const Lanes x = loadLanes(keys + i);
    least = select(x < least, x, least);
    most = select(x > most, x, most);
  }
  float low = least[0], high = most[0];
  for (unsigned i = 1; i != nLanes; ++i) {
    low = least[i] < low ? least[i] : low;
    high = most[i] > high ? most[i] : high;
  }
  const half step = narrow(unroundedStep(low, high, indexBits));
  const float inverse = inverseStep(static_cast<float>(step));
  packCodes(record, indexBits, [&](unsigned i) {
    return codeOf(static_cast<float>(keys[i]), low, inverse, indexBits);
  });
  record[codeWords(indexBits)] = static_cast<unsigned>(bitcast<unsigned short>(step)) |
                                 static_cast<unsigned>(bitcast<unsigned short>(narrow(low))) << 16;
}

} // namespace sparq
