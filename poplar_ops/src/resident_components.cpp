// SPDX-License-Identifier: Apache-2.0
#include "arith/scale.hpp"
#include "codelets/cycles.hpp"
#include "codelets/resident_components.cycles.hpp"
#include "stores/resident_records.hpp"

namespace sparq {

using namespace poplar;

// Components of which a part has the magnitudes: four a worker.
static constexpr unsigned perPiece = 4 * cycles::nWorkers;

QueryComponents ResidentRecords::components(const Context &context,
                                            const SparqSettings &settings) const {
  QueryComponents q = createQueryComponents(context, settings, false);
  const auto everywhere = [&](const Tensor &t) {
    return t.expand({1}).broadcast(context.parts(), 1);
  };
  q.magnitudes = everywhere(
      context.sliced(FLOAT, context.layout().indexDim, perPiece, 1, "magnitudes").squeeze({2}));
  const Tensor temperature = context.once("inverse_temperature", [&] {
    const Placement &p = context.placement();
    const Tensor t = context.graph.addVariable(FLOAT, {p.slots, context.groupSize()},
                                               {context.dc, "inverse_temperature"});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      context.graph.setTileMapping(t[slot], p.tile(slot, context.parts() - 1));
    return t;
  });
  q.inverseTemperature = everywhere(temperature);
  return q;
}

void ResidentRecords::selectComponents(const Context &context, const SparqSettings &settings,
                                       const QueryComponents &q) const {
  const unsigned d = context.headDim(), n = context.layout().indexDim, g = context.groupSize(),
                 r = settings.rank;
  const ComputeSet magnitude = context.execute("group_magnitude");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned first = 0, i = 0; first < n; first += perPiece, ++i) {
      const unsigned own = std::min(perPiece, n - first), part = i % context.parts();
      addVertex(context.graph, magnitude, "sparq::PieceMagnitude", context.tile(slot, part),
                {{"query", q.query[slot][part]},
                 {"magnitudes", q.magnitudes[slot][part].slice(first, first + own)}},
                {{"groupSize", g}, {"headDim", d}, {"first", first}, {"n", own}},
                cycles::pieceMagnitude(own, g));
    }
  rankComponents(context, settings, q);
  const ComputeSet list = context.execute("component_list");
  const Tensor filled = context.perPart(UNSIGNED_INT, {}, "filled"),
               columns = columnsOf(context, r);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts(); ++part)
      addVertex(context.graph, list, "sparq::ListComponents", context.tile(slot, part),
                {{"length", context.cache.filled[context.task(slot)]},
                 {"filled", filled[slot][part]},
                 {"layer", context.cache.layer[slot][part]},
                 {"query", q.query[slot][part]},
                 {"selected", q.selected[slot]},
                 {"components", q.components[slot][part]},
                 {"columns", columns[slot][part]},
                 {"selectedQuery", q.selectedQuery[slot][part]}},
                {{"groupSize", g},
                 {"headDim", d},
                 {"nComponents", n},
                 {"rank", r},
                 {"columnWords", static_cast<unsigned>(index_.dim(4))}},
                cycles::listComponents(n, g, r));
}

void ResidentRecords::addTemperatures(const Context &context, const ComputeSet &cs,
                                      const QueryComponents &q) const {
  const unsigned d = context.headDim(), n = context.layout().indexDim, g = context.groupSize(),
                 last = context.parts() - 1;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    addVertex(context.graph, cs, "sparq::HeadTemperatures", context.tile(slot, last),
              {{"query", q.query[slot][last]},
               {"selected", q.selected[slot]},
               {"magnitudeSums", q.magnitudeSums[slot][last]},
               {"inverseTemperature", q.inverseTemperature[slot][last]}},
              {{"groupSize", g}, {"headDim", d}, {"nComponents", n}, {"scale", attentionScale(d)}},
              cycles::headTemperatures(n, g));
}

} // namespace sparq
