// SPDX-License-Identifier: Apache-2.0
#include "remote_copy.hpp"
#include "rows.hpp"
#include "vertex_cycles.hpp"
#include <algorithm>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

class JoinedFill final : public StoreFill {
public:
  JoinedFill(const RemoteBuffer &buffer, unsigned length, std::unique_ptr<JoinedRows::Coder> coder,
             Tensor rows)
      : buffer_(buffer), length_(length), coder_(std::move(coder)), rows_(std::move(rows)) {}

  void add(FillStep &step) const override {
    std::vector<Tensor> rows;
    std::vector<JoinedRows::Coder::Range> places;
    for (unsigned i = 0; i != step.nTasks; ++i) {
      const unsigned slot = step.slot(i);
      rows.push_back(rows_[slot].slice(0, step.n()));
      step.addOffsets(slot, rows.back(), step.cache.layout().keyRow(step.firstTask + i, step.begin),
                      1, step.cache.layerRows());
      places.push_back({slot * length_, slot * length_ + step.n()});
    }
    Tensor keys = concat(step.keys), values = concat(step.values);
    const Tensor coded = coder_->code(places, keys, values, step.program, step.dc);
    for (unsigned i = 0; i != step.nTasks; ++i) {
      step.keys[i] = keys.slice(i * step.n(), (i + 1) * step.n());
      step.values[i] = values.slice(i * step.n(), (i + 1) * step.n());
    }
    writeRemote(buffer_, coded, concat(rows), step.program, {step.dc, "fill_rows"});
  }

private:
  const RemoteBuffer &buffer_;
  const unsigned length_;
  const std::unique_ptr<JoinedRows::Coder> coder_;
  const Tensor rows_; // {slots, length}
};

class JoinedRowsKind final : public StoreKind {
public:
  void layOut(const Request &, CacheLayout &layout) const override {
    layout.rowsPerPosition = layout.positionsPerRow = 1;
    layout.rowElements = std::size_t(2) * layout.headDim;
  }
  std::shared_ptr<const Store> make(Graph &graph, const Cache &cache,
                                    bool hostWrites) const override {
    return std::make_shared<JoinedRows>(graph, cache, hostWrites);
  }
};

const JoinedRowsKind kind;

} // namespace

const StoreKind &joinedRows = kind;

Tensor JoinedRows::Coder::code(const std::vector<Range> &, Tensor &keys, Tensor &values, Sequence &,
                               const DebugContext &) const {
  return concat(keys, values, 1);
}

std::unique_ptr<JoinedRows::Coder> JoinedRows::coder(Graph &, const Cache &, unsigned, unsigned,
                                                     const TileOfRow &,
                                                     const DebugContext &) const {
  return std::make_unique<Coder>();
}

void JoinedRows::append(Append &step) const {
  const Placement &p = step.cache.plan.placement;
  constexpr unsigned width = 32; // a part's work
  const auto tileOf = [&](unsigned task, unsigned component) {
    return p.tile(task % p.slots, component / width % p.parts);
  };
  const Tensor coded = coder(step.graph, step.cache, p.nTasks, width, tileOf, step.dc)
                           ->code({{0, p.nTasks}}, step.keys, step.values, step.program, step.dc);
  const Tensor rows = addAppendOffsets(step);
  writeRemote(buffer(), coded, rows.slice(0, 1, 1).flatten(), step.program,
              {step.dc, "write_rows"});
}

std::unique_ptr<StoreFill> JoinedRows::fill(Graph &graph, const Cache &cache, unsigned length,
                                            const DebugContext &dc) const {
  const Placement &p = cache.plan.placement;
  const Tensor rows = addFillRows(graph, cache, length, dc);
  const unsigned perPart = ceilDiv(length, p.parts);
  const auto tileOf = [&](unsigned row, unsigned) {
    return p.tile(row / length, row % length / perPart);
  };
  return std::make_unique<JoinedFill>(
      buffer(), length, coder(graph, cache, p.slots * length, cache.layout().headDim, tileOf, dc),
      rows);
}

std::unique_ptr<HostStore> JoinedRows::host(Graph &graph, const Cache &cache) const {
  return std::make_unique<HostJoinedRows>(hostRows(graph, cache), cache.layout());
}

void JoinedRows::addCut(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                        const Tensor &pieces, unsigned n, unsigned headDim, unsigned width) const {
  addVertex(graph, cs, "sparq::CutRows", tile, {{"rows", rows}, {"pieces", pieces}},
            {{"n", n}, {"headDim", headDim}, {"width", width}}, cycles::cutRows(n, headDim, width));
}

void JoinedRows::addColumns(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                            const Tensor &columns, unsigned headDim) const {
  addVertex(graph, cs, "sparq::RowColumns", tile, {{"rows", rows}, {"columns", columns}},
            {{"headDim", headDim}}, cycles::fillColumns(headDim, block));
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
