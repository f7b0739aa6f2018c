// SPDX-License-Identifier: Apache-2.0
//
// SparQ with a key index in planes of bits (contract E12): which planes a query reads, records of blocks (E9) from
// planes and back, and what the scores of E9 lack where bits were not read.
#include "arith/index_planes.hpp"
#include "index_scores.hpp"

namespace sparq {

// Of n components, those that one of six workers lists: even, for masks are counted in pairs.
static inline unsigned perWorker(unsigned n) { return ((n + 5) / 6 + 1) / 2 * 2; }

// How many of the masks [0, first) are set, of n masks with `all` of them set: counts these, or those behind them if there
// are fewer. The sum of m masks is m * 2^31 - m, modulo 2^32.
static inline unsigned countMasks(const unsigned *masks, unsigned first, unsigned n, unsigned all) {
  const bool before = first <= n - first;
  const unsigned *mask = before ? masks : masks + first;
  unsigned sum = 0;
  for (unsigned pairs = (before ? first : n - first) / 2; pairs != 0; --pairs, mask += 2)
    sum += mask[0] + mask[1];
  const unsigned counted = (0u - sum) & 0x7fffffffu;
  return before ? counted : all - counted;
}

// weight[c] = fl(a[c] * widest[c]), in place; widest counts as 1 where no block is full.
class PlaneWeights : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn widest;     // [headDim]
  FloatsInOut weights; // [headDim]: a[c] before
  unsigned headDim;

  bool compute(unsigned worker) {
    if (*filled < blockSize)
      return true;
    for (unsigned c = worker * quadSize; c < headDim; c += numWorkers() * quadSize)
      store(&weights[c],
            smaller(load<Quad>(&weights[c]) * load<Quad>(&widest[c]), Quad{} + highest));
    return true;
  }
};

// The components that are offered, ascending, and what each of their planes counts: weight * 2^-t. Every worker lists
// those of a range of components, behind those of the workers before: see ComponentList.
class PlaneMerits : public poplar::MultiVertex {
public:
  FloatsIn weights;    // [headDim]
  WordsIn offered;     // [headDim], 0 or 0x7fffffff
  WordsOut components; // [rank]
  FloatsOut merits;    // [rank][indexBits]
  unsigned headDim, rank, indexBits;

  bool compute(unsigned worker) {
    const unsigned first = minimum(worker * perWorker(headDim), headDim),
                   end = minimum(first + perWorker(headDim), headDim), bits = indexBits;
    unsigned index = countMasks(&offered[0], first, headDim, rank);
    const unsigned *const mask = &offered[0];
    const float *const weight = &weights[0];
    unsigned *const list = &components[0];
    float *const to = &merits[0];
    for (unsigned c = first; c < end; ++c) {
      if (mask[c] == 0)
        continue;
      float merit = weight[c];
      for (unsigned t = 0; t != bits; ++t, merit *= 0.5f)
        to[index * bits + t] = merit;
      list[index++] = c;
    }
    return true;
  }
};

// From the masks of planes (those of ComponentRanks): the planes that are read, how many of them each component has, each
// head's query along the components, 0 where none is read, and its inverse temperature. Without a query a component
// adds 0 to every sum. Workers share the components as for PlaneMerits, then the heads.
class PlaneList : public poplar::MultiVertex {
public:
  HalvesIn query;               // [groupSize][headDim]
  WordsIn components;           // [rank], ascending
  WordsIn selected;             // [rank][indexBits], 0 or 0x7fffffff
  FloatsIn magnitudeSums;       // [groupSize], of all components
  WordsOut planes;              // [nPlanes]: component * indexBits + plane, ascending
  WordsOut depths;              // [rank]
  FloatsOut selectedQuery;      // [groupSize][rank]
  FloatsOut inverseTemperature; // [groupSize]
  unsigned groupSize, headDim, rank, indexBits, nPlanes;
  float scale; // 1 / sqrt(headDim)

  bool compute(unsigned worker) {
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim, ofSelected = rank, bits = indexBits;
    const unsigned *const c = &components[0], *const mask = &selected[0];
    const half *const from = &query[0];
    unsigned *const list = &planes[0], *const depth = &depths[0];
    float *const to = &selectedQuery[0];
    const unsigned first = minimum(worker * perWorker(ofSelected), ofSelected),
                   end = minimum(first + perWorker(ofSelected), ofSelected);
    unsigned index = countMasks(mask, first * bits, ofSelected * bits, nPlanes);
    for (unsigned j = first; j < end; ++j) {
      unsigned n = 0;
      for (unsigned t = 0; t != bits; ++t)
        if (mask[j * bits + t] != 0) {
          list[index++] = c[j] * bits + t;
          ++n;
        }
      depth[j] = n;
      for (unsigned h = 0; h != heads; ++h)
        to[h * ofSelected + j] = n != 0 ? static_cast<float>(from[h * ofHead + c[j]]) : 0.0f;
    }
    for (unsigned h = worker; h < heads; h += numWorkers()) {
      alignas(8) float lanes[nLanes] = {};
      for (unsigned j = 0; j != ofSelected; ++j)
        if (mask[j * bits] != 0) // plane 0 is read first
          lanes[c[j] % nLanes] += withoutSign(static_cast<float>(from[h * ofHead + c[j]]));
      inverseTemperature[h] = sparq::inverseTemperature(magnitudeSums[h], treeSum(loadLanes(lanes)),
                                                        static_cast<float>(ofHead), scale);
    }
    return true;
  }
};

// Records of the blocks of a wave, from the planes and the steps that it brought, blocks shared out over the workers.
class JoinPlanes : public poplar::MultiVertex {
public:
  WordsIn planes;   // [nPlanes][length / 32], ascending by component, then plane
  WordsIn steps;    // [rank][length / 64]: the last words of records
  WordsIn depths;   // [rank]
  WordsOut columns; // [rank][columnWords], those of nBlocks blocks
  unsigned rank, indexBits, columnWords, nBlocks, length;

  bool compute(unsigned worker) {
    if (indexBits == 4)
      join<4>(worker);
    else
      join<8>(worker);
    return true;
  }

private:
  template <unsigned bits> void join(unsigned worker) {
    // Copies, for what is stored could be any of these.
    const unsigned stride = length / groupPositions, n = nBlocks, nComponents = rank,
                   ofColumn = columnWords, ofSteps = length / blockSize;
    const unsigned *rows = &planes[0], *step = &steps[0];
    unsigned *column = &columns[0];
    unsigned block = worker;
    for (unsigned j = 0; j != nComponents; ++j, step += ofSteps, column += ofColumn, block -= n) {
      const unsigned depth = depths[j];
      for (; block < n; block += numWorkers()) {
        unsigned *const to = column + block * recordWords(bits);
        for (unsigned group = 0; group != blockGroups; ++group)
          codesOfPlanes<bits>(rows + block * blockGroups + group, stride, depth, to + group * bits);
        to[codeWords(bits)] = step[block];
      }
      rows += depth * stride;
    }
  }
};

// Of the selected components' records in a piece of the tail, the bits that are not read become 0.
class MaskTail : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn components;   // [rank]
  WordsIn depths;       // [rank]
  WordsInOut tailIndex; // [headDim][columnWords]
  unsigned rank, indexBits, columnWords, piece, tailLength, chunk;

  bool compute(unsigned worker) {
    const TailPiece tail(*filled, chunk, piece, tailLength);
    const unsigned nComponents = rank, words = codeWords(indexBits), bits = indexBits,
                   ofColumn = columnWords;
    unsigned *const index = &tailIndex[0];
    for (unsigned j = worker; j < nComponents; j += numWorkers()) {
      const unsigned c = components[j], mask = readMask(depths[j], bits);
      unsigned *record = index + c * ofColumn;
      for (unsigned block = 0; block != tail.nComplete; ++block, record += words + 1)
        for (unsigned i = 0; i != words; ++i)
          record[i] &= mask;
    }
    return true;
  }
};

// offset += fl(unit / 2) * middle, middle the sum of coefficients times what may be missing of a code: unread bits count
// as the middle of what they may be. Blocks and heads are shared out over the workers.
static inline void addMiddles(const int *coefficients, const float *units, const unsigned *depths,
                              unsigned rank, unsigned indexBits, unsigned nRows, float *offsets,
                              unsigned first, unsigned step) {
  for (unsigned row = first; row < nRows; row += step) {
    unsigned middle = 0; // unsigned, so that coefficients made of NaN wrap around
    const int *const ofRow = coefficients + row * rank;
    for (unsigned j = 0; j != rank; ++j)
      middle += static_cast<unsigned>(ofRow[j]) * unreadCode(depths[j], indexBits);
    offsets[row] += (units[row] * 0.5f) * static_cast<float>(static_cast<int>(middle));
  }
}

class BlockMiddles : public poplar::MultiVertex {
public:
  IntsIn coefficients; // [nBlocks][groupSize][rank]
  FloatsIn units;      // [nBlocks][groupSize]
  WordsIn depths;      // [rank]
  FloatsInOut offsets; // [nBlocks][groupSize]
  unsigned groupSize, rank, indexBits, nBlocks;

  bool compute(unsigned worker) {
    addMiddles(&coefficients[0], &units[0], &depths[0], rank, indexBits, nBlocks * groupSize,
               &offsets[0], worker, numWorkers());
    return true;
  }
};

// The same for the full blocks of a piece of the tail.
class TailMiddles : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  IntsIn coefficients; // [tailLength / 64][groupSize][rank], those of full blocks
  FloatsIn units;      // [tailLength / 64][groupSize]
  WordsIn depths;      // [rank]
  FloatsInOut offsets; // [tailLength / 64][groupSize]
  unsigned groupSize, rank, indexBits, piece, tailLength, chunk;

  bool compute(unsigned worker) {
    const TailPiece tail(*filled, chunk, piece, tailLength);
    addMiddles(&coefficients[0], &units[0], &depths[0], rank, indexBits, tail.nComplete * groupSize,
               &offsets[0], worker, numWorkers());
    return true;
  }
};

// The block that a token has just filled: the largest step of each component so far.
class WidestSteps : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled; // with the token
  poplar::Input<unsigned> full;   // whether it filled a block
  WordsIn tailIndex;              // [nComponents][columnWords]
  FloatsInOut widest;             // [nComponents]
  unsigned nComponents, indexBits, columnWords, chunk;

  bool compute(unsigned worker) {
    if (*full == 0)
      return true;
    const unsigned position = (*filled - blockSize) & (chunk - 1), record = recordWords(indexBits),
                   last = position / blockSize * record + record - 1;
    for (unsigned c = worker; c < nComponents; c += numWorkers()) {
      const Pair ofBlock =
          load<Pair>(reinterpret_cast<const half *>(&tailIndex[c * columnWords + last]));
      widest[c] = larger(ofBlock[0], widest[c]);
    }
    return true;
  }
};

// Rows of planes and of steps, from records of a full chunk.
class SplitRecords : public poplar::MultiVertex {
public:
  WordsIn records; // [nComponents][columnWords]
  WordsOut planes; // [nComponents][indexBits][chunk / 32]
  WordsOut steps;  // [nComponents][chunk / 64]
  unsigned nComponents, indexBits, columnWords, chunk;

  bool compute(unsigned worker) {
    // Copies, for what is stored could be any of these.
    const unsigned bits = indexBits, record = recordWords(bits), nBlocks = chunk / blockSize,
                   nGroups = chunk / groupPositions, ofColumn = columnWords, n = nComponents;
    const unsigned *const from = &records[0];
    unsigned *const toPlanes = &planes[0], *const toSteps = &steps[0];
    for (unsigned c = 0; c != n; ++c)
      for (unsigned block = worker; block < nBlocks; block += numWorkers()) {
        const unsigned *const codes = from + c * ofColumn + block * record;
        for (unsigned group = 0; group != blockGroups; ++group)
          for (unsigned t = 0; t != bits; ++t)
            toPlanes[(c * bits + t) * nGroups + block * blockGroups + group] =
                planeWord(codes + group * bits, t, bits);
        toSteps[c * nBlocks + block] = codes[record - 1];
      }
    return true;
  }
};

} // namespace sparq
