// SPDX-License-Identifier: Apache-2.0
//
// Joined rows of 8 bits (docs/exactness.md E10): rounded as they are appended, so that all other stores
// have what they hold.
#include "arith/row_codes.hpp"
#include "arith/row_groups.hpp"
#include "rows.hpp"
#include "vertex_cycles.hpp"
#include <cstring>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Works on pieces of `width` components: a multiple of 32, or headDim.
class RowRounder final : public JoinedRows::Coder {
public:
  RowRounder(Graph &graphIn, unsigned headDim, unsigned nRows, unsigned width,
             const JoinedRows::TileOfRow &tileOf, const DebugContext &dc)
      : graph(graphIn) {
    for (const bool ofValues : {false, true})
      for (unsigned first = 0; first < headDim; first += width) {
        const unsigned n = std::min(width, headDim - first);
        Piece piece{ofValues, first, n, {}, {}, {}, {}};
        const auto add = [&](std::size_t inner, const char *name) {
          return graph.addVariable(HALF, {nRows, inner}, {dc, name});
        };
        piece.numbers = add(n, "rounded_rows");
        piece.codes = add(n / 2, "row_codes");
        piece.scales = add(nRowScales(n), "row_scales");
        for (unsigned row = 0; row != nRows; ++row) {
          piece.tiles.push_back(tileOf(row, ofValues ? headDim + first : first));
          for (const Tensor &t : {piece.numbers, piece.codes, piece.scales})
            graph.setTileMapping(t[row], piece.tiles.back());
        }
        pieces.push_back(piece);
      }
  }

  Tensor code(const std::vector<Range> &places, Tensor &keys, Tensor &values, Sequence &program,
              const DebugContext &dc) const override {
    const ComputeSet cs = graph.addComputeSet({dc, "round_rows"});
    std::vector<Tensor> numbers[2], codes, scales;
    for (const Piece &piece : pieces) {
      addVertices(cs, piece, places,
                  (piece.ofValues ? values : keys).slice(piece.first, piece.first + piece.n, 1));
      const auto chosen = [&](const Tensor &t) {
        std::vector<Tensor> slices;
        for (const Range &range : places)
          slices.push_back(t.slice(range.begin, range.end));
        return concat(slices);
      };
      numbers[piece.ofValues].push_back(chosen(piece.numbers));
      codes.push_back(chosen(piece.codes));
      scales.push_back(chosen(piece.scales));
    }
    program.add(Execute(cs, {dc, "round_rows"}));
    codes.insert(codes.end(), scales.begin(), scales.end());
    keys = concat(numbers[0], 1);
    values = concat(numbers[1], 1);
    return concat(codes, 1);
  }

private:
  struct Piece {
    bool ofValues;
    unsigned first, n;             // components
    Tensor numbers, codes, scales; // {nRows, ...} HALF
    std::vector<unsigned> tiles;   // by row
  };

  void addVertices(const ComputeSet &cs, const Piece &piece, const std::vector<Range> &places,
                   const Tensor &from) const {
    unsigned done = 0;
    for (const Range &range : places)
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
  }

  Graph &graph;
  std::vector<Piece> pieces; // of keys, then of values
};

// One key or value into its codes and scales, and back.
void encodeNumbers(const std::uint16_t *from, unsigned headDim, std::uint16_t *codes,
                   std::uint16_t *scales) {
  std::fill_n(scales, nRowScales(headDim), 0);
  eachRowGroup(
      from, headDim, [&](std::size_t first, std::size_t n, float scale, const float *code) {
        scales[first / rowGroup] = static_cast<std::uint16_t>(bitcast<unsigned>(scale) >> 16);
        for (std::size_t c = 0; c != n; c += 4) {
          std::uint32_t word = 0;
          for (unsigned i = 0; i != 4; ++i)
            word |= static_cast<std::uint32_t>(code[c + i] + codeOffset) << codeShift(i);
          std::memcpy(codes + (first + c) / 2, &word, sizeof(word));
        }
      });
}
void decodeNumbers(const std::uint16_t *codes, const std::uint16_t *scales, unsigned headDim,
                   std::uint16_t *to) {
  for (unsigned c = 0; c != headDim; ++c) {
    std::uint32_t word;
    std::memcpy(&word, codes + c / 4 * 2, sizeof(word));
    const int code = static_cast<int>((word >> codeShift(c % 4)) & 0xffu) - int(codeOffset);
    to[c] = narrow(static_cast<float>(code) *
                   bitcast<float>(std::uint32_t(scales[c / rowGroup]) << 16));
  }
}

class HostCodedRows final : public HostJoinedRows {
public:
  using HostJoinedRows::HostJoinedRows;

private:
  void code(const std::uint16_t *key, const std::uint16_t *value,
            std::uint16_t *row) const override {
    const unsigned d = headDim();
    std::uint16_t *const scales = row + d;
    encodeNumbers(key, d, row, scales);
    encodeNumbers(value, d, row + d / 2, scales + nRowScales(d));
  }
  void decode(const std::uint16_t *row, std::uint16_t *key, std::uint16_t *value) const override {
    const unsigned d = headDim();
    const std::uint16_t *const scales = row + d;
    decodeNumbers(row, scales, d, key);
    decodeNumbers(row + d / 2, scales + nRowScales(d), d, value);
  }
  void round(HostTokens &tokens) const override {
    tokens.rounded.resize(tokens.at(tokens.shape.nTasks(), 0));
    for (std::size_t i = 0; i != tokens.rounded.size(); i += headDim())
      roundRow(tokens.values + i, headDim(), &tokens.rounded[i]);
    tokens.values = tokens.rounded.data();
  }
};

class CodedRows final : public JoinedRows {
public:
  using JoinedRows::JoinedRows;

  std::unique_ptr<HostStore> host(Graph &graph, const Cache &cache) const override {
    return std::make_unique<HostCodedRows>(hostRows(graph, cache), cache.layout());
  }
  void addCut(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
              const Tensor &pieces, unsigned n, unsigned headDim, unsigned width) const override {
    addVertex(graph, cs, "sparq::CutCodes", tile, {{"rows", rows}, {"pieces", pieces}},
              {{"n", n}, {"headDim", headDim}, {"width", width}},
              cycles::cutCodes(n, headDim, width));
  }
  void addColumns(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                  const Tensor &columns, unsigned headDim) const override {
    addVertex(graph, cs, "sparq::CodeColumns", tile, {{"rows", rows}, {"columns", columns}},
              {{"headDim", headDim}}, cycles::codeColumns(headDim));
  }

protected:
  std::unique_ptr<Coder> coder(Graph &graph, const Cache &cache, unsigned nPlaces, unsigned width,
                               const TileOfRow &tileOf, const DebugContext &dc) const override {
    return std::make_unique<RowRounder>(graph, cache.layout().headDim, nPlaces, width, tileOf, dc);
  }
};

class CodedRowsKind final : public StoreKind {
public:
  void layOut(const Request &, CacheLayout &layout) const override {
    layout.rowsPerPosition = layout.positionsPerRow = 1;
    layout.rowElements = codedRow(layout.headDim);
  }
  std::shared_ptr<const Store> make(Graph &graph, const Cache &cache,
                                    bool hostWrites) const override {
    return std::make_shared<CodedRows>(graph, cache, hostWrites);
  }
};

const CodedRowsKind kind;

} // namespace

const StoreKind &codedRows = kind;

} // namespace sparq
