// SPDX-License-Identifier: Apache-2.0
//
// Joined rows of 8 bits (docs/exactness.md E10): rounded as they are appended, so that all other
// stores have what they hold.
#include "arith/half_bits.hpp"
#include "arith/row_codes.hpp"
#include "codelets/cache.cycles.hpp"
#include "rows.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace sparq {

namespace {

// Calls `use(first, n, scale, codes)` for each group of a row of fp16 bits: its n components from
// `first` on are codes[i] * scale, about. The codes are integers.
template <class Use>
void eachRowGroup(const std::uint16_t *row, std::size_t headDim, const Use &use) {
  for (std::size_t first = 0; first < headDim; first += rowGroup) {
    const std::size_t n = std::min<std::size_t>(rowGroup, headDim - first);
    float codes[rowGroup], most = 0;
    for (std::size_t i = 0; i != n; ++i) {
      codes[i] = widen(row[first + i]);
      most = std::max(most, std::fabs(codes[i]));
    }
    const float scale = rowScale(most), inverse = 1.0f / scale;
    for (std::size_t i = 0; i != n; ++i)
      codes[i] = rowCode(codes[i], inverse);
    use(first, n, scale, codes);
  }
}

// A key or a value as a cache with rows of 8 bits holds it; `to` may be `row`.
void roundRow(const std::uint16_t *row, std::size_t headDim, std::uint16_t *to) {
  eachRowGroup(row, headDim,
               [&](std::size_t first, std::size_t n, float scale, const float *codes) {
                 for (std::size_t i = 0; i != n; ++i)
                   to[first + i] = narrow(codes[i] * scale);
               });
}

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
            word |= static_cast<std::uint32_t>(code[c + i] + rowCodeOffset) << codeShift(i);
          std::memcpy(codes + (first + c) / 2, &word, sizeof(word));
        }
      });
}
void decodeNumbers(const std::uint16_t *codes, const std::uint16_t *scales, unsigned headDim,
                   std::uint16_t *to) {
  for (unsigned c = 0; c != headDim; ++c) {
    std::uint32_t word;
    std::memcpy(&word, codes + c / 4 * 2, sizeof(word));
    const int code = static_cast<int>((word >> codeShift(c % 4)) & 0xffu) - int(rowCodeOffset);
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
    addVertex(graph, cs, "sparq::CutCodes", tile, cycles::cutCodes(n, headDim, width),
              "rows"_f = rows, "pieces"_f = pieces, "n"_f = n, "headDim"_f = headDim,
              "width"_f = width);
  }
  void addColumns(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                  const Tensor &columns, const CacheLayout &layout) const override {
    addVertex(graph, cs, "sparq::CodeColumns", tile, cycles::codeColumns(layout.indexDim),
              "rows"_f = rows, "columns"_f = columns, "headDim"_f = layout.headDim,
              "nComponents"_f = layout.indexDim);
  }

protected:
  Tensor code(const Steps &steps, const Places &places, std::map<std::string, Tensor> &variables,
              Tensor &keys, Tensor &values) const override;
};

class CodedRowsKind : public StoreKind {
public:
  void layOut(const Request &, CacheLayout &layout) const override {
    layout.rowsPerPosition = layout.positionsPerRow = 1;
    layout.rowElements = codedRow(layout.headDim);
  }
};

const KindOf<CodedRows, CodedRowsKind> codedRowsKind;

Tensor CodedRows::code(const Steps &steps, const Places &places,
                       std::map<std::string, Tensor> &variables, Tensor &keys,
                       Tensor &values) const {
  const unsigned d = steps.layout().headDim;
  const ComputeSet cs = steps.execute("round_rows");
  std::vector<Tensor> numbers[2], codes, scales;
  for (const bool ofValues : {false, true})
    for (unsigned first = 0; first < d; first += places.width) { // a multiple of 32, or headDim
      const unsigned n = std::min(places.width, d - first), of = ofValues ? d + first : first;
      const Tensor from = (ofValues ? values : keys).slice(first, first + n, 1);
      const auto working = [&](std::size_t inner, const char *name) {
        return onceIn(variables, name + std::to_string(of), [&] {
          const Tensor t = steps.graph.addVariable(HALF, {places.n, inner}, {steps.dc, name});
          for (unsigned place = 0; place != places.n; ++place)
            steps.graph.setTileMapping(t[place], places.tileOf(place, of));
          return t;
        });
      };
      const Tensor rounded = working(n, "rounded_rows"), code = working(n / 2, "row_codes"),
                   scale = working(nRowScales(n), "row_scales");
      unsigned done = 0;
      for (const auto &used : places.used) {
        for (unsigned begin = used.first, end; begin != used.second; begin = end) {
          // Rows that follow each other on a tile share a vertex.
          const unsigned tile = places.tileOf(begin, of);
          for (end = begin + 1; end != used.second && places.tileOf(end, of) == tile;)
            ++end;
          const auto own = [&](const Tensor &t) { return t.slice(begin, end).flatten(); };
          addVertex(steps.graph, cs, "sparq::RoundRows", tile, cycles::roundRows(end - begin, n),
                    "numbers"_f = from.slice(done, done + end - begin), "rounded"_f = own(rounded),
                    "codes"_f = own(code), "scales"_f = own(scale), "n"_f = end - begin,
                    "width"_f = n);
          done += end - begin;
        }
      }
      const auto chosen = [&](const Tensor &t) {
        std::vector<Tensor> slices;
        for (const auto &used : places.used)
          slices.push_back(t.slice(used.first, used.second));
        return concat(slices);
      };
      numbers[ofValues].push_back(chosen(rounded));
      codes.push_back(chosen(code));
      scales.push_back(chosen(scale));
    }
  codes.insert(codes.end(), scales.begin(), scales.end());
  keys = concat(numbers[0], 1);
  values = concat(numbers[1], 1);
  return concat(codes, 1);
}

} // namespace

const StoreKind &codedRows = codedRowsKind;

} // namespace sparq
