// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// A run of words for each row and pair: load, store. A slice of values for each row, 64 bits at a
// time.
inline std::uint64_t cutRows(double n, double d, double width) {
  return multi(share(n * 4) * (d / 8 * (2 + counted) + 8 + reloaded) +
               share(d / width) * (6 + n * (width / 4 * (2 + counted) + 4 + counted)));
}
// One in nSets of the head's rows is the part's own: copy its words, or 64 bits at a time. The
// other rows cost their place.
inline std::uint64_t insertRows(double nRows, unsigned width, double nSets) {
  const double own = static_cast<double>(static_cast<unsigned>(share(nRows) / nSets + 1));
  return multi(18 + share(nRows) * (5 + computed) +
               own *
                   ((width % 4 == 0 ? width / 4 * (2 + counted) : width / 2 * (2 + computed)) + 8));
}
inline std::uint64_t insertNewest(double nOwners, double width) {
  return multi(nOwners * (2 + repeated) + 14 + share(width / 2) * (2 + computed));
}

} // namespace sparq::cycles
