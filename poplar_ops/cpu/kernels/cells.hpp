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
  unsigned rank, nWords;
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
  // Asks for rows [from, to).
  void fetch(std::size_t from, std::size_t to) const {
    for (std::size_t j = from; j < to; ++j)
      for (std::size_t at = 0; at < rowBytes; at += 64)
        __builtin_prefetch(rows[j] + at);
  }
};

// Asks for the next cell while one is scored, in `visits` visits to each of its rows: row after row,
// since memory is read quickest in long runs; a few lines at a time, or a processor loses some
// (measured); into L1, where there is room for what is computed with and for what comes next; and
// done after three quarters of the visits, since a line takes a while to come. Addresses are
// integers: they may be beyond the end of the last cell, which may be smaller.
template <unsigned bits, unsigned visits>
inline void fetchPart(const unsigned char *const *rows, unsigned rank, unsigned visit) {
  constexpr unsigned lines = 3, parts = bits == 4 ? 3 : 6; // of a row, which has 9 lines or 17
  constexpr unsigned due = parts * 4 / 3;                  // in all visits to a row
  static_assert(visits % due == 0 || due % visits == 0, "every so many visits, or so many a visit");
  if (visits > due && visit % (visits / due))
    return;
  for (unsigned i = 0; i < (due > visits ? due / visits : 1); ++i) {
    const unsigned part = visit * due / visits + i, row = part / parts;
    if (row >= rank)
      return;
    const auto at = reinterpret_cast<std::uintptr_t>(rows[row]) + part % parts * lines * 64;
    for (unsigned line = 0; line < lines; ++line)
      __builtin_prefetch(reinterpret_cast<const void *>(at + line * 64));
  }
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
