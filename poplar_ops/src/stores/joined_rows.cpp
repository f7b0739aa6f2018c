// SPDX-License-Identifier: Apache-2.0
#include "codelets/cache.cycles.hpp"
#include "codelets/hot_rows.cycles.hpp"
#include "rows.hpp"
#include <algorithm>

namespace sparq {

namespace {

class JoinedRowsKind : public StoreKind {
public:
  void layOut(const Request &, CacheLayout &layout) const override {
    layout.rowsPerPosition = layout.positionsPerRow = 1;
    layout.rowElements = std::size_t(2) * layout.headDim;
  }
};

const KindOf<JoinedRows, JoinedRowsKind> joinedRowsKind;

} // namespace

const StoreKind &joinedRows = joinedRowsKind;

Tensor JoinedRows::code(const Steps &, const Places &, std::map<std::string, Tensor> &,
                        Tensor &keys, Tensor &values) const {
  return concat(keys, values, 1);
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

std::unique_ptr<HostStore> JoinedRows::host(Graph &graph, const Cache &cache) const {
  return std::make_unique<HostJoinedRows>(hostRows(graph, cache), cache.layout());
}

void JoinedRows::addCut(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                        const Tensor &pieces, unsigned n, unsigned headDim, unsigned width) const {
  addVertex(graph, cs, "sparq::CutRows", tile, cycles::cutRows(n, headDim, width), "rows"_f = rows,
            "pieces"_f = pieces, "n"_f = n, "headDim"_f = headDim, "width"_f = width);
}

void JoinedRows::addColumns(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                            const Tensor &columns, const CacheLayout &layout) const {
  addVertex(graph, cs, "sparq::FillColumns", tile, cycles::fillColumns(layout.indexDim, block),
            "keys"_f = rows, "columns"_f = columns, "n"_f = block,
            "rowSize"_f = static_cast<unsigned>(layout.rowElements),
            "nComponents"_f = layout.indexDim, "tailLength"_f = block);
}

void HostJoinedRows::write(Engine &engine, HostTokens &tokens) {
  RemoteRows::Writer writer(remote, engine);
  std::vector<std::uint16_t> row(layout_.rowElements);
  for (unsigned task = 0; task != layout_.nTasks; ++task)
    for (unsigned i = 0; i != tokens.countOf(task); ++i) {
      const std::size_t at = tokens.at(task, i);
      code(tokens.keys + at, tokens.values + at, row.data());
      writer.add(tokens.layer * layout_.layerRows() + layout_.keyRow(task, tokens.heldBy(task) + i),
                 row.data());
    }
  writer.finish();
  round(tokens);
}

void HostJoinedRows::read(Engine &engine, unsigned layer,
                          const std::vector<HostRange> &ranges) const {
  struct Place {
    std::uint16_t *key, *value;
  };
  std::vector<std::size_t> rows;
  std::vector<Place> to;
  for (const HostRange &range : ranges)
    for (unsigned position = range.begin; position < range.end; ++position) {
      const std::size_t at = std::size_t(position - range.begin) * headDim();
      rows.push_back(layer * layout_.layerRows() + layout_.keyRow(range.task, position));
      to.push_back({range.key + at, range.value + at});
    }
  remote.read(engine, rows, [&](std::size_t i, const void *data) {
    decode(static_cast<const std::uint16_t *>(data), to[i].key, to[i].value);
  });
}

void HostJoinedRows::code(const std::uint16_t *key, const std::uint16_t *value,
                          std::uint16_t *row) const {
  std::copy_n(key, headDim(), row);
  std::copy_n(value, headDim(), row + headDim());
}

void HostJoinedRows::decode(const std::uint16_t *row, std::uint16_t *key,
                            std::uint16_t *value) const {
  std::copy_n(row, headDim(), key);
  std::copy_n(row + headDim(), headDim(), value);
}

} // namespace sparq
