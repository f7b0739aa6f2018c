// SPDX-License-Identifier: Apache-2.0
//
// Which of the missing rows a wave fetches from streaming memory.
#include "hot_rows.hpp"

namespace sparq {

// Whether a wave of rows has to be fetched: `wave` counts those before it. Each group of slots has
// waveRows of a wave. And how much of it: so many times `unit` rows of each group, or 0, where no group has
// more than fewRows left.
class MoreMisses : public poplar::Vertex {
public:
  WordsIn nMisses; // [nSlots]
  poplar::InOut<unsigned> wave;
  poplar::Output<bool> more;
  poplar::Output<int> units;
  unsigned nSlots, groupSlots, waveRows, fewRows, unit;

  bool compute() {
    *wave += 1; // from the number before 0
    const unsigned fetched = *wave * waveRows;
    unsigned most = 0; // left, of a group
    for (unsigned begin = 0; begin < nSlots; begin += groupSlots) {
      const unsigned end = minimum(begin + groupSlots, nSlots);
      unsigned ofGroup = 0;
      for (unsigned slot = begin; slot != end; ++slot)
        ofGroup += nMisses[slot];
      most = ofGroup > fetched + most ? ofGroup - fetched : most;
    }
    *more = most != 0;
    int n = most > fewRows ? 1 : 0;
    if (n != 0)
      for (unsigned rows = unit; rows < most && rows < waveRows; rows += unit)
        ++n;
    *units = n;
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

// A head's own rows of a wave, 0 where the wave has others. Each worker has a piece of the wave.
class PlaceMisses : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  poplar::Input<unsigned> first;
  poplar::Input<unsigned> nMisses;
  WordsIn rows;     // [topK]
  WordsOut waveRow; // [waveRows]
  unsigned waveRows;
  unsigned fullRows; // of a wave before this one

  bool compute(unsigned worker) {
    const unsigned each = (waveRows + 2 * numWorkers() - 1) / (2 * numWorkers()) * 2;
    const unsigned begin = minimum(worker * each, waveRows), end = minimum(begin + each, waveRows);
    for (unsigned i = begin; i < end; i += 2) // two at a time; waveRows is even
      store(reinterpret_cast<float *>(&waveRow[i]), Pair{});
    const OfWave own(*wave, fullRows, *first, *nMisses);
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

} // namespace sparq
