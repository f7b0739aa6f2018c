// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

// `wide`: rows are in fp32.
//
// Of a number of a key its place (7); bits, old word, mask, shift, OR, store, or about as much.
inline std::uint64_t keepKey(double d) { return multi(16 + share(d) * (13 + computed)); }
// Of two components whether they are here, address, load, store.
inline std::uint64_t keepValue(double d) { return multi(16 + share(d / 2) * (7 + computed)); }
// Of eight components of two heads four loads, eight times widen, sixteen numbers moved; of each a
// store and its place.
inline std::uint64_t spreadQuery(unsigned g, double d) {
  return shared((g + 1) / 2 * d / 8, sidePass(8 + 16, 4 + 8 * 2, 5 + computed));
}
// Two positions and one or two heads. Of a lane two components to a pass: a load of both, widen, or
// two loads; of each a load and an outer product; around each lane a loop. The lanes' sums are read
// and added: of two heads two of each wait in memory. Of a head a product, a store; addresses.
inline std::uint64_t pairScores(double length, unsigned g, unsigned d, bool wide) {
  const unsigned perLane = d / 8;
  const double products = perLane % 2 == 0
                              ? perLane / 2 * sidePass(wide ? 2 : 4, wide ? 4 : 3, repeated)
                              : perLane * sidePass(wide ? 1 : 2, 2, repeated);
  const auto ofHeads = [&](double n, double waiting) {
    return 8 * (products + counted) + 4 +
           sidePass((8 + 7 + 1) * n, (2 * waiting + 1) * n, computed);
  };
  return shared(length / 2, g / 2 * ofHeads(2, 2) + g % 2 * ofHeads(1, 0) + 4 + computed);
}
// Two positions to a pass: of each pair widen, of each head a product and a sum; a load of each
// pair and weight, of one head of both weights, and of both pairs in fp16. Of a unit of each head a
// sum to begin and to store; four addresses, loop and rows. Of a run its beginning, and of each
// block before it; of two heads whether any.
inline std::uint64_t unitValues(double nUnits, double perBlock, unsigned g, bool wide) {
  const double begin = 20 + nUnits / perBlock * (8 + computed), twos = g / 2;
  const auto ofHeads = [&](double n) {
    return 64 / 2 * sidePass(2 * (!wide + 2 * n), n == 1 ? 2 + wide : 2 + 2 * n, repeated) + 2 * n +
           4 + 3 + counted;
  };
  return multi(share(nUnits * twos) * ofHeads(2) + share(nUnits * (g % 2)) * ofHeads(1) +
               (std::min(twos, share(twos) + 1) + g % 2) * begin + 4 * twos);
}
// Of two blocks two loads and additions. Flush, divide, clamp, narrow, store; head and addresses.
inline std::uint64_t denseOutput(double nBlocks, double n) {
  return shared(n, nBlocks / 2 * sidePass(2, 2, repeated) + flushPair + clampPair +
                       2 * floatDivide + 18 + computed);
}

} // namespace cycles
} // namespace sparq
