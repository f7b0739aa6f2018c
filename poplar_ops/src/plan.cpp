// SPDX-License-Identifier: Apache-2.0
#include "sparq/plan.hpp"
#include "arith/key_index.hpp"
#include "stores/store.hpp"
#include <algorithm>
#include <optional>
#include <poplar/Target.hpp>

namespace sparq {
namespace {

// Of a tile's memory: what all working tensors of a slot may take.
constexpr double workingShare = 0.7;
// And what these and wide rows in SRAM may take: the rest is for code and the state of vertices.
constexpr double wideShare = 0.75;

// The kinds of stores decide it, one after the other.
CacheLayout makeLayout(const Request &request, const std::vector<const StoreKind *> &stores) {
  CacheLayout layout{};
  layout.nTasks = request.shape.nTasks();
  layout.nLayers = request.programs.nLayers;
  layout.headDim = request.shape.headDim;
  layout.indexDim = request.shape.nIndexed();
  layout.indexBits = request.shape.indexBits;
  layout.capacity = roundUp(request.shape.capacity, block);
  for (const StoreKind *const store : stores)
    store->layOut(request, layout);
  return layout;
}

Placement place(const Shape &shape, unsigned nTiles, unsigned nRounds, unsigned mostParts) {
  Placement p{};
  p.nTasks = shape.nTasks();
  p.slots = ceilDiv(p.nTasks, nRounds);
  p.nRounds = ceilDiv(p.nTasks, p.slots);
  p.parts = std::min(nTiles / p.slots, mostParts);
  p.width = ceilDiv(shape.headDim / 8, p.parts) * 8;
  p.nSlices = ceilDiv(shape.headDim, p.width);
  return p;
}

// Bytes of working tensors and cache on the fullest tile.
TileNeed tileNeed(const Plan &plan, unsigned nTiles) {
  TileNeed sum{0, 0};
  for (const PlannedAttention &attention : plan.attention)
    sum.working += attention.kernel->need(plan, attention, nTiles);
  for (const StoreKind *const store : plan.stores) {
    const TileNeed need = store->need(plan);
    sum.working += need.working;
    sum.cache += need.cache;
  }
  return sum;
}

bool spreadsEvenly(const Request &request) {
  const std::vector<Attention> &all = request.programs.attention;
  return !all.empty() && all.front().kernel->memory == Memory::sram;
}

// Vertices number the rows of a remote buffer in 32 bits.
void checkRows(const Shape &shape, const CacheLayout &layout) {
  constexpr std::uint64_t most = 0xFFFFFFFFu;
  const std::uint64_t byPosition = 2 * (std::uint64_t(layout.capacity) + 1),
                      byComponent = std::uint64_t(shape.headDim) * (layout.nChunks() + 1),
                      rows = layout.nLayers * std::uint64_t(shape.nTasks()) *
                             std::max(byPosition, byComponent);
  if (rows > most)
    throw DoesNotFit("plan: rows of streaming memory must be at most " + std::to_string(most) +
                         ", got " + std::to_string(rows),
                     "rows of streaming memory", rows, most);
}

// With so many rounds.
Plan arrange(const Request &request, const std::vector<const StoreKind *> &stores,
             const CacheLayout &layout, unsigned nRounds) {
  Plan plan{};
  plan.shape = request.shape;
  plan.stores = stores;
  plan.layout = layout;
  plan.assumedHitRate = request.programs.tiers.assumedHitRate;
  plan.assumedMisses = request.programs.tiers.assumedMisses;
  unsigned mostParts = usualParts;
  for (const StoreKind *const store : stores)
    mostParts = std::max(mostParts, store->mostParts(request));
  plan.placement = place(request.shape, request.nTiles, nRounds, mostParts);
  for (const StoreKind *const store : stores)
    store->arrange(request, plan);
  for (const Attention &attention : request.programs.attention)
    plan.attention.push_back({attention, attention.kernel->waves(plan, attention, request.nTiles)});
  return plan;
}

// Wide rows give the same bits in less time.
Plan widened(Plan plan, const Request &request) {
  if (request.programs.mayWiden && spreadsEvenly(request)) {
    plan.layout.wideRows = true;
    const TileNeed need = tileNeed(plan, request.nTiles);
    plan.layout.wideRows = need.working + need.cache <= wideShare * request.tileBytes;
  }
  return plan;
}

} // namespace

unsigned Attention::topK() const {
  return kernel->takes == Takes::window ? window.topK : settings.topK;
}

bool Attention::remembers() const { return kernel->takes == Takes::window && window.remembers(); }

std::size_t CacheLayout::columnElements(unsigned positions) const {
  return quantised() ? std::size_t(positions / block) * recordWords(indexBits) : positions;
}

std::size_t CacheLayout::columnBytes(unsigned positions) const {
  return columnElements(positions) * (quantised() ? 4 : 2);
}

unsigned CacheLayout::tailWidth() const { return quantised() ? block : chunk; }

unsigned CacheLayout::scoredWidth() const { return quantised() ? block : tailLength; }

Plan makePlan(const poplar::Target &target, const Shape &shape, const Programs &programs) {
  check("plan", shape);
  for (const Attention &attention : programs.attention)
    if (attention.kernel->takes == Takes::sparq)
      check("plan", attention.settings, shape);
    else if (attention.kernel->takes == Takes::window)
      check("plan", attention.window, shape.nHeads);
  const Request request{shape, programs, target.getNumTiles(), target.getBytesPerTile()};
  const std::vector<const StoreKind *> stores = makeStores(programs);
  const CacheLayout layout = makeLayout(request, stores);
  checkRows(shape, layout);
  // As few rounds as memory allows: every round has fixed costs. And no more than make it less: a
  // slot has so many parts at most, and what these keep of a cache is more where there are fewer
  // slots.
  std::optional<Plan> smallest;
  std::uint64_t least = 0;
  const unsigned fewest = ceilDiv(shape.nTasks(), std::min(request.nTiles, shape.nTasks()));
  for (unsigned nRounds = fewest;; ++nRounds) {
    Plan plan = arrange(request, stores, layout, nRounds);
    const TileNeed need = tileNeed(plan, request.nTiles);
    const std::uint64_t all = need.working + need.cache;
    if (smallest && all > least)
      return widened(*smallest, request);
    const unsigned slots = plan.placement.slots;
    least = all;
    smallest = std::move(plan);
    // A cache that is spread evenly takes as much whatever the rounds.
    const std::uint64_t kept = spreadsEvenly(request) ? need.cache : 0;
    // Where even one slot at a time is too much, compiling the graph says by how much.
    if (need.cache > request.tileBytes || slots == 1 ||
        all - kept <= workingShare * (request.tileBytes - kept))
      return widened(*smallest, request);
  }
}

} // namespace sparq
