// SPDX-License-Identifier: Apache-2.0
//
// A cell of the key index, what one head needs to score it, and what is done beside that.
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
