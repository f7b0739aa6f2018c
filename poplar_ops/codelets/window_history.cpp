// SPDX-License-Identifier: Apache-2.0
//
// Window attention (contract E11): how much of the attention of the last steps each position got,
// and the positions that need no history.
//
// A history has, by position, a row of shares for each of the last nRecent steps, and their sum.
// Rows are a ring: a step takes the place of the oldest one. A row that no step has taken is 0, so
// that it can be taken away like any other.
#include "arith/window_history.hpp"
#include "lanes.hpp"

namespace sparq {

// The shares of some entries of the list, over the heads of a group.
struct ListShares : poplar::MultiVertex {
  FloatsIn weights; // [groupSize][nRows]; 0 for rows that stand for no position
  FloatsIn sums;    // [groupSize], of all weights
  WordsOut shares;  // [nRows]
  unsigned groupSize, nRows;

  void compute(unsigned worker) {
    for (unsigned row = worker; row < nRows; row += numWorkers()) {
      unsigned share = 0;
      for (unsigned h = 0; h != groupSize; ++h)
        share += shareOf(weights[h * nRows + row], sums[h]);
      shares[row] = share;
    }
  }
};

// The shares of some entries over all KV heads.
struct SumShares : poplar::MultiVertex {
  WordsIn ofHeads; // [nKvHeads][nRows]
  WordsOut shares; // [nRows]
  unsigned nKvHeads, nRows;

  void compute(unsigned worker) {
    for (unsigned row = worker; row < nRows; row += numWorkers()) {
      unsigned share = 0;
      for (unsigned kv = 0, at = row; kv != nKvHeads; ++kv, at += nRows)
        share += ofHeads[at];
      shares[row] = share;
    }
  }
};

// Which row of the ring the step that is being taken gets.
struct NextStep : poplar::Vertex {
  poplar::Input<unsigned> layer;
  WordsInOut step; // [nLayers]
  unsigned nRecent;

  void compute() {
    const unsigned next = step[*layer] + 1;
    step[*layer] = next == nRecent ? 0 : next;
  }
};

// A step into a piece of the history: each worker some positions.
struct AddStep : poplar::MultiVertex {
  poplar::Input<unsigned> filled; // positions held
  poplar::Input<unsigned> layer;
  WordsIn step;    // [nLayers]: the row of the ring
  WordsIn list;    // [topK]: rows of the cache, ascending; min(filled, topK) are in use
  WordsIn shares;  // [topK]
  WordsInOut rows; // [nLayers][nRecent][length]
  WordsInOut sums; // [nLayers][length]
  unsigned topK, nRecent, length;
  unsigned firstRow, layerRows; // the piece's first position, as the list has it in layer 0

  void compute(unsigned worker) {
    const unsigned each = (length + numWorkers() - 1) / numWorkers();
    const unsigned begin = minimum(worker * each, length), end = minimum(begin + each, length);
    unsigned *const row = &rows[(*layer * nRecent + step[*layer]) * length];
    unsigned *const sum = &sums[*layer * length];
    for (unsigned p = begin; p < end; ++p) { // the oldest step
      sum[p] -= row[p];
      row[p] = 0;
    }
    const unsigned base = firstRow + *layer * layerRows, used = minimum(*filled, topK);
    unsigned first = 0; // the first entry that is not before this worker's positions
    for (unsigned n = used; n != 0;) {
      const unsigned middle = n / 2;
      if (list[first + middle] < base + begin) {
        first += middle + 1;
        n -= middle + 1;
      } else {
        n = middle;
      }
    }
    for (; first != used; ++first) {
      const unsigned p = list[first] - base;
      if (p >= end)
        break;
      row[p] = shares[first];
      sum[p] += shares[first];
    }
  }
};

// The positions that are taken without a history: the last nLocal, and of those before every
// `stride`-th, back from the last of them.
struct StridedPositions {
  unsigned firstLocal, nOthers, stride, count;
  StridedPositions(unsigned filled, unsigned topK, unsigned nLocal) {
    const unsigned most = minimum(topK, filled);
    firstLocal = filled - minimum(nLocal, most);
    const unsigned room = most - (filled - firstLocal);
    stride = room != 0 ? (firstLocal + room - 1) / room : 1;
    nOthers = room != 0 ? (firstLocal + stride - 1) / stride : 0;
    count = nOthers + filled - firstLocal;
  }
  unsigned at(unsigned entry) const {
    return entry < nOthers ? firstLocal - 1 - (nOthers - 1 - entry) * stride
                           : firstLocal + entry - nOthers;
  }
};

struct StridedCount : poplar::Vertex {
  poplar::Input<unsigned> filled;
  poplar::Output<unsigned> count;
  unsigned topK, nLocal;

  void compute() { *count = StridedPositions(*filled, topK, nLocal).count; }
};

// Some entries of the ascending list of cache rows to fetch; where there are fewer, the first row
// fills up.
struct StridedRows : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  WordsOut keyRows;   // [nEntries]
  WordsOut valueRows; // [nEntries]
  unsigned topK, nLocal, firstEntry, nEntries, rowBase, valueRow, layerRows;

  void compute(unsigned worker) {
    const StridedPositions positions(*filled, topK, nLocal);
    const unsigned base = rowBase + *layer * layerRows;
    for (unsigned i = worker; i < nEntries; i += numWorkers()) {
      const unsigned entry = firstEntry + i;
      const unsigned row = base + (entry < positions.count ? positions.at(entry) : 0);
      keyRows[i] = row;
      valueRows[i] = row + valueRow;
    }
  }
};

} // namespace sparq
