// SPDX-License-Identifier: Apache-2.0
//
// The buffer of hot rows of a KV head. hot_find.cpp finds the selected positions that are in it,
// hot_misses.cpp decides which rows are fetched for the others, hot_places.cpp deals places to
// them, and hot_insert.cpp copies the rows in. Results never depend on what was in the buffer.
//
// A place of the buffer belongs to an owner: place p to owner p % nOwners, as its way p / nOwners.
// Owners and ways are searched side by side. A miss takes the way of its owner that was selected
// least recently, never one that is selected now. Misses are dealt evenly; each step begins with
// another owner.
//
// A list has topK entries, one for each selected position, ascending; min(filled, topK) of them are
// used. Places, positions in `held` and rows to fetch are written plus 1; 0 means none.
//
// Example: two owners of two ways, so four places. Place 0 holds position 3, place 1 holds 8, place
// 2 holds 5, place 3 is empty. A step that begins with owner 0 selects the positions 3, 6, 8, 9:
//
//   entry               0  1  2  3
//   position            3  6  8  9
//   FindHot, owner 0    1  0  0  0     place 0 is its way 0
//   FindHot, owner 1    0  0  2  0     place 1 is its way 0
//   MergePlaces         1  0  2  0
//   ListMisses             0     1     by number: entries {1, 3}, rows {6, 9}
//   DealPlaces, owner 0    3           its way 1, place 2: position 5 goes
//   DealPlaces, owner 1          4     its way 1, place 3: there was none
//   MergePlaces         1  3  2  4
#pragma once

#include "halves.hpp"

namespace sparq {

// Keys of hot rows are spread over 2^setShift sets, by the low bits of the place.
inline unsigned setOf(unsigned place, unsigned setShift) { return place & ((1u << setShift) - 1); }

// Wave w takes the misses [w * waveRows, (w + 1) * waveRows) of a list of several heads. This is
// the part of them that one KV head owns, by numbers in that head's own list. The head's misses
// begin at first[0] in the list; its first first[1] misses came before.
struct OfWave {
  unsigned begin, stop; // of the head's own list
  int offset;           // of its miss 0 in the wave
  OfWave(unsigned wave, unsigned waveRows, const unsigned *first, unsigned n)
      : offset(static_cast<int>(first[0] - wave * waveRows)) {
    const unsigned from = wave * waveRows, end = from + waveRows, before = first[0],
                   own = from > before ? from - before : 0, last = end > before ? end - before : 0;
    begin = minimum(own < first[1] ? first[1] : own, n);
    stop = last < begin ? begin : minimum(last, n);
  }
};

} // namespace sparq
