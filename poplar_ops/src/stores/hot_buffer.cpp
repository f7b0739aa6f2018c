// SPDX-License-Identifier: Apache-2.0
#include "codelets/hot_rows.cycles.hpp"
#include "rows.hpp"
#include "sparq/cache.hpp"

namespace sparq {

namespace {

unsigned powerOfTwo(unsigned most) { return 1u << log2Of(most); }

// More owners save nothing, and every part reads what all of them found.
constexpr unsigned maxOwners = 32;
// Rows of a wave of misses: an eighth of all selected rows, within limits. Larger waves read rows
// in vain where few are missing; smaller ones need more waves where many are.
constexpr unsigned waveShare = 8, leastWaveRows = 64, mostWaveRows = 512;
// Most rows of the small wave that ends a step.
constexpr unsigned mostFewRows = 8;
// Slots whose misses are fetched together. Each of their parts gets a piece of every such row, so
// more slots need more exchange; with fewer slots lists differ more in length, and rows are read in
// vain.
constexpr unsigned groupSlots = 8;
// Limits of a wave in which every head fetches its own rows: rows of all heads, and bytes on a
// part.
constexpr unsigned mostWideRows = 8192, mostWideBytes = 24 * 1024;
// A list of selected positions in bytes is a part of a tile's memory, as are their rows.
constexpr unsigned maxHotRows = TierOptions::maxRows;

HotRows makeHotRows(const Request &request, const CacheLayout &layout, const Placement &placement) {
  const Shape &shape = request.shape;
  const Programs &programs = request.programs;
  unsigned topK = 0;
  for (const Attention &attention : programs.attention)
    topK = std::max(topK, std::min(attention.topK(), layout.capacity));
  const TierOptions &options = programs.tiers;
  HotRows hot{};
  hot.nOwners = std::min(maxOwners, powerOfTwo(placement.parts));
  hot.nSets = std::min(hot.nOwners, powerOfTwo(std::max(1u, placement.parts / HotRows::nPairs)));
  const unsigned wanted = options.hotRows != 0
                              ? std::max(options.hotRows, topK)
                              : std::min(4 * std::min(topK, maxHotRows), layout.capacity);
  hot.nPlaces = roundUp(std::max(wanted, topK), hot.nOwners);
  hot.width = 4;
  while (shape.headDim % hot.width != 0 || shape.headDim / hot.width > placement.parts)
    hot.width += 4;
  hot.nLists = std::max(1u, placement.slots / groupSlots);
  const unsigned unit = HotRows::cutRows * hot.nLists,
                 most = roundUp(std::max(1u, placement.slots * topK), unit),
                 usual = std::clamp(most / waveShare, leastWaveRows, mostWaveRows);
  hot.waveRows = std::min(most, roundUp(usual, unit));
  hot.fewRows = std::min(mostFewRows, hot.readUnit() / 2);
  const unsigned rowBytes = hot.partBytes(shape.headDim, placement.parts),
                 atOnce = std::min(mostWideRows / placement.slots, mostWideBytes / rowBytes),
                 rows = std::min(roundUp(topK, HotRows::cutRows),
                                 atOnce / HotRows::cutRows * HotRows::cutRows);
  hot.headRows = rows * placement.slots > hot.waveRows ? rows : 0;
  return hot;
}

class HostHotBuffer final : public HostStore {
public:
  HostHotBuffer(const HostProgram &forget, const HostTensor &misses)
      : forget_(forget), misses_(misses) {}
  void wasReset(Engine &engine) override { forget_.run(engine); }
  bool forgetHot(Engine &engine) const override {
    forget_.run(engine);
    return true;
  }
  std::optional<std::vector<std::uint32_t>> misses(Engine &engine) const override {
    std::vector<std::uint32_t> counts(misses_.size());
    misses_.read(engine, counts.data());
    return counts;
  }

private:
  HostProgram forget_;
  HostTensor misses_;
};

} // namespace

void HotBuffer::arrange(const Request &request, Plan &plan) {
  plan.hot = makeHotRows(request, plan.layout, plan.placement);
}

TileNeed HotBuffer::need(const Plan &plan) {
  const HotRows &hot = plan.hot;
  const std::uint64_t rows = std::uint64_t(hot.rowsOfSet()) * plan.shape.headDim / 2 +
                             std::uint64_t(hot.nPlaces) * hot.width * 2;
  return {0, plan.placement.nRounds * plan.layout.nLayers * rows};
}

HotBuffer::HotBuffer(Graph &graph, const Cache &cache, bool) {
  const Plan &plan = cache.plan;
  const HotRows &hot = plan.hot;
  const std::size_t d = plan.shape.headDim, nLayers = plan.layout.nLayers;
  const auto add = [&](const Type &type, unsigned n, const std::vector<std::size_t> &shape,
                       const char *name, unsigned firstPart = 0) {
    return addOnParts(graph, plan.placement, type, plan.placement.nTasks, n, shape,
                      cache.name + name, [firstPart](unsigned i) { return firstPart + i; });
  };
  keys = add(HALF, hot.nSets * HotRows::nPairs, {nLayers, hot.rowsOfSet(), d / HotRows::nPairs},
             "/hot_keys");
  values = add(HALF, hot.valueParts(plan.shape.headDim, plan.placement.parts),
               {nLayers, hot.nPlaces, hot.width}, "/hot_values");
  held = add(UNSIGNED_INT, hot.nOwners, {nLayers, hot.nWays()}, "/hot_held");
  stamps = add(UNSIGNED_INT, hot.nOwners, {nLayers, hot.nWays()}, "/hot_stamps");
  clock = add(UNSIGNED_INT, hot.nOwners, {}, "/hot_clock");
  misses = add(UNSIGNED_INT, 1, {}, "/hot_misses", plan.placement.parts - 1).squeeze({1});
  // Nothing is hot, at step 0. The clock is never set back: it counts for all layers.
  for (const Tensor &t : {held, stamps, clock, misses})
    graph.setInitialValue(t, ArrayRef<unsigned>(std::vector<unsigned>(t.numElements(), 0)));
}

void HotBuffer::appendNewest(const Append &step) const {
  Graph &graph = step.graph;
  const Cache &cache = step.cache;
  const Plan &plan = cache.plan;
  const Placement &p = plan.placement;
  const HotRows &hot = plan.hot;
  const unsigned d = plan.shape.headDim;
  const Tensor slots =
      addOnParts(graph, p, UNSIGNED_INT, p.nTasks, hot.nOwners, {}, cache.name + "/newest_places");
  const ComputeSet deal = step.execute("deal_newest"), insert = step.execute("insert_newest");
  for (unsigned task = 0; task != p.nTasks; ++task) {
    const unsigned slot = task % p.slots;
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      addVertex(graph, deal, "sparq::DealNewest", p.tile(slot, owner),
                cycles::dealNewest(hot.nWays()), "filled"_f = cache.filled[task],
                "active"_f = step.active[task], "layer"_f = cache.layer[slot][owner],
                "clock"_f = clock[task][owner], "held"_f = held[task][owner],
                "stamps"_f = stamps[task][owner], "place"_f = slots[task][owner],
                "nWays"_f = hot.nWays(), "owner"_f = owner, "nOwners"_f = hot.nOwners);
    const auto addInsert = [&](unsigned part, const Tensor &piece, const Tensor &rows, unsigned set,
                               unsigned setShift) {
      addVertex(graph, insert, "sparq::InsertNewest", p.tile(slot, part % p.parts),
                cycles::insertNewest(hot.nOwners, static_cast<unsigned>(rows.dim(2))),
                "layer"_f = cache.layer[slot][part % p.parts], "places"_f = slots[task],
                "piece"_f = piece, "rows"_f = rows, "nOwners"_f = hot.nOwners,
                "nRows"_f = rows.dim(1), "width"_f = rows.dim(2), "set"_f = set,
                "setShift"_f = setShift);
    };
    const Tensor pairs = step.keys[task].reshape({d / 8, HotRows::nPairs, 2});
    for (unsigned i = 0; i != hot.nSets * HotRows::nPairs; ++i)
      addInsert(i, pairs.slice(i % HotRows::nPairs, i % HotRows::nPairs + 1, 1), keys[task][i],
                i / HotRows::nPairs, hot.setShift());
    for (unsigned i = 0; i != hot.valueParts(d, p.parts); ++i) {
      const unsigned first = i * hot.width % d;
      addInsert(i, step.values[task].slice(first, first + hot.width), values[task][i], 0, 0);
    }
  }
}

void HotBuffer::replaced(const Steps &steps, unsigned firstTask, unsigned endTask) const {
  const Cache &cache = steps.cache;
  const Placement &p = cache.plan.placement;
  const HotRows &hot = cache.plan.hot;
  const ComputeSet cs = steps.execute("forget_hot");
  for (unsigned task = firstTask; task != endTask; ++task)
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      addVertex(steps.graph, cs, "sparq::ForgetHot", p.tile(task % p.slots, owner),
                cycles::forgetHot(hot.nWays()), "layer"_f = cache.layer[task % p.slots][owner],
                "held"_f = held[task][owner], "stamps"_f = stamps[task][owner],
                "nWays"_f = hot.nWays());
}

std::shared_ptr<HostStore> HotBuffer::host(const HostSite &site) const {
  const Cache &cache = site.cache;
  Sequence forget;
  loadLayer(cache, forget, {cache.name});
  replaced({site.graph, cache, forget, {cache.name}}, 0, cache.plan.placement.nTasks);
  return std::make_shared<HostHotBuffer>(HostProgram(site.programs, forget),
                                         site.readable(misses, "/misses"));
}

Gathered HotBuffer::attend(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected) const {
  const Tensor places = makeHot(context, *this, selected.rows.slice(0, 1, 1).squeeze({1}));
  return hotAttention(context, *this, waves, q, selected, places);
}

} // namespace sparq
