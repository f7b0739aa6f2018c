// SPDX-License-Identifier: Apache-2.0
//
// Which of the missing rows a wave fetches from streaming memory.
#include "hot_rows.hpp"

namespace sparq {

// Where every head fetches its own rows: a number above all others, so that it is the greatest of
// several IPUs.
static constexpr int noSharedWaves = 0x7fffffff;

// Decides how the misses of all KV heads are fetched. A list holds the misses of listSlots slots. A
// wave of lists takes up to waveRows of each list; it reads the same number of rows of every list,
// in units. A wave of all takes waveRows rows of any list. A wave costs as much as reading waveCost
// rows; the last one, of at most fewRows, costs fewCost. Waves of lists come first, while the rows
// they read in vain cost less than more waves would. Where every head fetches its own rows the
// total cost is wideCost.
struct PlanMisses : poplar::Vertex {
  WordsIn nMisses;            // [nSlots]
  WordsOut left;              // [nLists]: rows of each list
  poplar::Output<int> nWaves; // of lists; noSharedWaves where every head fetches its own
  poplar::Output<int> way;    // 0: waves of all; 1: of lists first; 2: every head its own
  unsigned nSlots, nLists, listSlots, waveRows, unit, waveCost, fewRows, fewCost, wideCost;

  void compute() {
    unsigned rest = 0, slot = 0;
    for (unsigned list = 0; list != nLists; ++list) {
      unsigned sum = 0;
      for (const unsigned end = minimum(slot + listSlots, nSlots); slot < end; ++slot)
        sum += nMisses[slot];
      left[list] = sum;
      rest += sum;
    }
    unsigned waves = 0, cost = 0;
    for (Wave next = ofLists(0); next.cost < costOfAll(next.rows);
         next = ofLists(waves * waveRows)) {
      rest -= next.rows;
      cost += next.cost;
      ++waves;
    }
    const bool wide = cost + costOfAll(rest) > wideCost;
    *nWaves = wide ? noSharedWaves : static_cast<int>(waves);
    *way = wide ? 2 : waves != 0 ? 1 : 0;
  }

private:
  struct Wave {
    unsigned rows, cost;
  };
  // A wave of lists after others that fetched `fetched` rows of each list.
  Wave ofLists(unsigned fetched) const {
    unsigned most = 0, rows = 0, cost = waveCost;
    for (unsigned list = 0; list != nLists; ++list) {
      const unsigned all = left[list], own = all > fetched ? minimum(all - fetched, waveRows) : 0;
      rows += own;
      most = most > own ? most : own;
    }
    for (unsigned read = 0; read < most; read += unit)
      cost += nLists * unit;
    return {rows, cost};
  }
  // What fetching `rows` by waves of all costs.
  unsigned costOfAll(unsigned rows) const {
    unsigned cost = rows;
    for (; rows > fewRows; rows -= minimum(rows, waveRows))
      cost += waveCost;
    return rows != 0 ? cost + fewCost : cost;
  }
};

// The wave after number `wave`: whether there is one, of lists or of all, and how many times `unit`
// rows it reads. 0 units: at most fewRows are left, which come in a smaller wave.
struct MoreMisses : poplar::Vertex {
  WordsIn left;              // [nLists]
  poplar::Input<int> nWaves; // of lists
  poplar::InOut<unsigned> wave;
  poplar::Output<bool> moreOfLists;
  poplar::Output<bool> more; // of all
  poplar::Output<int> units;
  unsigned nLists, waveRows, fewRows, unit;

  void compute() {
    const unsigned next = *wave + 1; // from the number before 0
    const unsigned waves = static_cast<unsigned>(*nWaves);
    const bool ofLists = next < waves;
    const unsigned fetched = (ofLists ? next : waves) * waveRows,
                   ofAll = ofLists ? 0 : (next - waves) * waveRows;
    unsigned most = 0, sum = 0; // that are left of a list, and of all
    for (unsigned list = 0; list != nLists; ++list) {
      const unsigned all = left[list], own = all > fetched ? all - fetched : 0;
      most = most > own ? most : own;
      sum += own;
    }
    const unsigned rows = ofLists ? most : sum > ofAll ? sum - ofAll : 0;
    *wave = next;
    *moreOfLists = ofLists;
    *more = !ofLists && rows != 0;
    int n = 0;
    if (ofLists || rows > fewRows)
      for (unsigned read = 0; read < rows && read < waveRows; read += unit)
        ++n;
    *units = n;
  }
};

// Where the misses of one KV head begin: in its list, and in what waves of all fetch, as if these
// began with row 0. The second number is how many of its misses came earlier, in waves of lists.
struct FirstMiss : poplar::Vertex {
  WordsIn nMisses; // [nBefore]
  poplar::Input<int> nWaves;
  WordsOut inList; // [2]
  WordsOut inAll;  // [2]
  unsigned nBefore, listSlots, waveRows;

  void compute() {
    const unsigned fetched = static_cast<unsigned>(*nWaves) * waveRows, of = listSlots, n = nBefore;
    unsigned rest = 0, slot = 0;
    while (slot + of <= n) { // whole lists
      unsigned sum = 0;
      for (const unsigned end = slot + of; slot != end; ++slot)
        sum += nMisses[slot];
      rest += sum > fetched ? sum - fetched : 0;
    }
    unsigned first = 0;
    for (; slot < n; ++slot)
      first += nMisses[slot];
    inList[0] = first;
    inList[1] = 0;
    inAll[0] = rest + first;
    inAll[1] = fetched > first ? fetched - first : 0;
  }
};

// A head's own rows in a wave; 0 where the wave has rows of others. Each worker has a piece of the
// wave.
static inline void placeRows(const OfWave &own, const unsigned *rows, unsigned *waveRow,
                             unsigned waveRows, unsigned worker, unsigned nWorkers) {
  const unsigned each = (waveRows + 2 * nWorkers - 1) / (2 * nWorkers) * 2;
  const unsigned begin = minimum(worker * each, waveRows), end = minimum(begin + each, waveRows);
  for (unsigned i = begin; i < end; i += 2) // two at a time; waveRows is even
    store(reinterpret_cast<float *>(&waveRow[i]), Pair{});
  const unsigned offset = static_cast<unsigned>(own.offset), place = own.begin + offset,
                 from = place < begin ? begin : place, to = minimum(own.stop + offset, end);
  for (unsigned at = from; at < to; ++at)
    waveRow[at] = rows[at - offset];
}

// The first wave's rows. They are made beside other work, before it is known whether the wave is of
// lists or of all.
struct PlaceFirst : poplar::MultiVertex {
  WordsIn before; // [nBefore]: misses of these heads
  poplar::Input<unsigned> nMisses;
  WordsIn rows;     // [topK]: of misses
  WordsOut waveRow; // [waveRows]: a row + 1
  unsigned nBefore, waveRows;

  void compute(unsigned worker) {
    unsigned first[2] = {0, 0};
    for (unsigned head = 0, n = nBefore; head != n; ++head)
      first[0] += before[head];
    placeRows(OfWave(0, waveRows, first, *nMisses), &rows[0], &waveRow[0], waveRows, worker,
              numWorkers());
  }
};

// The rows of the wave after this one.
struct PlaceMisses : poplar::MultiVertex {
  poplar::Input<unsigned> wave;
  WordsIn first; // [2], see FirstMiss
  poplar::Input<unsigned> nMisses;
  WordsIn rows;     // [topK]
  WordsOut waveRow; // [waveRows]
  unsigned waveRows;

  void compute(unsigned worker) {
    placeRows(OfWave(*wave + 1, waveRows, &first[0], *nMisses), &rows[0], &waveRow[0], waveRows,
              worker, numWorkers());
  }
};

// The rows that a wave fetches. At most one head of a group has a row here; without any it is row
// 0.
struct WaveRows : poplar::MultiVertex {
  WordsIn ofSlots;  // [nSlots][n]
  WordsOut offsets; // [n]
  unsigned nSlots, n;

  void compute(unsigned worker) {
    for (unsigned i = worker; i < n; i += numWorkers()) {
      unsigned row = 0;
      for (unsigned slot = 0; slot != nSlots; ++slot)
        row |= ofSlots[slot * n + i];
      offsets[i] = row == 0 ? 0 : row - 1;
    }
  }
};

// The rows of one KV head in a wave of which every head has waveRows: n of these, from number `row`
// on. Behind the last miss it is row 0.
struct HeadRows : poplar::MultiVertex {
  poplar::Input<unsigned> wave, nMisses;
  WordsIn rows;     // [topK]
  WordsOut offsets; // [n]
  unsigned waveRows, row, n;

  void compute(unsigned worker) {
    const unsigned first = *wave * waveRows + row;
    for (unsigned i = worker; i < n; i += numWorkers())
      offsets[i] = first + i < *nMisses ? rows[first + i] - 1 : 0;
  }
};

} // namespace sparq
