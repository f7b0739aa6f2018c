// SPDX-License-Identifier: Apache-2.0
//
// A key index that stays in SRAM: each part has the records of its own positions, of all components and
// all layers. Scores as from columns that were streamed (contract E9).
#include "code_products.hpp"
#include "index_scores.hpp"
#include "quantise.hpp"

namespace sparq {

// The blocks of a part that are full, of nBlocks from firstBlock on.
static inline unsigned nFullBlocks(unsigned filled, unsigned firstBlock, unsigned nBlocks) {
  const unsigned full = filled / blockSize;
  return full > firstBlock ? minimum(full - firstBlock, nBlocks) : 0;
}

// Coefficients for the full blocks of a part.
class ResidentCoefficients : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsIn index;          // [nLayers][headDim][columnWords]
  WordsIn components;     // [rank]
  FloatsIn selectedQuery; // [groupSize][rank]
  IntsOut coefficients;   // [nBlocks][groupSize][rank], those of full blocks
  FloatsOut units;        // [nBlocks][groupSize]
  FloatsOut offsets;      // [nBlocks][groupSize]
  WordsOut columns;       // [rank]: where each component's records begin
  unsigned groupSize, rank, headDim, indexBits, columnWords, firstBlock, nBlocks;
  float limit;

  bool compute(unsigned worker) {
    const unsigned first = *layer * headDim * columnWords, *base = &index[first];
    for (unsigned j = worker; j < rank; j += numWorkers())
      columns[j] = first + components[j] * columnWords;
    const auto column = [&](unsigned j) { return base + components[j] * columnWords; };
    coefficientsOfBlocks(column, &selectedQuery[0], groupSize, rank, indexBits,
                         nFullBlocks(*filled, firstBlock, nBlocks), limit, &coefficients[0],
                         &units[0], &offsets[0], worker, numWorkers());
    return true;
  }
};

// Scores of the full blocks of a part.
class ResidentScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn index;               // [nLayers][headDim][columnWords]
  WordsIn columns;             // [rank]: where each component's records begin
  IntsIn coefficients;         // [nBlocks][groupSize][rank]
  FloatsIn units;              // [nBlocks][groupSize]
  FloatsIn offsets;            // [nBlocks][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores;          // [groupSize][partPositions]; those of full blocks are written
  unsigned groupSize, rank, indexBits, firstBlock, nBlocks, partPositions;

  bool compute(unsigned worker) {
    const unsigned *base = &index[0];
    const auto column = [&](unsigned j) { return base + columns[j]; };
    scoreBlocks(column,
                {&coefficients[0], &units[0], &offsets[0], &inverseTemperature[0], groupSize, rank,
                 indexBits},
                nFullBlocks(*filled, firstBlock, nBlocks), &scores[0], partPositions, worker,
                numWorkers());
    return true;
  }
};

// The same of codes of 4 or 2 bits for several heads: see code_products.hpp.
class GroupCoefficients : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsIn index;          // [nLayers][headDim][columnWords]
  WordsIn components;     // [rank]
  FloatsIn selectedQuery; // [groupSize][rank]
  HalvesOut coefficients; // [nBlocks][groupSize][rank][4], those of full blocks
  FloatsOut units;        // [nBlocks][groupSize]
  FloatsOut offsets;      // [nBlocks][groupSize]
  FloatsOut biases;       // [nBlocks][groupSize]
  WordsOut columns;       // [rank]: where each component's records begin
  unsigned groupSize, rank, headDim, indexBits, columnWords, firstBlock, nBlocks;
  float limit;

  bool compute(unsigned worker) {
    const unsigned first = *layer * headDim * columnWords, *base = &index[first];
    for (unsigned j = worker; j < rank; j += numWorkers())
      columns[j] = first + components[j] * columnWords;
    // Pairs of heads of all blocks are shared out; then, of an odd number, the last head of each.
    const unsigned n = nFullBlocks(*filled, firstBlock, nBlocks), nPairs = groupSize / 2;
    unsigned h = worker;
    for (unsigned block = 0; block != n; ++block, h -= nPairs)
      for (; h < nPairs; h += numWorkers())
        ofHeads<2>(base, block, h * 2);
    if (groupSize % 2 != 0)
      for (unsigned block = worker; block < n; block += numWorkers())
        ofHeads<1>(base, block, groupSize - 1);
    return true;
  }

private:
  template <unsigned nHeads>
  void ofHeads(const unsigned *base, unsigned block, unsigned firstHead) {
    const unsigned last = (block + 1) * recordWords(indexBits) - 1,
                   row = block * groupSize + firstHead;
    fourfoldCoefficients<nHeads>(
        [&](unsigned j) { return base + components[j] * columnWords + last; },
        &selectedQuery[firstHead * rank], rank, limit, static_cast<float>(middleCode(indexBits)),
        &coefficients[row * rank * quadSize], &units[row], &offsets[row], &biases[row]);
  }
};

class GroupScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn index;               // [nLayers][headDim][columnWords]
  WordsIn columns;             // [rank]: where each component's records begin
  HalvesIn coefficients;       // [nBlocks][groupSize][rank][4]
  FloatsIn units;              // [nBlocks][groupSize]
  FloatsIn offsets;            // [nBlocks][groupSize]
  FloatsIn biases;             // [nBlocks][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  HalvesOut codes;             // [6][rank][8]: of the piece that a worker is at
  FloatsInOut scores;          // [groupSize][partPositions]; those of full blocks are written
  unsigned groupSize, rank, indexBits, firstBlock, nBlocks, partPositions;

  bool compute(unsigned worker) {
    // Copies, for a code that is stored could be any of these.
    const unsigned n = rank, *const records = &index[0], *const of = &columns[0];
    half *const own = &codes[worker * n * codesOfPiece];
    const bool four = indexBits == 4;
    const Pieces pieces(indexBits);
    const unsigned nPieces = nFullBlocks(*filled, firstBlock, nBlocks) * perBlock;
    for (unsigned item = worker; item < nPieces; item += numWorkers()) {
      const unsigned block = item / perBlock, piece = item % perBlock, // powers of two
          at = block * recordWords(indexBits) + pieces.word(piece);
      if (four)
        for (unsigned j = 0; j != n; ++j)
          expandCodes<4>(records[of[j] + at], own + j * codesOfPiece);
      else
        for (unsigned j = 0, shift = pieces.shift(piece); j != n; ++j)
          expandCodes<2>(records[of[j] + at] >> shift, own + j * codesOfPiece);
      const unsigned position = block * blockSize + pieces.position(piece);
      unsigned h = 0;
      for (; h + 2 <= groupSize; h += 2)
        for (unsigned half = 0; half != 2; ++half) {
          const auto *codesOf = own + half * quadSize;
          const TwoSums sums(codesOf, codesOf, ofHead(block, h), ofHead(block, h + 1), n);
          finish(sums.first, block, h, position + half, pieces.apart);
          finish(sums.second, block, h + 1, position + half, pieces.apart);
        }
      if (h != groupSize) {
        const TwoSums sums(own, own + quadSize, ofHead(block, h), ofHead(block, h), n);
        finish(sums.first, block, h, position, pieces.apart);
        finish(sums.second, block, h, position + 1, pieces.apart);
      }
    }
    return true;
  }

private:
  static constexpr unsigned perBlock = blockSize / codesOfPiece;
  const half *ofHead(unsigned block, unsigned h) const {
    return &coefficients[(block * groupSize + h) * rank * quadSize];
  }
  // The scores of every other position from there, and of those apart from them.
  void finish(const Quad &sum, unsigned block, unsigned h, unsigned position, unsigned apart) {
    const unsigned row = block * groupSize + h;
    const Quad score = (units[row] * (sum + biases[row]) + offsets[row]) * inverseTemperature[h];
    float *const to = &scores[h * partPositions + position];
    to[0] = score[0];
    to[apart] = score[1];
    to[2] = score[2];
    to[apart + 2] = score[3];
  }
};

// The records of a block that was filled by an append, to the part that has its positions.
class StoreRecords : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled; // behind the block's last position
  poplar::Input<unsigned> full;   // whether there is such a block
  poplar::Input<unsigned> layer;
  WordsIn records;  // [headDim][recordWords]
  WordsInOut index; // [nLayers][headDim][columnWords]
  unsigned headDim, indexBits, columnWords, firstBlock, nBlocks;

  bool compute(unsigned worker) {
    const unsigned block = *filled / blockSize - 1 - firstBlock; // wraps around if before
    if (!*full || block >= nBlocks)
      return true;
    const unsigned n = recordWords(indexBits);
    unsigned *base = &index[*layer * headDim * columnWords + block * n];
    const unsigned end = headDim, stride = columnWords, *const from = &records[0];
    for (unsigned c = worker; c < end; c += numWorkers())
      for (unsigned i = 0; i != n; ++i)
        base[c * stride + i] = from[c * n + i];
    return true;
  }
};

// Which block of every part comes next: counts from the number before 0.
class NextBlock : public poplar::Vertex {
public:
  poplar::InOut<unsigned> block;

  bool compute() {
    *block += 1;
    return true;
  }
};

// Rows of a block of a part; none behind the last row.
class BlockOffsets : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> layer;
  poplar::Input<unsigned> block; // of the part
  WordsOut rows;                 // [64]
  unsigned firstRow, lastRow, layerRows;

  bool compute(unsigned worker) {
    const unsigned base = *layer * layerRows, first = firstRow + *block * blockSize;
    for (unsigned i = worker; i < blockSize; i += numWorkers())
      rows[i] = base + minimum(first + i, lastRow);
    return true;
  }
};

// Rows of the block that is being filled.
class OpenBlockOffsets : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsOut rows; // [64]
  unsigned firstRow, lastRow, layerRows;

  bool compute(unsigned worker) {
    const unsigned base = *layer * layerRows, first = firstRow + (*filled & ~(blockSize - 1));
    for (unsigned i = worker; i < blockSize; i += numWorkers())
      rows[i] = base + minimum(first + i, lastRow);
    return true;
  }
};

// The keys of a block's rows to columns. A worker has whole components, and so whole words.
class RowColumns : public poplar::MultiVertex {
public:
  HalvesIn rows;     // [64][2][headDim]: keys, values
  HalvesOut columns; // [headDim][64]
  unsigned headDim;

  bool compute(unsigned worker) {
    for (unsigned c = worker * quadSize; c < headDim; c += numWorkers() * quadSize)
      for (unsigned i = 0; i != blockSize; i += quadSize)
        transposeFour(&rows[i * 2 * headDim + c], 2 * headDim, &columns[c * blockSize + i],
                      blockSize);
    return true;
  }
};

// The records of a full block of a part, from its columns.
class IndexBlock : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  poplar::Input<unsigned> block; // of the part
  HalvesIn columns;              // [headDim][64]
  WordsInOut index;              // [nLayers][headDim][columnWords]
  unsigned headDim, indexBits, columnWords, firstBlock, nBlocks;

  bool compute(unsigned worker) {
    if (*block >= nFullBlocks(*filled, firstBlock, nBlocks))
      return true;
    unsigned *base = &index[*layer * headDim * columnWords + *block * recordWords(indexBits)];
    for (unsigned c = worker; c < headDim; c += numWorkers())
      quantiseBlock(&columns[c * blockSize], indexBits, base + c * columnWords);
    return true;
  }
};

} // namespace sparq
