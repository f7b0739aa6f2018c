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

// What one head needs to score a cell.
struct CellOfHead {
  std::int32_t *words; // (words, 16): coefficients of some components, by block
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

// Asks for the memory of a cell, component after component, a few lines at a time: in L1 there is
// room for what is computed with and for what comes next. (More lines at a time, or with fewer
// instructions for each: measured, the processor then loses some, and all is slower.)
class FetchAhead {
public:
  void start(const Cell &of) {
    cell = of;
    left = cell.rank();
    startRow();
  }
  // The next n lines; at the end a few that nobody needs.
  void lines(unsigned n) {
    if (!left)
      return;
    const unsigned char *line = at;
    for (; n; --n) {
      __builtin_prefetch(line);
      line += 64;
      if (line == end) {
        nextRow();
        line = at;
      }
    }
    at = line;
  }
  void rest() {
    while (left)
      lines(1);
  }

private:
  void nextRow() {
    if (left && --left)
      startRow();
    else
      end = nullptr;
  }
  void startRow() {
    at = cell.row(cell.rank() - left);
    end = at + (cell.rowBytes() + 63) / 64 * 64;
  }
  Cell cell;
  unsigned left = 0; // components
  const unsigned char *at = nullptr, *end = nullptr;
};

// What is done while the memory is waited for, in small portions: fetching what comes next, and, at
// equal pace, the softmax of another pair.
struct BesideCells {
  BesideCells(SoftmaxWeights *softmaxIn, std::size_t blocks)
      : softmax(softmaxIn), pace(softmax ? softmax->n / blockSize : 0, blocks) {}
  // After each word that is added to sums.
  void word() { ahead.lines(linesEach); }
  void blocks(unsigned n) {
    softmaxBlocks += pace.steps(n);
    if (softmax)
      softmaxUntil(*softmax, softmaxBlocks);
  }
  SoftmaxWeights *const softmax;
  Pace pace;
  std::size_t softmaxBlocks = 0;
  unsigned linesEach = 0;
  FetchAhead ahead;
};
