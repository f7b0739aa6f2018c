// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// A load and a store; the addresses of a run.
inline std::uint64_t moveLayer(double nRows, double nCopies) {
  return multi(nRows * (share(nCopies) * (2 + computed) + 6));
}
inline std::uint64_t moveTail(double nRows, double nCopies, double nWords) {
  return multi(nRows * ((share(nCopies) + share(nWords)) * (2 + computed) + 2 * 6));
}

} // namespace sparq::cycles
