// SPDX-License-Identifier: Apache-2.0
//
// The cells of an index in planes of bits (contract E12), one after the other: of each component only
// the planes that are read, made into codes in working memory.
#pragma once

#include "cells.hpp"
#include "planes.hpp"

// Asks for lines, some at each visit, all in three quarters of a cell's visits.
struct NextLines {
  const unsigned char *const *lines;
  unsigned n, each = 0;

  template <unsigned bits, unsigned visits> NextLines paced(unsigned nWords) const {
    const unsigned due = (visits * componentsOfWord(bits) * nWords * 3 + 3) / 4;
    return {lines, n, (n + due - 1) / due};
  }
  template <unsigned, unsigned> void visit(unsigned number) const {
    for (unsigned i = number * each; i < (number + 1) * each && i < n; ++i)
      fetchLine(lines[i]);
  }
};

template <unsigned bits> class PlaneCells {
public:
  using Next = NextLines;
  static constexpr bool inPlanes = true;

  PlaneCells(const IndexScores &aIn, std::size_t first) : a(aIn) {
    constexpr std::size_t codeBytes = cellBlocks * blockSize * bits / 8;
    const unsigned rank = a.range.rank;
    for (unsigned j = 0; j < (rank + 3) / 4 * 4; ++j)
      a.rows[j] = a.codes + (j < rank ? j : 0) * codeBytes;
    if (!a.fetched) {
      find(a.range, first);
      fetchAll();
    }
  }
  // Blocks [begin, end) of `cell` are scored now; `more`: there is one to be fetched, which is
  // `nextCell` of `range`.
  void turn(std::size_t cell, unsigned begin, unsigned end, bool more, const CellRange *range,
            std::size_t nextCell) {
    const PlaneLayout::Place place = placeOf(a.range, cell);
    constexpr unsigned codeBytes = PlaneLayout::lineBlocks * blockSize * bits / 8;
    const unsigned firstLine = lineOf(begin), nLinesHere = lineOf(end - 1) + 1 - firstLine;
    for (unsigned j = 0; j < a.range.rank; ++j) {
      const unsigned char *const row =
          a.range.cells.start + a.range.components[j] * place.nextComponent;
      a.nextRows[j] = row + place.scales;
      codesOfLinesTo<bits>(a.range.depths[j], row + place.planes + firstLine * PlaneLayout::line,
                           place.nextPlane, nLinesHere,
                           a.codes + (j * cellLines + firstLine) * codeBytes);
    }
    nLines = 0;
    if (more)
      find(*range, nextCell);
  }
  const unsigned char *const *codes() const { return a.rows; }
  const unsigned char *scales(unsigned j) const { return a.nextRows[j]; }
  // By how much a code may be above what was read of it.
  float open(unsigned j) const {
    return j < a.range.rank ? static_cast<float>((1u << (bits - a.range.depths[j])) - 1) : 0.0f;
  }
  Next ahead(bool own) const { return {a.lines, own ? nLines : 0}; }
  void fetchRest(unsigned first, unsigned last) const {
    if (first != 0 || last != cellBlocks)
      fetchAll();
  }

private:
  static constexpr unsigned cellLines = cellBlocks / PlaneLayout::lineBlocks;
  static_assert(cellLines == 2, "a first and a last one");
  static PlaneLayout::Place placeOf(const CellRange &range, std::size_t cell) {
    return PlaneLayout{bits, range.cells.nComponents, range.cells.blocks}.place(cell);
  }
  static unsigned lineOf(unsigned block) {
    return block / static_cast<unsigned>(PlaneLayout::lineBlocks);
  }

  // The lines that are read of a cell of a range.
  void find(const CellRange &range, std::size_t cell) {
    const PlaneLayout::Place place = placeOf(range, cell);
    const std::size_t from = cell * cellBlocks;
    const auto begin = static_cast<unsigned>(from < range.begin ? range.begin - from : 0);
    const auto end =
        static_cast<unsigned>(range.end - from < cellBlocks ? range.end - from : cellBlocks);
    const bool first = begin<PlaneLayout::lineBlocks, last = end> PlaneLayout::lineBlocks;
    const unsigned char **to = a.lines;
    for (unsigned j = 0; j < range.rank; ++j) {
      const unsigned char *const row =
          range.cells.start + range.components[j] * place.nextComponent;
      const unsigned char *plane = row + place.planes;
      *to++ = row + place.scales;
      for (unsigned t = 0; t < range.depths[j]; ++t, plane += place.nextPlane) {
        if (first)
          *to++ = plane;
        if (last)
          *to++ = plane + PlaneLayout::line;
      }
    }
    nLines = static_cast<unsigned>(to - a.lines);
  }
  void fetchAll() const {
    for (unsigned i = 0; i < nLines; ++i)
      fetchLine(a.lines[i]);
  }

  const IndexScores &a;
  unsigned nLines = 0;
};
