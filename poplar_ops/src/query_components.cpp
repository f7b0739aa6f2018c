// SPDX-License-Identifier: Apache-2.0
#include "attention_steps.hpp"
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
      context.active(filled), "lengths");
  context.copy(queryOfParts(context, query), context.active(perPart), "query");
}

// Of n numbers, those that one part ranks: no fewer than it has workers, so that parts are left for
// the sums.
static unsigned ranksPerPart(const Context &context, unsigned n) {
  return std::max((n + context.parts() - 1) / context.parts(), cycles::nWorkers);
}

// Components of which a part has the magnitudes: four a worker.
static constexpr unsigned perPiece = 4 * cycles::nWorkers;

QueryComponents createQueryComponents(const Context &context, const SparqSettings &settings) {
  const std::size_t g = context.groupSize(), r = settings.rank;
  const unsigned n = context.layout().indexDim;
  QueryComponents q;
  q.query = createQuery(context);
  q.magnitudes = context.sliced(FLOAT, n, perPiece, 1, "magnitudes").squeeze({2});
  q.selected =
      context.sliced(UNSIGNED_INT, n, ranksPerPart(context, n), 1, "selected").squeeze({2});
  q.magnitudeSums = context.perPart(FLOAT, {g}, "magnitude_sums");
  q.components = context.perPart(UNSIGNED_INT, {r}, "components");
  q.columns = context.perPart(UNSIGNED_INT, {r}, "component_columns");
  q.selectedQuery = context.perPart(FLOAT, {g * r}, "selected_query");
  q.inverseTemperature = context.onPart(context.parts() - 1, FLOAT, {g}, "inverse_temperature");
  return q;
}

// Masks of the `rank` components where the magnitudes are largest.
static void rankComponents(const Context &context, const SparqSettings &settings,
                           const QueryComponents &q) {
  const unsigned d = context.headDim(), g = context.groupSize();
  const ComputeSet cs = context.execute("component_ranks");
  const unsigned last = context.parts() - 1, n = context.layout().indexDim,
                 perPart = ranksPerPart(context, n);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    context.addVertex(cs, "sparq::MagnitudeSums", slot, last, cycles::magnitudeSums(d, g),
                      "query"_f = q.query[slot][last], "sums"_f = q.magnitudeSums[slot][last],
                      "groupSize"_f = g, "headDim"_f = d);
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned first = 0, part = 0; first < n; first += perPart, ++part) {
      const unsigned own = std::min(perPart, n - first); // only these rank components
      context.addVertex(cs, "sparq::ComponentRanks", slot, part, cycles::componentRanks(own, n),
                        "magnitudes"_f = q.magnitudes[slot],
                        "selected"_f = q.selected[slot].slice(first, first + own), "headDim"_f = n,
                        "first"_f = first, "nComponents"_f = own, "rank"_f = settings.rank);
    }
}

ComputeSet selectComponents(const Context &context, const SparqSettings &settings,
                            const QueryComponents &q, unsigned columnStep) {
  const unsigned d = context.headDim(), n = context.layout().indexDim, g = context.groupSize(),
                 r = settings.rank;
  const ComputeSet magnitude = context.execute("group_magnitude");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned first = 0, i = 0; first < n; first += perPiece, ++i) {
      const unsigned own = std::min(perPiece, n - first), part = i % context.parts();
      context.addVertex(magnitude, "sparq::PieceMagnitude", slot, part,
                        cycles::pieceMagnitude(own, g), "query"_f = q.query[slot][part],
                        "magnitudes"_f = q.magnitudes[slot].slice(first, first + own),
                        "groupSize"_f = g, "headDim"_f = d, "first"_f = first, "n"_f = own);
    }
  rankComponents(context, settings, q);
  const ComputeSet list = context.execute("component_list");
  const Tensor filled = context.perPart(UNSIGNED_INT, {}, "filled");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts(); ++part)
      context.addVertex(
          list, "sparq::ListComponents", slot, part, cycles::listComponents(n, g, r),
          "length"_f = context.cache.filled[context.task(slot)], "filled"_f = filled[slot][part],
          "layer"_f = context.cache.layer[slot][part], "query"_f = q.query[slot][part],
          "selected"_f = q.selected[slot], "components"_f = q.components[slot][part],
          "columns"_f = q.columns[slot][part], "selectedQuery"_f = q.selectedQuery[slot][part],
          "groupSize"_f = g, "headDim"_f = d, "nComponents"_f = n, "rank"_f = r,
          "columnStep"_f = columnStep);
  return list;
}

void addTemperatures(const Context &context, const ComputeSet &cs, const QueryComponents &q) {
  const unsigned d = context.headDim(), n = context.layout().indexDim, g = context.groupSize(),
                 last = context.parts() - 1;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    context.addVertex(cs, "sparq::HeadTemperatures", slot, last, cycles::headTemperatures(n, g),
                      "query"_f = q.query[slot][last], "selected"_f = q.selected[slot],
                      "magnitudeSums"_f = q.magnitudeSums[slot][last],
                      "inverseTemperature"_f = q.inverseTemperature[slot], "groupSize"_f = g,
                      "headDim"_f = d, "nComponents"_f = n, "scale"_f = attentionScale(d));
}

} // namespace sparq
