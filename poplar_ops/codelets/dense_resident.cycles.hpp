// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq {
namespace cycles {

// Of a number of a key its place (4), bits, old word, mask, shift, OR, store.
inline std::uint64_t keepKey(double d) { return multi(16 + share(d) * (10 + computed)); }
// Of eight components their place; of a pair load, store, address.
inline std::uint64_t keepValue(double d) {
  return multi(16 + share(d / 8) * (6 + 4 * 3 + computed));
}
// Of two components of two heads two loads, widen, two stores; four numbers moved, the place (5).
inline std::uint64_t spreadQuery(unsigned g, double d) {
  return shared((g + 1) / 2 * d / 2, pass(2 + 4, 4 + 5 + 4, computed));
}
// Two positions and two heads. Of each lane two components to a pass: a load of both, widen, of
// each a load and an outer product; then four sums, read by two and stored. Of a head eight loads,
// seven additions, a product, a store.
inline std::uint64_t pairScores(double length, unsigned g, unsigned d) {
  const unsigned perLane = d / 8;
  const double products = perLane % 2 == 0 ? perLane / 2 * sidePass(4, 3, repeated)
                                           : perLane * sidePass(2, 2, repeated),
               lane = products + sidePass(2, 2 + 2, counted), head = sidePass(8, 8 + 2, 0);
  return shared(length / 2, (g + 1) / 2 * (8 * lane + 4 + computed) + g * head + 4 + computed);
}
// Two positions to a pass: of each pair widen, of each head a product and a sum; a load of each
// pair, or of both, and weights. Of a unit its block and address, of a pair rows and stores.
inline std::uint64_t unitValues(unsigned nUnits, unsigned g) {
  const double pairs = nUnits * 4.0, ofUnit = 6 + computed;
  const auto ofHeads = [&](double n) {
    return 64 / 2 * sidePass(2 * (1 + 2 * n), (n == 1 ? 1 : 2) + 2 * n, repeated) + 12 + 2 * n;
  };
  return multi(share(pairs * (g / 2)) * ofHeads(2) + share(pairs * (g % 2)) * ofHeads(1) +
               (g + 1) / 2 * nUnits * ofUnit);
}
// Of a block a load, an address, an addition. Flush, divide, clamp, narrow, store; the head.
inline std::uint64_t denseOutput(double nBlocks, double n) {
  return shared(n * 4, nBlocks * pass(1, 2, repeated) + flushPair + clampPair + 2 * floatDivide +
                           8 + computed);
}

} // namespace cycles
} // namespace sparq
