// SPDX-License-Identifier: Apache-2.0
#include "query_components.hpp"
#include "arith/scale.hpp"
#include "codelets/scores.cycles.hpp"

namespace sparq {

Tensor createQuery(const Context &context) {
  return context.perPart(HALF, {std::size_t(context.groupSize()) * context.headDim()}, "query");
}

Tensor queryOfParts(const Context &context, const Tensor &query) {
  const std::size_t first = context.task(0), n = context.nSlots(),
                    each = std::size_t(context.groupSize()) * context.headDim();
  return query.reshape({context.plan().shape.nTasks(), each})
      .slice(first, first + n, 0)
      .expand({1})
      .broadcast(context.parts(), 1);
}

void loadQuery(const Context &context, const Tensor &query, const Tensor &perPart) {
  const std::size_t first = context.task(0), n = context.nSlots();
  // The lengths too: nearly every step asks for them, and would wait for an exchange.
  const Tensor filled = context.perPart(UNSIGNED_INT, {}, "filled");
  context.copy(
      context.cache.filled.slice(first, first + n, 0).expand({1}).broadcast(context.parts(), 1),
      context.active(filled), {context.dc, "lengths"});
  context.copy(queryOfParts(context, query), context.active(perPart), {context.dc, "query"});
}

// Of n numbers, those that one part ranks: no fewer than it has workers, so that parts are left for
// the sums.
static unsigned ranksPerPart(const Context &context, unsigned n) {
  return std::max((n + context.parts() - 1) / context.parts(), cycles::nWorkers);
}

static unsigned rankParts(const Context &context, unsigned n) {
  const unsigned perPart = ranksPerPart(context, n);
  return (n + perPart - 1) / perPart;
}

QueryComponents createQueryComponents(const Context &context, const SparqSettings &settings,
                                      bool everywhere) {
  const std::size_t d = context.headDim(), g = context.groupSize(), r = settings.rank;
  QueryComponents q;
  q.query = createQuery(context);
  const unsigned n = context.layout().indexDim;
  q.selected =
      context.sliced(UNSIGNED_INT, n, ranksPerPart(context, n), 1, "selected").squeeze({2});
  q.magnitudeSums = context.perPart(FLOAT, {g}, "magnitude_sums");
  q.components = context.perPart(UNSIGNED_INT, {r}, "components");
  q.selectedQuery = context.perPart(FLOAT, {g * r}, "selected_query");
  if (everywhere) {
    q.magnitudes = context.perPart(FLOAT, {d}, "magnitudes");
    q.inverseTemperature = context.perPart(FLOAT, {g}, "inverse_temperature");
  }
  return q;
}

// On the parts that rank.
static void addMagnitudes(const Context &context, const QueryComponents &q) {
  const unsigned d = context.headDim(), g = context.groupSize(), nParts = rankParts(context, d);
  const ComputeSet cs = context.execute("group_magnitude");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != nParts; ++part)
      context.addVertex(cs, "sparq::GroupMagnitude", slot, part, cycles::groupMagnitude(d, g),
                        "query"_f = q.query[slot][part], "magnitudes"_f = q.magnitudes[slot][part],
                        "groupSize"_f = g, "headDim"_f = d);
}

void rankComponents(const Context &context, const SparqSettings &settings,
                    const QueryComponents &q) {
  const unsigned d = context.headDim(), g = context.groupSize();
  const ComputeSet cs = context.execute("component_ranks");
  const unsigned last = context.parts() - 1, n = static_cast<unsigned>(q.magnitudes.dim(2)),
                 perPart = ranksPerPart(context, n);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    context.addVertex(cs, "sparq::MagnitudeSums", slot, last, cycles::magnitudeSums(d, g),
                      "query"_f = q.query[slot][last], "sums"_f = q.magnitudeSums[slot][last],
                      "groupSize"_f = g, "headDim"_f = d);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned first = 0, part = 0; first < n; first += perPart, ++part) {
      const unsigned own = std::min(perPart, n - first); // only these rank components
      context.addVertex(cs, "sparq::ComponentRanks", slot, part, cycles::componentRanks(own, n),
                        "magnitudes"_f = q.magnitudes[slot][part],
                        "selected"_f = q.selected[slot].slice(first, first + own), "headDim"_f = n,
                        "first"_f = first, "nComponents"_f = own, "rank"_f = settings.rank);
    }
}

static void listComponents(const Context &context, const SparqSettings &settings,
                           const QueryComponents &q) {
  const unsigned d = context.headDim(), g = context.groupSize(), r = settings.rank;
  const ComputeSet cs = context.execute("component_list");
  const unsigned last = context.parts() - 1;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts(); ++part)
      context.addVertex(cs, "sparq::ComponentList", slot, part, cycles::componentList(d, g, r),
                        "query"_f = q.query[slot][part], "selected"_f = q.selected[slot],
                        "magnitudeSums"_f = q.magnitudeSums[slot][last],
                        "components"_f = q.components[slot][part],
                        "selectedQuery"_f = q.selectedQuery[slot][part],
                        "inverseTemperature"_f = q.inverseTemperature[slot][part],
                        "groupSize"_f = g, "headDim"_f = d, "rank"_f = r,
                        "scale"_f = attentionScale(d));
}

void selectComponents(const Context &context, const SparqSettings &settings,
                      const QueryComponents &q) {
  addMagnitudes(context, q);
  rankComponents(context, settings, q);
  listComponents(context, settings, q);
}

} // namespace sparq
