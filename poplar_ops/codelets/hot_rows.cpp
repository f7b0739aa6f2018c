// SPDX-License-Identifier: Apache-2.0
//
// The buffer of hot rows of a KV head: which selected positions are in it, which slots the others get,
// and how their rows come in. Results never depend on what was in it.
//
// A slot of the buffer belongs to an owner: slot s to owner s % nOwners, whose way s / nOwners it is.
// Owners and ways are looked at side by side. A miss takes, of the owner it is dealt to, the way that was
// selected least recently (or holds the oldest position), never one that is selected now. Misses are dealt
// evenly, beginning with another owner at each step.
//
// Lists below have topK entries, one a selected position, ascending; of these min(filled, topK) are in use.
// A slot is written as slot + 1, 0 where there is none; so is a position in `held`, and a row to fetch.
#include "hot_rows.hpp"

namespace sparq {

// A worker's entries of a list: those before `stop` are in use.
struct Share {
  unsigned begin, end, stop;
  Share(unsigned topK, unsigned filled, unsigned worker, unsigned nWorkers) {
    const unsigned each = (topK + nWorkers - 1) / nWorkers;
    begin = minimum(worker * each, topK);
    end = minimum(begin + each, topK);
    stop = minimum(end, filled);
    stop = stop < begin ? begin : stop;
  }
};

// Where the owner's ways have positions of the list: each worker some entries.
class FindHot : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  poplar::Input<unsigned> clock; // steps before this one
  WordsIn positions;             // [topK]
  WordsIn held;                  // [nLayers][nWays]
  WordsInOut stamps;             // [nLayers][nWays]: the step that last selected it
  WordsOut slots;                // [topK]: of the owner's hits
  WordsOut nFound;               // [6]: how many, of each worker's entries
  unsigned topK, nWays, owner, nOwners;

  bool compute(unsigned worker) {
    const Share own(topK, *filled, worker, numWorkers());
    const unsigned begin = own.begin, stop = own.stop;
    for (unsigned e = begin; e != own.end; ++e)
      slots[e] = 0;
    nFound[worker] = 0;
    if (begin == stop)
      return true;
    // Copies, for a stamp that is stored could be any of these.
    const unsigned ways = nWays, *const ownHeld = &held[*layer * ways];
    unsigned *const ownStamps = &stamps[*layer * ways];
    unsigned found = 0;
    const unsigned lowest = positions[begin], highest = positions[stop - 1];
    for (unsigned way = 0; way != ways; ++way) {
      const unsigned position = ownHeld[way] - 1; // of no position: too large
      if (position < lowest || position > highest)
        continue;
      unsigned first = begin, n = stop - begin; // the last entry that is not beyond it
      while (n > 1) {
        const unsigned step = n / 2;
        if (positions[first + step] <= position)
          first += step;
        n -= step;
      }
      if (positions[first] != position)
        continue;
      slots[first] = way * nOwners + owner + 1;
      ownStamps[way] = *clock + 1;
      ++found;
    }
    nFound[worker] = found;
    return true;
  }
};

// How many of its ways an owner may give away: all but its hits. Beside it what it deals is cleared.
class FreeWays : public poplar::MultiVertex {
public:
  WordsIn nFound; // [6]
  poplar::Output<unsigned> nFree;
  WordsOut byEntry, byMiss; // [topK]: see DealSlots
  unsigned nWays, topK;

  bool compute(unsigned worker) {
    for (unsigned e = worker; e < topK; e += numWorkers()) {
      byEntry[e] = 0;
      byMiss[e] = 0;
    }
    if (worker != 0)
      return true;
    unsigned n = nWays;
    for (unsigned w = 0; w != numWorkers(); ++w)
      n -= nFound[w];
    *nFree = n;
    return true;
  }
};

// Hits of all owners, by the worker whose entries they are.
class SumFound : public poplar::MultiVertex {
public:
  WordsIn nFound; // [nOwners][6]
  WordsOut nHits; // [6]
  unsigned nOwners;

  bool compute(unsigned worker) {
    unsigned n = 0;
    for (unsigned owner = 0; owner != nOwners; ++owner)
      n += nFound[owner * numWorkers() + worker];
    nHits[worker] = n;
    return true;
  }
};

// What owners have found, or dealt, for some entries of the list: one of them has it, the others have 0.
class MergeSlots : public poplar::MultiVertex {
public:
  WordsIn found;  // [nOwners][nEntries]
  WordsIn before; // [nEntries]: what was known already
  WordsOut slots; // [nEntries]
  unsigned nOwners, nEntries;

  bool compute(unsigned worker) {
    for (unsigned e = worker; e < nEntries; e += numWorkers()) {
      unsigned slot = before[e], at = e;
      const auto add = [&] {
        slot |= found[at];
        at += nEntries;
      };
      unsigned owner = 0;
      for (; owner + 4 <= nOwners; owner += 4) // four to a pass, which has a price of its own
        add(), add(), add(), add();
      for (; owner != nOwners; ++owner)
        add();
      slots[e] = slot;
    }
    return true;
  }
};

// Which way of an owner goes first: of those that are not selected now the one with the smallest key, by
// number where these are equal. There is one that is not selected now; its stamp is below all others' then.
static inline unsigned victim(const unsigned *held, const unsigned *stamps, unsigned nWays,
                              unsigned now, bool byPosition) {
  unsigned best = 0, least = ~0u, way = 0;
  const auto take = [&](unsigned key) {
    if (key < least) {
      best = way;
      least = key;
    }
    ++way;
  };
  if (byPosition) {
    while (way != nWays)
      take(stamps[way] != now ? held[way] : ~0u);
    return best;
  }
  while (way + 4 <= nWays) // four to a pass, which has a price of its own
    take(stamps[way]), take(stamps[way]), take(stamps[way]), take(stamps[way]);
  while (way != nWays)
    take(stamps[way]);
  return best;
}

// The entries that are not hot, ascending: the misses of a KV head, the rows to fetch for them, and how
// many there are. Each worker has its entries.
class ListMisses : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsIn positions; // [topK]
  WordsIn hits;      // [topK]: slots
  WordsIn nHits;     // [6]: of each worker's entries
  WordsOut entries;  // [topK]
  WordsOut rows;     // [topK]: rows of streaming memory
  poplar::Output<unsigned> nMisses;
  unsigned topK, rowBase, layerRows;

  bool compute(unsigned worker) {
    unsigned miss = 0;
    for (unsigned w = 0; w != worker; ++w)
      miss += nOwn(w);
    const unsigned base = rowBase + *layer * layerRows + 1;
    const Share own(topK, *filled, worker, numWorkers());
    for (unsigned e = own.begin; e != own.stop; ++e)
      if (hits[e] == 0) {
        entries[miss] = e;
        rows[miss] = base + positions[e];
        ++miss;
      }
    if (worker + 1 == numWorkers())
      *nMisses = miss;
    return true;
  }

private:
  // Misses among a worker's entries.
  unsigned nOwn(unsigned worker) const {
    const Share share(topK, *filled, worker, numWorkers());
    return share.stop - share.begin - nHits[worker];
  }
};

// Slots of an owner for the misses that are dealt to it.
class DealSlots : public poplar::Vertex {
public:
  poplar::Input<unsigned> layer;
  poplar::InOut<unsigned> clock;
  poplar::Input<unsigned> nMisses;
  WordsIn positions;  // [topK]
  WordsIn entries;    // [topK]: of misses
  WordsIn nFree;      // [nOwners]
  WordsInOut held;    // [nLayers][nWays]
  WordsInOut stamps;  // [nLayers][nWays]
  WordsInOut byEntry; // [topK]: slots of own misses, by entry
  WordsInOut byMiss;  // [topK]: the same, by number of the miss
  unsigned nWays, owner, nOwners, ownersShift;
  bool byPosition; // the oldest position goes first

  bool compute() {
    const unsigned now = *clock + 1;
    *clock = now;
    // Each owner takes so many, or all that it has room for; more, where that is not enough.
    unsigned share = (*nMisses + nOwners - 1) >> ownersShift, first = 0;
    while (!isEnough(share, now, first))
      ++share;
    const unsigned end = minimum(first + minimum(nFree[owner], share), *nMisses);
    unsigned *ownHeld = &held[*layer * nWays], *ownStamps = &stamps[*layer * nWays];
    for (unsigned miss = first; miss < end; ++miss) {
      const unsigned way = victim(ownHeld, ownStamps, nWays, now, byPosition), e = entries[miss];
      ownHeld[way] = positions[e] + 1;
      ownStamps[way] = now;
      const unsigned slot = (way << ownersShift) + owner + 1;
      byEntry[e] = slot;
      byMiss[miss] = slot;
    }
    return true;
  }

private:
  // Whether all misses find a slot; and how many go to the owners before this one.
  bool isEnough(unsigned share, unsigned now, unsigned &first) const {
    const unsigned start = now & (nOwners - 1), nBefore = (owner - now) & (nOwners - 1);
    first = inTurn(start, nBefore, share);
    return first + inTurn(owner, nOwners - nBefore, share) >= *nMisses;
  }
  // What so many owners take, from one on and around.
  unsigned inTurn(unsigned begin, unsigned n, unsigned share) const {
    const unsigned end = minimum(begin + n, nOwners);
    return inOrder(begin, end, share) + inOrder(0, begin + n - end, share);
  }
  unsigned inOrder(unsigned begin, unsigned end, unsigned share) const {
    unsigned sum = 0, at = begin;
    for (; at + 2 <= end; at += 2) // two to a pass, which has a price of its own
      sum += minimum(nFree[at], share) + minimum(nFree[at + 1], share);
    return at < end ? sum + minimum(nFree[at], share) : sum;
  }
};

// Whether a wave of rows has to be fetched: `wave` counts those before it. Each group of slots has
// waveRows of a wave.
class MoreMisses : public poplar::Vertex {
public:
  WordsIn nMisses; // [nSlots]
  poplar::InOut<unsigned> wave;
  poplar::Output<bool> more;
  unsigned nSlots, groupSlots, waveRows;

  bool compute() {
    *wave += 1; // from the number before 0
    const unsigned fetched = *wave * waveRows;
    bool left = false;
    for (unsigned begin = 0; begin < nSlots; begin += groupSlots) {
      const unsigned end = minimum(begin + groupSlots, nSlots);
      unsigned ofGroup = 0;
      for (unsigned slot = begin; slot != end; ++slot)
        ofGroup += nMisses[slot];
      left |= fetched < ofGroup;
    }
    *more = left;
    return true;
  }
};

// Whether so many rows are missing, of all KV heads, that each of them fetches its own.
class MostMiss : public poplar::Vertex {
public:
  WordsIn nMisses; // [nSlots]
  poplar::Output<bool> most;
  unsigned nSlots, enough;

  bool compute() {
    unsigned sum = 0;
    for (unsigned slot = 0; slot != nSlots; ++slot)
      sum += nMisses[slot];
    *most = sum >= enough;
    return true;
  }
};

// Where the misses of one KV head begin in the list of its group: behind those of the heads before.
class FirstMiss : public poplar::Vertex {
public:
  WordsIn nMisses; // [nBefore]
  poplar::Output<unsigned> first;
  unsigned nBefore;

  bool compute() {
    unsigned sum = 0;
    for (unsigned s = 0; s != nBefore; ++s)
      sum += nMisses[s];
    *first = sum;
    return true;
  }
};

// A wave takes the misses [begin, begin + waveRows) of a group's list. Those of one KV head among them,
// by their numbers in its own list.
struct OfWave {
  unsigned begin, stop; // of the head's own list
  int offset;           // of its miss 0 in the wave
  OfWave(unsigned wave, unsigned waveRows, unsigned first, unsigned n)
      : offset(static_cast<int>(first - wave * waveRows)) {
    const unsigned from = wave * waveRows, end = from + waveRows;
    begin = from > first ? minimum(from - first, n) : 0;
    stop = end > first ? minimum(end - first, n) : 0;
  }
};

// A head's own rows of a wave, 0 where the wave has others. Each worker has a piece of the wave.
class PlaceMisses : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  poplar::Input<unsigned> first;
  poplar::Input<unsigned> nMisses;
  WordsIn rows;     // [topK]
  WordsOut waveRow; // [waveRows]
  unsigned waveRows;

  bool compute(unsigned worker) {
    const unsigned each = (waveRows + 2 * numWorkers() - 1) / (2 * numWorkers()) * 2;
    const unsigned begin = minimum(worker * each, waveRows), end = minimum(begin + each, waveRows);
    for (unsigned i = begin; i < end; i += 2) // two at a time; waveRows is even
      store(reinterpret_cast<float *>(&waveRow[i]), Pair{});
    const OfWave own(*wave, waveRows, *first, *nMisses);
    const unsigned offset = static_cast<unsigned>(own.offset), place = own.begin + offset,
                   from = place < begin ? begin : place, to = minimum(own.stop + offset, end);
    for (unsigned at = from; at < to; ++at)
      waveRow[at] = rows[at - offset];
    return true;
  }
};

// The rows that a wave fetches: of the heads of a group one has it; row 0 where none does.
class WaveRows : public poplar::MultiVertex {
public:
  WordsIn ofSlots;  // [nSlots][n]
  WordsOut offsets; // [n]
  unsigned nSlots, n;

  bool compute(unsigned worker) {
    for (unsigned i = worker; i < n; i += numWorkers()) {
      unsigned row = 0;
      for (unsigned slot = 0; slot != nSlots; ++slot)
        row |= ofSlots[slot * n + i];
      offsets[i] = row == 0 ? 0 : row - 1;
    }
    return true;
  }
};

// The rows that a wave fetches of one KV head, which has waveRows of every wave: n of these, from number
// `row` on; row 0 behind its last miss.
class HeadRows : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  poplar::Input<unsigned> nMisses;
  WordsIn rows;     // [topK]
  WordsOut offsets; // [n]
  unsigned waveRows, row, n;

  bool compute(unsigned worker) {
    const unsigned first = *wave * waveRows + row;
    for (unsigned i = worker; i < n; i += numWorkers())
      offsets[i] = first + i < *nMisses ? rows[first + i] - 1 : 0;
    return true;
  }
};

// Rows of keys and values as they arrive, to pieces: of the keys a pair of lanes each (components 2p and
// 2p + 1 of every eight), of the values `width` components, which divides headDim.
class CutRows : public poplar::MultiVertex {
public:
  HalvesIn rows;    // [n][2][headDim]: of keys, of values
  HalvesOut pieces; // [4][n][headDim / 4], then [slices][n][width]
  unsigned n, headDim, width;

  bool compute(unsigned worker) {
    const unsigned perPair = headDim / 4;
    unsigned pair = worker;
    for (unsigned row = 0; row != n; ++row, pair -= 4)
      for (; pair < 4; pair += numWorkers()) {
        const half *from = &rows[row * 2 * headDim + pair * 2];
        half *to = &pieces[(pair * n + row) * perPair];
        for (unsigned i = 0; i != perPair; i += 2)
          storeWord(to + i, loadWord(from + i * 4));
      }
    for (unsigned c = worker * width; c < headDim; c += numWorkers() * width) {
      const half *from = &rows[headDim + c];
      half *to = &pieces[n * (headDim + c)];
      for (unsigned row = 0; row != n; ++row)
        copyHalves(to + row * width, from + row * 2 * headDim, width);
    }
    return true;
  }
};

// A wave's pieces of the head's own rows into their slots. Rows are shared out.
class InsertRows : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> layer;
  poplar::Input<unsigned> wave;
  poplar::Input<unsigned> first;
  poplar::Input<unsigned> nMisses;
  WordsIn slots;    // [topK], by number of the miss
  HalvesIn pieces;  // [waveRows][width]
  HalvesInOut rows; // [nLayers][nRows][width]: slot s is row s >> setShift of set s % 2^setShift
  unsigned waveRows, nRows, width, set, setShift;

  bool compute(unsigned worker) {
    const OfWave wanted(*wave, waveRows, *first, *nMisses);
    half *own = &rows[*layer * nRows * width];
    for (unsigned miss = wanted.begin + worker; miss < wanted.stop; miss += numWorkers()) {
      const unsigned to = slots[miss] - 1;
      if (setOf(to, setShift) != set)
        continue;
      const unsigned from = miss + static_cast<unsigned>(wanted.offset);
      copyPiece(own + (to >> setShift) * width, &pieces[from * width], width);
    }
    return true;
  }

private:
  // n halves, whole words; 64 bits at a time, where all rows begin at a multiple of that.
  static void copyPiece(half *to, const half *from, unsigned n) {
    if (n % quadSize == 0)
      return copyHalves(to, from, n);
    for (unsigned i = 0; i != n; i += 2)
      storeWord(to + i, loadWord(from + i));
  }
};

// The slot of a position that is appended: of the owner whose turn it is.
class DealNewest : public poplar::Vertex {
public:
  poplar::Input<unsigned> filled; // before the position
  poplar::Input<unsigned> active;
  poplar::Input<unsigned> layer;
  poplar::Input<unsigned> clock;
  WordsInOut held;   // [nLayers][nWays]
  WordsInOut stamps; // [nLayers][nWays]
  poplar::Output<unsigned> slot;
  unsigned nWays, owner, nOwners;
  bool byPosition;

  bool compute() {
    *slot = 0;
    if (!*active || (*filled & (nOwners - 1)) != owner)
      return true;
    unsigned *ownHeld = &held[*layer * nWays], *ownStamps = &stamps[*layer * nWays];
    const unsigned way = victim(ownHeld, ownStamps, nWays, ~0u, byPosition);
    ownHeld[way] = *filled + 1;
    ownStamps[way] = *clock;
    *slot = way * nOwners + owner + 1;
    return true;
  }
};

// A part's piece of that row.
class InsertNewest : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> layer;
  WordsIn slots;    // [nOwners]: one of them has it
  HalvesIn piece;   // [width]
  HalvesInOut rows; // [nLayers][nRows][width]
  unsigned nOwners, nRows, width, set, setShift;

  bool compute(unsigned worker) {
    unsigned slot = 0;
    for (unsigned owner = 0; owner != nOwners; ++owner)
      slot |= slots[owner];
    if (slot == 0 || setOf(slot - 1, setShift) != set)
      return true;
    half *row = &rows[(*layer * nRows + ((slot - 1) >> setShift)) * width];
    for (unsigned i = worker * 2; i < width; i += numWorkers() * 2)
      storeWord(row + i, loadWord(&piece[i]));
    return true;
  }
};

// Nothing is hot any more, of a layer.
class ForgetHot : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> layer;
  WordsInOut held;   // [nLayers][nWays]
  WordsInOut stamps; // [nLayers][nWays]
  unsigned nWays;

  bool compute(unsigned worker) {
    unsigned *const ownHeld = &held[*layer * nWays], *const ownStamps = &stamps[*layer * nWays];
    for (unsigned way = worker, ways = nWays; way < ways; way += numWorkers()) {
      ownHeld[way] = 0;
      ownStamps[way] = 0;
    }
    return true;
  }
};

} // namespace sparq
