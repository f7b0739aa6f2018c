// SPDX-License-Identifier: Apache-2.0
//
// The cells of a quantised index (contract E9), one after the other.
#pragma once

#include "softmax_weights.hpp"

// Heads that share the unpacking of codes.
constexpr unsigned headsTogether = width == 16 ? 4 : width == 8 ? 2 : 1;
constexpr unsigned cellVectors = cellBlocks / width;

// Components whose coefficients make a word of 32 bits: four of 8 bits, or two of 16 bits.
constexpr unsigned componentsOfWord(unsigned bits) { return bits == 8 ? 2 : 4; }

// The row of a component in a cell is asked for in so many parts of so many lines: it has 17, 9 or
// 5.
constexpr unsigned partsOfRow(unsigned bits) { return bits == 8 ? 6 : 3; }
constexpr unsigned linesOfPart(unsigned bits) { return bits == 2 ? 2 : 3; }
// Visits to a row if each asks for a part, and a quarter asks for nothing.
constexpr unsigned visitsOfRow(unsigned bits) { return partsOfRow(bits) * 4 / 3; }

// What each head needs beside the codes of a cell.
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

// The softmax of another pair, done in small portions while the memory is waited for, at equal
// pace.
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

// The selected components of one cell.
class Cell {
public:
  Cell() = default;
  Cell(const CellRange &rangeIn, std::size_t cellIn)
      : range(&rangeIn),
        layout{rangeIn.cells.bits, rangeIn.cells.nComponents, rangeIn.cells.blocks}, cell(cellIn) {}
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
        fetchLine(rows[j] + at);
  }
};

// Asks for the next cell while one is scored, in `visits` visits to each of its rows: row after
// row, since memory is read quickest in long runs; a few lines at a time, or a processor loses some
// (measured); into L1, where there is room for what is computed with and for what comes next; and
// done after three quarters of the visits, since a line takes a while to come. Addresses are
// integers: they may be beyond the end of the last cell, which may be smaller.
template <unsigned bits, unsigned visits>
inline void fetchPart(const unsigned char *const *rows, unsigned rank, unsigned visit) {
  constexpr unsigned lines = linesOfPart(bits), parts = partsOfRow(bits), due = visitsOfRow(bits);
  static_assert(visits % due == 0 || due % visits == 0, "every so many visits, or so many a visit");
  if (visits > due && visit % (visits / due))
    return;
  for (unsigned i = 0; i < (due > visits ? due / visits : 1); ++i) {
    const unsigned part = visit * due / visits + i, row = part / parts;
    if (row >= rank)
      return;
    const auto at = reinterpret_cast<std::uintptr_t>(rows[row]) + part % parts * lines * 64;
    for (unsigned line = 0; line < lines; ++line)
      fetchLine(at + line * 64);
  }
}

// Asks for the beginnings of rows, visit by visit.
struct NextRows {
  const unsigned char *const *rows;
  unsigned rank;

  template <unsigned bits, unsigned visits> void visit(unsigned number) const {
    fetchPart<bits, visits>(rows, rank, number);
  }
};

// What the dot products of a cell are made from; `next` asks for the cell that comes next.
struct CodesOfCell {
  const unsigned char *const *rows; // of the components, whole words
  const std::int32_t *words;        // (nWords, heads of the pass, 16): coefficients, by block
  unsigned nWords;
  NextRows next;
};

// The cells of a range and those after it: the one that is scored, and the one that is fetched.
class CodedCells {
public:
  CodedCells(const IndexScores &aIn, std::size_t first)
      : a(aIn), now{a.rows, 0, 0}, next{a.nextRows, 0, 0} {
    next.set(Cell(a.range, first));
    if (!a.fetched)
      next.fetch(0, a.range.rank);
  }
  // The one that was fetched is scored now; `more`: there is one to be fetched, which is `cell` of
  // `range`.
  void turn(bool moreIn, const CellRange *range, std::size_t cell) {
    const CellRows read = next;
    next = now;
    now = read;
    more = moreIn;
    if (more)
      next.set(Cell(*range, cell));
    else
      next = now; // asked for once more, for nothing
  }
  const unsigned char *const *codes() const { return now.rows; }
  const unsigned char *scales(unsigned j) const { return now.rows[j] + now.stepsAt; }
  NextRows ahead(bool own) const { return {own ? next.rows : now.rows, a.range.rank}; }
  // Where fewer blocks were scored than a cell has, some rows are left.
  void fetchRest(unsigned first, unsigned last) const {
    if (!more)
      return;
    const unsigned rank = a.range.rank;
    const auto asked = [&](unsigned block) { return rank * block * 4 / (3 * cellBlocks); };
    next.fetch(0, asked(first) < rank ? asked(first) : rank);
    next.fetch(asked(last), rank);
  }

private:
  const IndexScores &a;
  CellRows now, next;
  bool more = false;
};
