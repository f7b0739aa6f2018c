// SPDX-License-Identifier: Apache-2.0
//
// Joined rows. Those of 8 bits are rounded as they are appended, so that all other stores have what
// they hold.
#include "arith/half_bits.hpp"
#include "arith/row_codes.hpp"
#include "codelets/cache.cycles.hpp"
#include "codelets/hot_rows.cycles.hpp"
#include "rows.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace sparq {

namespace {

// One key or value of fp16 bits into its codes and scales, and back.
void encodeNumbers(const std::uint16_t *from, unsigned headDim, std::uint16_t *codes,
                   std::uint16_t *scales) {
  std::fill_n(scales, nRowScales(headDim), 0);
  for (unsigned first = 0; first < headDim; first += rowGroup) {
    const unsigned n = std::min(rowGroup, headDim - first);
    float numbers[rowGroup], most = 0;
    for (unsigned i = 0; i != n; ++i) {
      numbers[i] = widen(from[first + i]);
      most = std::max(most, std::fabs(numbers[i]));
    }
    const float scale = rowScale(most), inverse = 1.0f / scale;
    scales[first / rowGroup] = static_cast<std::uint16_t>(bitcast<unsigned>(scale) >> 16);
    for (unsigned c = 0; c != n; c += 4) {
      std::uint32_t word = 0;
      for (unsigned i = 0; i != 4; ++i)
        word |= static_cast<std::uint32_t>(rowCode(numbers[c + i], inverse) + rowCodeOffset)
                << codeShift(i);
      std::memcpy(codes + (first + c) / 2, &word, sizeof(word));
    }
  }
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

class HostJoinedRows final : public HostStore {
public:
  HostJoinedRows(RemoteRows rows, const CacheLayout &layout, bool coded)
      : rows_(std::move(rows)), layout_(layout), coded_(coded) {}
  void write(Engine &engine, HostTokens &tokens) override {
    RemoteRows::Writer writer(rows_, engine);
    std::vector<std::uint16_t> row(layout_.rowElements);
    if (coded_) // values as rows hold them, for other stores
      tokens.rounded.resize(tokens.at(tokens.shape.nTasks(), 0));
    for (unsigned task = 0; task != layout_.nTasks; ++task)
      for (unsigned i = 0; i != tokens.countOf(task); ++i) {
        const std::size_t at = tokens.at(task, i);
        code(tokens.keys + at, tokens.values + at, row.data());
        if (coded_)
          decodeValue(row.data(), &tokens.rounded[at]);
        writer.add(tokens.layer * layout_.layerRows() +
                       layout_.keyRow(task, tokens.heldBy(task) + i),
                   row.data());
      }
    writer.finish();
    if (coded_)
      tokens.values = tokens.rounded.data();
  }
  void read(Engine &engine, unsigned layer, const std::vector<HostRange> &ranges) const override {
    struct Place {
      std::uint16_t *key, *value;
    };
    std::vector<std::size_t> rows;
    std::vector<Place> to;
    for (const HostRange &range : ranges)
      for (unsigned position = range.begin; position < range.end; ++position) {
        const std::size_t at = std::size_t(position - range.begin) * layout_.headDim;
        rows.push_back(layer * layout_.layerRows() + layout_.keyRow(range.task, position));
        to.push_back({range.key + at, range.value + at});
      }
    rows_.read(engine, rows, [&](std::size_t i, const void *data) {
      decode(static_cast<const std::uint16_t *>(data), to[i].key, to[i].value);
    });
  }

private:
  void code(const std::uint16_t *key, const std::uint16_t *value, std::uint16_t *row) const {
    const unsigned d = layout_.headDim;
    if (coded_) {
      encodeNumbers(key, d, row, row + d);
      encodeNumbers(value, d, row + d / 2, row + d + nRowScales(d));
    } else {
      std::copy_n(key, d, row);
      std::copy_n(value, d, row + d);
    }
  }
  void decode(const std::uint16_t *row, std::uint16_t *key, std::uint16_t *value) const {
    const unsigned d = layout_.headDim;
    if (coded_) {
      decodeNumbers(row, row + d, d, key);
      decodeValue(row, value);
    } else {
      std::copy_n(row, d, key);
      std::copy_n(row + d, d, value);
    }
  }
  void decodeValue(const std::uint16_t *row, std::uint16_t *value) const {
    const unsigned d = layout_.headDim;
    decodeNumbers(row + d / 2, row + d + nRowScales(d), d, value);
  }

  RemoteRows rows_;
  CacheLayout layout_;
  bool coded_;
};

} // namespace

void JoinedRows::layOut(const Request &request, CacheLayout &layout) {
  layout.rowsPerPosition = layout.positionsPerRow = 1;
  layout.rowElements =
      request.shape.rowBits == 8 ? codedRow(layout.headDim) : std::size_t(2) * layout.headDim;
}

Tensor JoinedRows::code(const Steps &steps, const Places &places,
                        std::map<std::string, Tensor> &variables, Tensor &keys,
                        Tensor &values) const {
  if (!coded_)
    return concat(keys, values, 1);
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

void JoinedRows::append(Append &step) const {
  const Placement &p = step.placement();
  constexpr unsigned width = 32;
  const Places places{p.nTasks, {{0, p.nTasks}}, width, [&](unsigned task, unsigned component) {
                        return p.tile(task % p.slots, component / width % p.parts);
                      }};
  std::map<std::string, Tensor> variables;
  const Tensor coded = code(step, places, variables, step.keys, step.values);
  const Tensor rows = addAppendOffsets(step);
  step.cache.lockstep->write(buffer(), coded, rows.slice(0, 1, 1).flatten(), step.program,
                             {step.dc, "write_rows"});
}

void JoinedRows::fill(FillStep &step) const {
  const Placement &p = step.placement();
  const Tensor numbers = fillRows(step, "fill_rows");
  const unsigned length = step.length, perPart = ceilDiv(length, p.parts), n = step.n();
  Places places{p.slots * length, {}, step.layout().headDim, [&](unsigned place, unsigned) {
                  return p.tile(place / length, place % length / perPart);
                }};
  std::vector<Tensor> rows;
  for (unsigned i = 0; i != step.nTasks; ++i) {
    const unsigned slot = step.slot(i);
    rows.push_back(numbers[slot].slice(0, n));
    step.addOffsets(slot, rows.back(), step.layout().keyRow(step.firstTask + i, step.begin), 1,
                    step.cache.layerRows());
    places.used.emplace_back(slot * length, slot * length + n);
  }
  Tensor keys = concat(step.keys), values = concat(step.values);
  const Tensor coded = code(step, places, step.variables, keys, values);
  for (unsigned i = 0; i != step.nTasks; ++i) {
    step.keys[i] = keys.slice(i * n, (i + 1) * n);
    step.values[i] = values.slice(i * n, (i + 1) * n);
  }
  step.cache.lockstep->write(buffer(), coded, concat(rows), step.program, {step.dc, "fill_rows"});
}

std::shared_ptr<HostStore> JoinedRows::host(const HostSite &site) const {
  return std::make_shared<HostJoinedRows>(hostRows(site), site.cache.layout(), coded_);
}

void JoinedRows::addCut(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                        const Tensor &pieces, unsigned n, unsigned headDim, unsigned width) const {
  addVertex(graph, cs, coded_ ? "sparq::CutCodes" : "sparq::CutRows", tile,
            coded_ ? cycles::cutCodes(n, headDim, width) : cycles::cutRows(n, headDim, width),
            "rows"_f = rows, "pieces"_f = pieces, "n"_f = n, "headDim"_f = headDim,
            "width"_f = width);
}

void JoinedRows::addColumns(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                            const Tensor &columns, const CacheLayout &layout) const {
  if (coded_)
    addVertex(graph, cs, "sparq::CodeColumns", tile, cycles::codeColumns(layout.indexDim),
              "rows"_f = rows, "columns"_f = columns, "headDim"_f = layout.headDim,
              "nComponents"_f = layout.indexDim);
  else
    addVertex(graph, cs, "sparq::FillColumns", tile, cycles::fillColumns(layout.indexDim, block),
              "keys"_f = rows, "columns"_f = columns, "n"_f = block,
              "rowSize"_f = layout.rowElements, "nComponents"_f = layout.indexDim,
              "tailLength"_f = block);
}

} // namespace sparq
