// SPDX-License-Identifier: Apache-2.0
#include "query_components.hpp"
#include "arith/scale.hpp"
#include "codelets/cycles.hpp"
#include "codelets/query_components.cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

Tensor createQuery(const Context &context) {
  return context.perPart(HALF, {std::size_t(context.groupSize()) * context.headDim()}, "query");
}

void loadQuery(const Context &context, const Tensor &query, const Tensor &perPart) {
  const std::size_t first = context.task(0), n = context.nSlots();
  const Tensor tasks =
      query.reshape({context.plan().shape.nTasks(), perPart.dim(2)}).slice(first, first + n, 0);
  // The lengths too: nearly every step asks for them, and would wait for an exchange.
  const Tensor filled = context.perPart(UNSIGNED_INT, {}, "filled");
  context.copy(
      context.cache.filled.slice(first, first + n, 0).expand({1}).broadcast(context.parts(), 1),
      context.active(filled), {context.dc, "lengths"});
  context.copy(tasks.expand({1}).broadcast(context.parts(), 1), context.active(perPart),
               {context.dc, "query"});
}

// Components that one part ranks: no fewer than it has workers, so that parts are left for the
// sums.
static unsigned ranksPerPart(const Context &context) {
  return std::max((context.headDim() + context.parts() - 1) / context.parts(), cycles::nWorkers);
}

QueryComponents createQueryComponents(const Context &context, const SparqSettings &settings) {
  const std::size_t d = context.headDim(), g = context.groupSize(), r = settings.rank;
  QueryComponents q;
  q.query = createQuery(context);
  q.magnitudes = context.perPart(FLOAT, {d}, "magnitudes");
  q.selected = context.sliced(UNSIGNED_INT, d, ranksPerPart(context), 1, "selected").squeeze({2});
  q.magnitudeSums = context.perPart(FLOAT, {g}, "magnitude_sums");
  q.components = context.perPart(UNSIGNED_INT, {r}, "components");
  q.selectedQuery = context.perPart(FLOAT, {g * r}, "selected_query");
  q.inverseTemperature = context.perPart(FLOAT, {g}, "inverse_temperature");
  return q;
}

void selectComponents(const Context &context, const SparqSettings &settings,
                      const QueryComponents &q) {
  const Placement &p = context.placement();
  const unsigned d = context.headDim(), g = context.groupSize(), r = settings.rank;
  const unsigned perPart = ranksPerPart(context);
  const ComputeSet magnitudes = context.execute("group_magnitude");
  const ComputeSet ranks = context.execute("component_ranks");
  const ComputeSet list = context.execute("component_list");
  const unsigned last = p.parts - 1;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    addVertex(context.graph, ranks, "sparq::MagnitudeSums", context.tile(slot, last),
              {{"query", q.query[slot][last]}, {"sums", q.magnitudeSums[slot][last]}},
              {{"groupSize", g}, {"headDim", d}}, cycles::magnitudeSums(d, g));
    for (unsigned part = 0; part != p.parts; ++part) {
      const unsigned tile = context.tile(slot, part);
      const unsigned first = part * perPart;
      if (first < d) { // only these rank components
        addVertex(context.graph, magnitudes, "sparq::GroupMagnitude", tile,
                  {{"query", q.query[slot][part]}, {"magnitudes", q.magnitudes[slot][part]}},
                  {{"groupSize", g}, {"headDim", d}}, cycles::groupMagnitude(d, g));
        const unsigned n = std::min(perPart, d - first);
        addVertex(context.graph, ranks, "sparq::ComponentRanks", tile,
                  {{"magnitudes", q.magnitudes[slot][part]},
                   {"selected", q.selected[slot].slice(first, first + n)}},
                  {{"headDim", d}, {"first", first}, {"nComponents", n}, {"rank", r}},
                  cycles::componentRanks(n, d));
      }
      addVertex(context.graph, list, "sparq::ComponentList", tile,
                {{"query", q.query[slot][part]},
                 {"selected", q.selected[slot]},
                 {"magnitudeSums", q.magnitudeSums[slot][last]},
                 {"components", q.components[slot][part]},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"inverseTemperature", q.inverseTemperature[slot][part]}},
                {{"groupSize", g}, {"headDim", d}, {"rank", r}, {"scale", attentionScale(d)}},
                cycles::componentList(d, g, r));
    }
  }
}

} // namespace sparq
