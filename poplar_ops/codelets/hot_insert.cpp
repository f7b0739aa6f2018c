// SPDX-License-Identifier: Apache-2.0
//
// Rows as they arrive, cut to pieces and put into their places of the buffer of hot rows.
#include "hot_rows.hpp"

namespace sparq {

// Rows of keys and values as they arrive, to pieces: of the keys a pair of lanes each (components
// 2p and 2p + 1 of every eight), of the values `width` components, which divides headDim.
struct CutRows : poplar::MultiVertex {
  HalvesIn rows;    // [n][2][headDim]: of keys, of values
  HalvesOut pieces; // [4][n][headDim / 4], then [slices][n][width]
  unsigned n, headDim, width;

  void compute(unsigned worker) {
    const unsigned perPair = headDim / 4;
    unsigned pair = worker;
    for (unsigned row = 0; row != n; ++row, pair -= 4)
      for (; pair < 4; pair += numWorkers()) {
        const half *from = &rows[row * 2 * headDim + pair * 2];
        half *to = &pieces[(pair * n + row) * perPair];
        for (unsigned left = perPair / 2; left != 0; --left, to += 2, from += nLanes)
          storeWord(to, loadWord(from));
      }
    // Copies, for a word that is stored could be any of these.
    const unsigned ofPiece = width, ofRow = headDim, step = numWorkers() * ofPiece, nRows = n;
    const half *const values = &rows[ofRow];
    half *const ofValues = &pieces[nRows * ofRow];
    for (unsigned c = worker * ofPiece; c < ofRow; c += step)
      for (unsigned row = 0; row != nRows; ++row)
        copyHalves(ofValues + (nRows * c + row * ofPiece), values + c + row * 2 * ofRow, ofPiece);
  }
};

// A wave's pieces of the head's own rows into their places. Rows are shared out.
struct InsertRows : poplar::MultiVertex {
  poplar::Input<unsigned> layer, wave;
  WordsIn first; // [2], see FirstMiss
  poplar::Input<unsigned> nMisses;
  WordsIn places;    // [topK], by number of the miss
  HalvesIn pieces;   // [fullRows][width], or fewer rows in a smaller wave
  HalvesInOut rows;  // [nLayers][nRows][width]: place s is row s >> setShift of set s % 2^setShift
  unsigned fullRows; // of the waves before
  unsigned nRows, width, set, setShift;

  void compute(unsigned worker) {
    const OfWave wanted(*wave, fullRows, &first[0], *nMisses);
    // Copies, for a word that is stored could be any of these.
    const unsigned n = width, shift = setShift, ownSet = set, *const place = &places[0];
    const half *const from = &pieces[0];
    half *const own = &rows[*layer * nRows * n];
    for (unsigned miss = wanted.begin + worker; miss < wanted.stop; miss += numWorkers()) {
      const unsigned to = place[miss] - 1;
      if (setOf(to, shift) == ownSet)
        copyPiece(own + (to >> shift) * n, from + (miss + static_cast<unsigned>(wanted.offset)) * n,
                  n);
    }
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

// A part's piece of that row.
struct InsertNewest : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  WordsIn places;   // [nOwners]: one of them has it
  HalvesIn piece;   // [width]
  HalvesInOut rows; // [nLayers][nRows][width]
  unsigned nOwners, nRows, width, set, setShift;

  void compute(unsigned worker) {
    unsigned place = 0;
    for (unsigned owner = 0; owner != nOwners; ++owner)
      place |= places[owner];
    if (place == 0 || setOf(place - 1, setShift) != set)
      return;
    half *row = &rows[(*layer * nRows + ((place - 1) >> setShift)) * width];
    const half *const from = &piece[0];
    for (unsigned i = worker * 2, end = width; i < end; i += numWorkers() * 2)
      storeWord(row + i, loadWord(from + i));
  }
};

} // namespace sparq
