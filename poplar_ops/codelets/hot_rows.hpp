// SPDX-License-Identifier: Apache-2.0
//
// The buffer of hot rows of a KV head: which selected positions are in it (hot_find.cpp), which rows are
// fetched for the others (hot_misses.cpp), which places these get (hot_places.cpp), and how they come in
// (hot_insert.cpp). Results never depend on what was in it.
//
// A place of the buffer belongs to an owner: place p to owner p % nOwners, whose way p / nOwners it is.
// Owners and ways are looked at side by side. A miss takes, of the owner it is dealt to, the way that
// was selected least recently, never one that is selected now. Misses are dealt evenly, beginning with
// another owner at each step.
//
// Lists have topK entries, one a selected position, ascending; of these min(filled, topK) are in use.
// A place is written as place + 1, 0 where there is none; so is a position in `held`, and a row to fetch.
//
// Two owners of two ways, so four places. Held: position 3 in place 0, 8 in place 1, 5 in place 2, none in
// place 3. A step that begins with owner 0 selects the positions 3, 6, 8 and 9:
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

// Wave w takes the misses [w * waveRows, (w + 1) * waveRows) of a list of several heads. This is the part of
// them that one KV head owns, by numbers in that head's own list. The head's misses begin at first[0] in
// the list; its first first[1] misses came before.
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
