// SPDX-License-Identifier: Apache-2.0
//
// Rows of keys and values in 8 bits, as they are appended.
#include "arith/row_codes.hpp"
#include "planning.hpp"
#include "tiers.hpp"
#include "vertex_cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

RowRounder::RowRounder(Graph &graphIn, const CacheLayout &layoutIn, unsigned nRows, unsigned width,
                       const TileOfRow &tileOf, const DebugContext &dc)
    : graph(graphIn), layout(layoutIn) {
  const unsigned d = layout.headDim;
  for (const bool ofValues : {false, true})
    for (unsigned first = 0; first < d; first += width) {
      const unsigned n = std::min(width, d - first);
      Piece piece{ofValues, first, n, {}, {}, {}, {}};
      const auto add = [&](std::size_t inner, const char *name) {
        return graph.addVariable(HALF, {nRows, inner}, {dc, name});
      };
      piece.numbers = add(n, "rounded_rows");
      piece.codes = add(n / 2, "row_codes");
      piece.scales = add(nRowScales(n), "row_scales");
      for (unsigned row = 0; row != nRows; ++row) {
        piece.tiles.push_back(tileOf(row, ofValues ? d + first : first));
        for (const Tensor &t : {piece.numbers, piece.codes, piece.scales})
          graph.setTileMapping(t[row], piece.tiles.back());
      }
      pieces.push_back(piece);
    }
}

RoundedRows RowRounder::round(const std::vector<Range> &ranges, const Tensor &keys,
                              const Tensor &values, Sequence &program,
                              const DebugContext &dc) const {
  const ComputeSet cs = graph.addComputeSet({dc, "round_rows"});
  std::vector<Tensor> numbers[2], codes, scales;
  for (const Piece &piece : pieces) {
    const Tensor from =
        (piece.ofValues ? values : keys).slice(piece.first, piece.first + piece.n, 1);
    unsigned done = 0;
    for (const Range &range : ranges)
      for (unsigned begin = range.begin, end; begin != range.end; begin = end) {
        // Rows that follow each other on a tile share a vertex.
        for (end = begin + 1; end != range.end && piece.tiles[end] == piece.tiles[begin];)
          ++end;
        const auto own = [&](const Tensor &t) { return t.slice(begin, end).flatten(); };
        addVertex(graph, cs, "sparq::RoundRows", piece.tiles[begin],
                  {{"numbers", from.slice(done, done + end - begin).flatten()},
                   {"rounded", own(piece.numbers)},
                   {"codes", own(piece.codes)},
                   {"scales", own(piece.scales)}},
                  {{"n", end - begin}, {"width", piece.n}},
                  cycles::roundRows(end - begin, piece.n));
        done += end - begin;
      }
    const auto chosen = [&](const Tensor &t) {
      std::vector<Tensor> slices;
      for (const Range &range : ranges)
        slices.push_back(t.slice(range.begin, range.end));
      return concat(slices);
    };
    numbers[piece.ofValues].push_back(chosen(piece.numbers));
    codes.push_back(chosen(piece.codes));
    scales.push_back(chosen(piece.scales));
  }
  program.add(Execute(cs, {dc, "round_rows"}));
  codes.insert(codes.end(), scales.begin(), scales.end());
  return {concat(numbers[0], 1), concat(numbers[1], 1), concat(codes, 1)};
}

} // namespace sparq
