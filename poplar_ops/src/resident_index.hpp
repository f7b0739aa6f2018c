// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.hpp"

namespace sparq {

// Whether codes are taken out of their words once for all heads of a group
// (codelets/code_products.hpp).
bool scoredByGroup(const Plan &plan);

// Six workers have as many words of codes each: what a part has beyond that it lends to a part
// without positions, which scores it and makes weights of it.
struct Lending {
  unsigned nWords = 0;             // that a part lends, the last ones of its last block: 0, 2 or 4
  unsigned nPieces = 0;            // of other parts, on one that helps, at most
  unsigned first = 0, nHelper = 0; // parts that help
  unsigned nOwners = 0;            // parts that lend

  Lending(const Plan &plan, const Waves &waves);
  unsigned positions() const { return nWords * 8; } // of a piece
  unsigned nLent(unsigned part) const { return part < nOwners ? positions() : 0; }
  bool helps(unsigned part) const { return part >= first && part - first < nHelper; }
  // Pieces on a part that helps: of the parts from firstOwner on.
  unsigned firstOwner(unsigned helper) const { return (helper - first) * nPieces; }
  unsigned pieces(unsigned helper) const {
    const unsigned behind = nOwners - firstOwner(helper);
    return behind < nPieces ? behind : nPieces;
  }
};

// {slots, parts} UNSIGNED_INT: positions that a part which helps has scores of.
inline poplar::Tensor heldOf(const Context &context) {
  return context.perPart(poplar::UNSIGNED_INT, {}, "held");
}

} // namespace sparq
