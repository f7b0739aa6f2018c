// SPDX-License-Identifier: Apache-2.0
//
// The cache: append, prefill, layers, and what an index makes of a block.
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// ---- cache_append.cpp
inline std::uint64_t appendOffsets() { return single(8); }
// Load the half and its word; mask, shift, OR, store; advance the address.
inline std::uint64_t appendTail(double d) { return multi(10 + share(d) * (7 + reloaded)); }
// Widening and adding, beside six loads and four stores.
inline std::uint64_t appendSum(double width) { return shared(width / 8, pass(8, 10, reloaded)); }
inline std::uint64_t advanceLength() { return single(10); }
inline std::uint64_t anyFull(double n) { return single(n * (2 + repeated)); }
inline std::uint64_t flushOffsets(double d) { return multi(12 + share(d) * (2 + reloaded)); }

// ---- cache_fill.cpp
inline std::uint64_t fillLength() { return single(10); }
inline std::uint64_t fillOffsets(double n) { return shared(n, 3 + reloaded); }
// 4 x 4 halves: load eight words; eight masks, shifts and ORs; store eight; 12 addresses.
inline std::uint64_t fillColumns(double d, double n) {
  return shared(d / 4, n / 4 * (8 + 8 * (3 + 1) + 12 + reloaded));
}
// Load and store four halves.
inline std::uint64_t fillTail(double d, double n) {
  return shared(d, n / 4 * (2 + counted) + 6 + reloaded);
}
// A row: widen and add four pairs, beside three memory accesses.
inline std::uint64_t fillSum(double n, double width) {
  return shared(width / 8, n * (pass(4 * 2, 3, counted) + spilled(4 + 2)) + 8 + reloaded);
}
inline std::uint64_t activeToken() { return single(8); }

// ---- layers.cpp
// A load and a store; the addresses of a run.
inline std::uint64_t moveLayer(double nRows, double nCopies) {
  return multi(nRows * (share(nCopies) * (2 + computed) + 6));
}

// ---- lockstep.cpp
// Load, compare, copy.
inline std::uint64_t greatestOfIpus(double nIpus) { return single(nIpus * (3 + counted) + 2); }

// ---- quantise.cpp
inline std::uint64_t chunkFull() { return single(8); }
// The least and largest of eight keys at a time (widen and two selects for each pair), then of
// eight numbers; 40 for the step; for 64 codes load, widen, three of arithmetic, convert to an
// integer, subtract, limit, shift, OR.
constexpr double quantiseBlock = 8 * (4 * (1 + 2 * pairSelect) + 2 * 8 + counted) +
                                 14 * scalarSelect + 40 +
                                 64 * (2 + 3 + toInteger + 1 + 3 + 2 + counted);
inline std::uint64_t quantiseTail(double d) { return shared(d, quantiseBlock); }
inline std::uint64_t fillIndex(double d, double nBlocks) {
  return shared(d, nBlocks * quantiseBlock);
}
inline std::uint64_t fillTailIndex(double d, double nWords) {
  return shared(d, nWords * (2 + counted) + 64 / 4 * (2 + counted) + 6 + computed);
}

// ---- row_codes.cpp
// Four codes: load, two masks, a shift, two ORs; a store of two words and a load move them to the
// float registers, beside widen, subtract, multiply by pairs, narrow. A scale: load, choose, move.
constexpr double decodeFour = 1 + 2 + 1 + 2 + pairToFloat, decodeScale = 4 + toFloat;
// Eight components of a key: two fours, their scale, four words stored with their addresses.
constexpr double decodeOctet = 2 * decodeFour + decodeScale + 3;
inline std::uint64_t cutCodes(double n, double d, double width) {
  return multi(share(n * d / 8) * (decodeOctet + 4 * 2 + reloaded) +
               share(d / width) *
                   (6 + n * (width / 4 * (decodeFour + decodeScale + 1 + reloaded) + 6)));
}
// Two positions, an octet each: mix eight words by mask, shift and OR, and store them.
inline std::uint64_t codeColumns(double d) {
  return shared(d / 8, 64 / 2 * (2 * (decodeOctet + 3) + 8 * (3 + 1) + counted));
}
// A group: widen four pairs of lanes twice, drop the sign, compare; reduce lanes to one number; the
// scale: convert to an integer, four for rounding, convert back, two limits, a division. Four
// codes: load, widen, multiply, round, limit, multiply, store; mask, shift and join each in integer
// registers.
constexpr double roundGroup = 2 * (4 * 4 + computed) + 7 * 2 + toInteger + 4 + toFloat + 2 +
                              floatDivide +
                              4 * (2 * 2 + 2 * 6 + 2 + 2 * pairToInteger + 4 * 3 + 1 + computed);
inline std::uint64_t roundRows(double n, double width) {
  const double twos = static_cast<double>(static_cast<unsigned>((width + 31) / 32));
  return shared(n * twos, 2 * roundGroup + 8);
}

// ---- waves.cpp
// Load, compare, branch, copy.
inline std::uint64_t longestRow(double nSlots) { return shared(nSlots, 4 + computed); }
inline std::uint64_t nextWave() { return single(5 * 4 + 8); }

} // namespace sparq::cycles
