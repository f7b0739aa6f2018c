// SPDX-License-Identifier: Apache-2.0
#include "arith/half_bits.hpp"
#include "codelets/dense_resident.cycles.hpp"
#include "rows.hpp"
#include <algorithm>
#include <array>

namespace sparq {

namespace {

constexpr unsigned octet = 8, quad = 4, pair = 2;

class HostResidentRows final : public HostStore {
public:
  HostResidentRows(const HostSite &site, const ResidentRows &rows)
      : layout_(site.cache.layout()), pieces_(rows.pieces) {
    const std::array<Tensor, 2> tensors{rows.keys, rows.values};
    const std::array<const char *, 2> names{"/keys", "/values"};
    for (std::size_t i = 0; i != tensors.size(); ++i) {
      writable_[i] = site.writable(tensors[i], names[i]);
      readable_[i] = site.readable(tensors[i], names[i]);
    }
  }

  void write(Engine &engine, HostTokens &tokens) override {
    for (const bool ofValues : {false, true}) {
      std::vector<std::uint16_t> all = contents(engine, ofValues);
      const std::uint16_t *const from = ofValues ? tokens.values : tokens.keys;
      for (unsigned task = 0; task != layout_.nTasks; ++task)
        for (unsigned i = 0; i != tokens.countOf(task); ++i)
          for (unsigned c = 0; c != layout_.headDim; ++c)
            all[at(ofValues, tokens.layer, task, tokens.heldBy(task) + i, c)] =
                from[tokens.at(task, i) + c];
      if (layout_.wideRows) {
        std::vector<float> wide(all.size());
        std::transform(all.begin(), all.end(), wide.begin(), widen);
        writable_[ofValues].write(engine, wide.data());
      } else {
        writable_[ofValues].write(engine, all.data());
      }
    }
  }

  void read(Engine &engine, unsigned layer, const std::vector<HostRange> &ranges) const override {
    for (const bool ofValues : {false, true}) {
      const std::vector<std::uint16_t> all = contents(engine, ofValues);
      for (const HostRange &range : ranges) {
        std::uint16_t *to = ofValues ? range.value : range.key;
        for (unsigned position = range.begin; to != nullptr && position < range.end; ++position)
          for (unsigned c = 0; c != layout_.headDim; ++c)
            *to++ = all[at(ofValues, layer, range.task, position, c)];
      }
    }
  }

private:
  std::vector<std::uint16_t> contents(Engine &engine, bool ofValues) const {
    std::vector<std::uint16_t> all(readable_[ofValues].size());
    if (layout_.wideRows) {
      std::vector<float> wide(all.size());
      readable_[ofValues].read(engine, wide.data());
      std::transform(wide.begin(), wide.end(), all.begin(), narrow);
    } else {
      readable_[ofValues].read(engine, all.data());
    }
    return all;
  }
  // Where a component of a position is.
  std::size_t at(bool ofValues, unsigned layer, unsigned task, unsigned position,
                 unsigned c) const {
    const std::size_t d = layout_.headDim, nLayers = layout_.nLayers;
    if (!ofValues) {
      const unsigned part = position / pieces_.positions, local = position % pieces_.positions;
      return ((task * std::size_t(pieces_.nKeyParts) + part) * nLayers + layer) *
                 pieces_.keyElements(layout_.headDim) +
             local / pair * pair * d + (placeOfLane(c % octet) * (d / octet) + c / octet) * pair +
             local % pair;
    }
    const unsigned unit = position / block * pieces_.perBlock + c / pair;
    return ((task * std::size_t(pieces_.nValueParts) + unit / pieces_.units) * nLayers + layer) *
               pieces_.valueElements() +
           (unit % pieces_.units * block + position % block) * std::size_t(pair) + c % pair;
  }
  // As in codelets/dense_resident.cpp.
  static unsigned placeOfLane(unsigned lane) { return 0x73516240u >> lane * 4 & 7; }

  CacheLayout layout_;
  ResidentPieces pieces_;
  std::array<HostTensor, 2> writable_, readable_; // keys, values
};

Tensor addPieces(Graph &graph, const Cache &cache, unsigned nParts, std::size_t elements,
                 const char *name, unsigned firstPart) {
  const bool wide = cache.layout().wideRows;
  const Tensor t =
      addOnParts(graph, cache.plan.placement, wide ? FLOAT : HALF, cache.plan.placement.nTasks,
                 nParts, {cache.layout().nLayers, elements}, cache.name + name,
                 [&](unsigned i) { return (firstPart + i) % cache.plan.placement.parts; });
  // A host writes some of it, and a pair of positions is read whole.
  if (wide)
    graph.setInitialValue(t, 0.0f);
  else
    graph.setInitialValueHalf(t, 0);
  return t;
}

} // namespace

void ResidentRows::layOut(const Request &request, CacheLayout &layout) {
  layout.rowsPerPosition = layout.positionsPerRow = 1;
  layout.capacity = roundUp(request.shape.capacity, block);
}

TileNeed ResidentRows::need(const Plan &plan) {
  const ResidentPieces pieces(plan);
  return {0, std::uint64_t(plan.placement.nRounds) * plan.layout.nLayers *
                 (plan.layout.wideRows ? 4 : 2) *
                 (pieces.keyElements(plan.shape.headDim) + pieces.valueElements())};
}

ResidentPieces::ResidentPieces(const Plan &plan) {
  const unsigned parts = plan.placement.parts, capacity = plan.layout.capacity;
  positions = roundUp(ceilDiv(capacity, parts), quad); // as the softmax takes them
  nKeyParts = ceilDiv(capacity, positions);
  perBlock = plan.shape.headDim / pair;
  nUnits = capacity / block * perBlock;
  units = ceilDiv(nUnits, parts);
  nValueParts = ceilDiv(nUnits, units);
  firstValuePart = parts / 2;
}

ResidentRows::ResidentRows(Graph &graph, const Cache &cache, bool)
    : pieces(cache.plan), keys(addPieces(graph, cache, pieces.nKeyParts,
                                         pieces.keyElements(cache.layout().headDim), "/keys", 0)),
      values(addPieces(graph, cache, pieces.nValueParts, pieces.valueElements(), "/values",
                       pieces.firstValuePart)) {}

void ResidentRows::append(Append &step) const {
  const Cache &cache = step.cache;
  const Placement &p = step.placement();
  const unsigned d = step.layout().headDim;
  const ComputeSet cs = step.execute("keep_rows");
  for (unsigned task = 0; task != p.nTasks; ++task) {
    const unsigned slot = task % p.slots;
    const auto add = [&](const char *name, unsigned part, std::uint64_t cycles,
                         const auto &...fields) {
      addVertex(step.graph, cs, vertex(name, step.layout()).c_str(), p.tile(slot, part), cycles,
                "filled"_f = cache.filled[task], "active"_f = step.active[task],
                "layer"_f = cache.layer[slot][part], fields..., "headDim"_f = d);
    };
    for (unsigned part = 0; part != pieces.nKeyParts; ++part)
      add("KeepKey", part, cycles::keepKey(d), "row"_f = step.keys[task],
          "keys"_f = keys[task][part], "length"_f = pieces.positions,
          "firstPosition"_f = part * pieces.positions);
    for (unsigned part = 0; part != pieces.nValueParts; ++part)
      add("KeepValue", (pieces.firstValuePart + part) % p.parts, cycles::keepValue(d),
          "row"_f = step.values[task], "values"_f = values[task][part], "nUnits"_f = pieces.units,
          "firstUnit"_f = part * pieces.units);
  }
}

std::shared_ptr<HostStore> ResidentRows::host(const HostSite &site) const {
  return std::make_shared<HostResidentRows>(site, *this);
}

} // namespace sparq
