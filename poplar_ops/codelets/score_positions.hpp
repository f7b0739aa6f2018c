// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores from fp16 components of the keys (contract E3, E6.2):
//   s[h, p] = (sum over j of q[h, i1[j]] * K[p, i1[j]], ascending from +0) * inv_tau[h]
#pragma once

#include "lanes.hpp"

namespace sparq {

// Scores of every step-th four of the positions [first, n); column(j) points to component j of
// position 0.
template <class Column>
static inline void scorePositions(const Column &column, const float *query, unsigned rank,
                                  float inverseTemperature, float *scores, unsigned first,
                                  unsigned n, unsigned step) {
  for (unsigned p = first; p < n; p += step) {
    Quad sum{};
    unsigned j = 0;
    for (; j + 2 <= rank; j += 2) { // two to a pass, which has a price of its own
      sum += query[j] * load<Quad>(column(j) + p);
      sum += query[j + 1] * load<Quad>(column(j + 1) + p);
    }
    if (j != rank)
      sum += query[j] * load<Quad>(column(j) + p);
    store(scores + p, sum * inverseTemperature);
  }
}

} // namespace sparq
