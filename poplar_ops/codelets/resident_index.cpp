// SPDX-License-Identifier: Apache-2.0
//
// A key index that stays in SRAM: each part has the records of its own positions, of all components
// and all layers. Scores as from columns that were streamed (contract E9).
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
struct ResidentCoefficients : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn index;          // [nLayers][nComponents][columnWords]
  WordsIn columns;        // [rank]: where each component's records begin
  FloatsIn selectedQuery; // [groupSize][rank]
  IntsOut coefficients;   // [nBlocks][groupSize][rank], those of full blocks
  FloatsOut units;        // [nBlocks][groupSize]
  FloatsOut offsets;      // [nBlocks][groupSize]
  unsigned groupSize, rank, indexBits, firstBlock, nBlocks;
  float limit;

  void compute(unsigned worker) {
    const unsigned *const base = &index[0], *const of = &columns[0];
    const auto column = [&](unsigned j) { return base + of[j]; };
    coefficientsOfBlocks(column, &selectedQuery[0], groupSize, rank, indexBits,
                         nFullBlocks(*filled, firstBlock, nBlocks), limit, &coefficients[0],
                         &units[0], &offsets[0], worker, numWorkers());
  }
};

// Scores of the full blocks of a part.
struct ResidentScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn index;               // [nLayers][nComponents][columnWords]
  WordsIn columns;             // [rank]: where each component's records begin
  IntsIn coefficients;         // [nBlocks][groupSize][rank]
  FloatsIn units;              // [nBlocks][groupSize]
  FloatsIn offsets;            // [nBlocks][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores;          // [groupSize][partPositions]; those of full blocks are written
  unsigned groupSize, rank, indexBits, firstBlock, nBlocks, partPositions;

  void compute(unsigned worker) {
    const unsigned *base = &index[0];
    const auto column = [&](unsigned j) { return base + columns[j]; };
    scoreBlocks(column,
                {&coefficients[0], &units[0], &offsets[0], &inverseTemperature[0], groupSize, rank,
                 indexBits},
                nFullBlocks(*filled, firstBlock, nBlocks), &scores[0], partPositions, worker,
                numWorkers());
  }
};

// The same of codes of 4 or 2 bits for several heads: see code_products.hpp. Of an odd number the
// last one is twice in its pair.
struct GroupCoefficients : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn index;          // [nLayers][nComponents][columnWords]
  WordsIn columns;        // [rank]: where each component's records begin
  FloatsIn selectedQuery; // [groupSize][rank]
  FloatsOut coefficients; // [nBlocks][(groupSize + 1) / 2][rank][2], those of full blocks
  FloatsOut units;        // [nBlocks][groupSize]
  FloatsOut offsets;      // [nBlocks][groupSize]
  // The last words of codes of the last block, which another part scores.
  WordsOut lent; // [rank][nLent]
  unsigned groupSize, rank, indexBits, firstBlock, nBlocks, nLent;
  float limit;

  void compute(unsigned worker) {
    // Pairs of heads of all blocks are shared out.
    const unsigned n = nFullBlocks(*filled, firstBlock, nBlocks), nPairs = (groupSize + 1) / 2;
    unsigned pair = worker;
    for (unsigned block = 0; block != n; ++block, pair -= nPairs)
      for (; pair < nPairs; pair += numWorkers())
        ofPair(block, pair, nPairs);
    lend(worker, nBlocks * nPairs % numWorkers());
  }

private:
  // By the workers that have a pair less than others.
  void lend(unsigned worker, unsigned firstWorker) {
    // Copies, for a word that is stored could be any of these.
    const unsigned n = nLent, r = rank, *const of = &columns[0];
    if (n == 0 || worker < firstWorker)
      return;
    const unsigned *const last = &index[nBlocks * recordWords(4) - 1 - n];
    unsigned *const words = &lent[0];
    for (unsigned j = worker - firstWorker; j < r; j += numWorkers() - firstWorker) {
      const unsigned *const from = last + of[j];
      unsigned *const to = words + j * n;
      for (unsigned i = 0; i != n; ++i)
        to[i] = from[i];
    }
  }
  void ofPair(unsigned block, unsigned pair, unsigned nPairs) {
    const unsigned h = pair * pairSize, other = minimum(h + 1, groupSize - 1),
                   row = block * groupSize,
                   *const last = &index[(block + 1) * recordWords(indexBits) - 1],
                   *const of = &columns[0];
    Pair unit, offset;
    coefficientsOfTwo([&](unsigned j) { return last + of[j]; }, &selectedQuery[h * rank],
                      &selectedQuery[other * rank], rank, limit,
                      &coefficients[(block * nPairs + pair) * rank * pairSize], unit, offset);
    units[row + h] = unit[0];
    units[row + other] = unit[1];
    offsets[row + h] = offset[0];
    offsets[row + other] = offset[1];
  }
};

struct GroupScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn index;               // [nLayers][nComponents][columnWords]
  WordsIn columns;             // [rank]: where each component's records begin
  FloatsIn coefficients;       // [nBlocks][(groupSize + 1) / 2][rank][2]
  FloatsIn units;              // [nBlocks][groupSize]
  FloatsIn offsets;            // [nBlocks][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsOut codes;             // [6][rank][8]: of the piece that a worker is at
  FloatsInOut scores;          // [groupSize][partPositions]; those of full blocks are written
  // nPieces: of a component's codes, those that are scored here, of all blocks; others are lent.
  unsigned groupSize, rank, indexBits, firstBlock, nBlocks, nPieces, partPositions;

  void compute(unsigned worker) {
    // Copies, for a code that is stored could be any of these.
    const unsigned n = rank, heads = groupSize, *const records = &index[0], *const of = &columns[0],
                   ofBlock = (heads + 1) / 2 * n * pairSize;
    float *const own = &codes[worker * n * codesOfPiece];
    const Pieces pieces(indexBits);
    const bool four = indexBits == 4;
    const unsigned end = minimum(nFullBlocks(*filled, firstBlock, nBlocks) * perBlock, nPieces);
    OuterSums sums;
    for (unsigned item = worker; item < end; item += numWorkers()) {
      const unsigned block = item / perBlock, piece = item % perBlock, // powers of two
          at = block * recordWords(indexBits) + pieces.word(piece), shift = pieces.shift(piece);
      const float *const ofItem = &coefficients[block * ofBlock];
      const ScoresOfSums finish{
          &units[block * heads],  &offsets[block * heads],
          &inverseTemperature[0], &scores[block * blockSize + pieces.position(piece)],
          partPositions,          pieces.apart};
      if (four)
        scorePiece<4>([&](unsigned j) { return records[of[j] + at]; }, ofItem, n, heads, own, sums,
                      finish);
      else
        scorePiece<2>([&](unsigned j) { return records[of[j] + at] >> shift; }, ofItem, n, heads,
                      own, sums, finish);
    }
  }

private:
  static constexpr unsigned perBlock = blockSize / codesOfPiece;
};

// The same of words of codes of 4 bits that other parts have lent: a piece of each, their last ones
// of their last block. Pieces follow one another.
struct LentScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn words;                 // [nPieces][rank][nWords]
  FloatsIn coefficients;         // [nPieces][(groupSize + 1) / 2][rank][2]
  FloatsIn units;                // [nPieces][groupSize]
  FloatsIn offsets;              // [nPieces][groupSize]
  FloatsIn inverseTemperature;   // [groupSize]
  FloatsOut codes;               // [6][rank][8]: of the word that a worker is at
  FloatsInOut scores;            // [groupSize][partPositions]; those of full blocks are written
  poplar::Output<unsigned> held; // positions of these
  unsigned groupSize, rank, nWords, wordsShift, nPieces, firstBlock, blocksOfPart, partPositions;

  void compute(unsigned worker) {
    const unsigned n = rank, heads = groupSize, *const from = &words[0], ofPiece = nWords,
                   shift = wordsShift, full = *filled / blockSize;
    float *const own = &codes[worker * n * codesOfPiece];
    unsigned nFull = 0;
    for (unsigned block = firstBlock; nFull != nPieces && block < full; block += blocksOfPart)
      ++nFull;
    if (worker == 0)
      *held = nFull * ofPiece * codesOfPiece;
    OuterSums sums;
    for (unsigned item = worker; item < nFull * ofPiece; item += numWorkers()) {
      const unsigned piece = item >> shift, at = piece * n * ofPiece + (item & (ofPiece - 1));
      scorePiece<4>([&](unsigned j) { return from[at + j * ofPiece]; },
                    &coefficients[piece * ((heads + 1) / 2) * n * pairSize], n, heads, own, sums,
                    ScoresOfSums{&units[piece * heads], &offsets[piece * heads],
                                 &inverseTemperature[0], &scores[item * codesOfPiece],
                                 partPositions, quadSize});
    }
  }
};

// The records of a block that was filled by an append, to the part that has its positions.
struct StoreRecords : poplar::MultiVertex {
  poplar::Input<unsigned> filled; // behind the block's last position
  poplar::Input<unsigned> full;   // whether there is such a block
  poplar::Input<unsigned> layer;
  WordsIn records;  // [nComponents][recordWords]
  WordsInOut index; // [nLayers][nComponents][columnWords]
  unsigned nComponents, indexBits, columnWords, firstBlock, nBlocks;

  void compute(unsigned worker) {
    const unsigned block = *filled / blockSize - 1 - firstBlock; // wraps around if before
    if (!*full || block >= nBlocks)
      return;
    const unsigned n = recordWords(indexBits);
    unsigned *base = &index[*layer * nComponents * columnWords + block * n];
    const unsigned end = nComponents, stride = columnWords, *const from = &records[0];
    for (unsigned c = worker; c < end; c += numWorkers())
      for (unsigned i = 0; i != n; ++i)
        base[c * stride + i] = from[c * n + i];
  }
};

// Where the next block of every part begins: counts from the block before 0.
struct NextBlock : poplar::Vertex {
  poplar::InOut<unsigned> position;

  void compute() { *position += blockSize; }
};

// Rows of the block that has a position; none behind the last row.
struct BlockOffsets : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  poplar::Input<unsigned> position; // the row of position 0 is firstRow
  WordsOut rows;                    // [64]
  unsigned firstRow, lastRow, layerRows;

  void compute(unsigned worker) {
    const unsigned base = *layer * layerRows, first = firstRow + (*position & ~(blockSize - 1));
    for (unsigned i = worker; i < blockSize; i += numWorkers())
      rows[i] = base + minimum(first + i, lastRow);
  }
};

// The records of a full block of a part, from its columns.
struct IndexBlock : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  poplar::Input<unsigned> position; // of the part: where the block begins
  HalvesIn columns;                 // [nComponents][64]
  WordsInOut index;                 // [nLayers][nComponents][columnWords]
  unsigned nComponents, indexBits, columnWords, firstBlock, nBlocks;

  void compute(unsigned worker) {
    const unsigned block = *position / blockSize;
    if (block >= nFullBlocks(*filled, firstBlock, nBlocks))
      return;
    unsigned *base = &index[*layer * nComponents * columnWords + block * recordWords(indexBits)];
    for (unsigned c = worker; c < nComponents; c += numWorkers())
      quantiseBlock(&columns[c * blockSize], indexBits, base + c * columnWords);
  }
};

} // namespace sparq
