// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Two rows a pass: widen, multiply and add each pair; for each row the weight, the address, and the
// values in 64 bits, or in 32 where there are two.
inline std::uint64_t weightedValues(double nBlocks, double nRows, double width, double g) {
  const double lanes = width > 12 ? 8 : 2, // as the codelet does
      pairs = lanes / 2, words = lanes == 8 ? 2 : 1,
               row = sidePass(2 * pairs * 3, 2 * (2 + words), computed) / 2 + spilled(pairs + 2);
  return shared(nBlocks * g * (width / lanes), std::min(nRows, 64.0) * row + pairs + 12);
}
// Four pairs for each block; load and store the accumulator.
inline std::uint64_t foldBlocks(double nBlocks, double width, double g) {
  return shared(g * width / 8,
                nBlocks * (pass(4, 4, repeated) + spilled(4 + 1)) + 8 + 4 + reloaded);
}

} // namespace sparq::cycles
