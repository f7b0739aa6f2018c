// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "halves.hpp"

namespace sparq {

// Keys of hot rows are spread over 2^setShift sets, by the low bits of the slot.
inline unsigned setOf(unsigned slot, unsigned setShift) { return slot & ((1u << setShift) - 1); }

} // namespace sparq
