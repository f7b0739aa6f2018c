// SPDX-License-Identifier: Apache-2.0
//
// A cell of the key index, what one head needs to score it, and what is done beside that.
#pragma once

#include "softmax_weights.hpp"

// Heads that share the unpacking of codes.
constexpr unsigned headsTogether = width == 16 ? 4 : width == 8 ? 2 : 1;
constexpr unsigned cellVectors = cellBlocks / width;

// Components whose coefficients make a word of 32 bits: four of 8 bits, or two of 16 bits.
constexpr unsigned componentsOfWord(unsigned bits) { return bits == 4 ? 4 : 2; }

// What the dot products of a cell are made from.
struct CodesOfCell {
  const unsigned char *const *rows; // of the selected components, whole words
  const unsigned char *const *next; // of the cell that comes next
  const std::int32_t *words;        // (nWords, heads of the pass, 16): coefficients, by block
  unsigned nWords;
};

// What each head needs beside these.
struct CellOfHead {
  float unit[cellBlocks], offset[cellBlocks];
  float invTau;
  float *scores; // of the first position of the cell
  Vec peak;      // largest scores
};

// Spreads `things` evenly over `steps`, without a division for each.
class Pace {
public:
  Pace() = default;
  Pace(std::size_t thingsIn, std::size_t stepsIn) : things(thingsIn), all(stepsIn) {}
  // Of the next n steps.
  std::size_t steps(std::size_t n) {
    std::size_t due = 0;
    for (owed += things * n; owed >= all; owed -= all)
      ++due;
    return due;
  }

private:
  std::size_t things = 0, all = 1, owed = 0;
};

// The selected components of one cell.
class Cell {
public:
  Cell() = default;
  Cell(const CellRange &rangeIn, std::size_t cellIn)
      : range(&rangeIn), layout{rangeIn.cells.bits, rangeIn.cells.headDim, rangeIn.cells.blocks},
        cell(cellIn) {}
  const unsigned char *row(unsigned j) const {
    return range->cells.start + layout.cellAt(range->components[j], cell);
  }
  std::size_t rowBytes() const { return layout.cellBytes(cell); }
  std::size_t stepsAt() const { return layout.stepsAt(cell); }
  unsigned rank() const { return range->rank; }

private:
  const CellRange *range = nullptr;
  CellLayout layout{};
  std::size_t cell = 0;
};

// Rows of the selected components in a cell, rank rounded up to a multiple of four.
struct CellRows {
  const unsigned char **rows;
  std::size_t stepsAt, rowBytes;

  void set(const Cell &cell) {
    for (unsigned j = 0; j < (cell.rank() + 3) / 4 * 4; ++j)
      rows[j] = cell.row(j < cell.rank() ? j : 0);
    stepsAt = cell.stepsAt();
    rowBytes = cell.rowBytes();
  }
  // Asks for bytes [from, to) of all of them.
  void fetch(unsigned rank, std::size_t from, std::size_t to) const {
    for (std::size_t at = from / 64 * 64; at < to; at += 64)
      for (unsigned j = 0; j < rank; ++j)
        __builtin_prefetch(rows[j] + at);
  }
};

// Rows of the components of one word, and of the same in the cell that comes next: where a line of
// a cell is read, the same line of the next one is asked for. So they are asked for evenly, and
// into L1, where there is room for what is computed with and for what comes next. A line is read in
// `visits` visits, each of which asks for an equal part of the rows.
template <unsigned n, unsigned visits>
inline void fetchNext(const unsigned char *const *next, std::size_t at, unsigned visit) {
  static_assert(n % visits == 0, "rows of a word");
  for (unsigned i = 0; i < n / visits; ++i)
    __builtin_prefetch(next[visit * (n / visits) + i] + at);
}

// The softmax of another pair, done in small portions while the memory is waited for, at equal pace.
struct BesideCells {
  BesideCells(SoftmaxWeights *softmaxIn, std::size_t blocks)
      : softmax(softmaxIn), pace(softmax ? softmax->n / blockSize : 0, blocks) {}
  void blocks(unsigned n) {
    softmaxBlocks += pace.steps(n);
    if (softmax)
      softmaxUntil(*softmax, softmaxBlocks);
  }
  SoftmaxWeights *const softmax;
  Pace pace;
  std::size_t softmaxBlocks = 0;
};
