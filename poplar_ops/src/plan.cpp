// SPDX-License-Identifier: Apache-2.0
#include "sparq/plan.hpp"
#include "arith/row_codes.hpp"
#include "planning.hpp"
#include <poplar/Target.hpp>

namespace sparq {
namespace {

constexpr unsigned packet = 1024; // bytes that streaming memory moves at a time
// Positions of a row of key columns: one packet of fp16. A packet costs as much as 36 bytes more, so
// that the shorter rows of an index are worth twice the positions with 4 bits; more would come on
// chip for nothing where a length ends within them.
unsigned maxChunk(unsigned indexBits) { return indexBits == 4 ? 1024 : 512; }
// More tiles to a slot cost more in exchange than they save in arithmetic.
constexpr unsigned maxParts = 128;
// Parts beside these that share the scores of one block: four positions each.
constexpr unsigned openParts = 16;
// Of a tile's memory: what all working tensors of a slot may take.
constexpr double workingShare = 0.7;

bool needsKeyColumns(const Programs &programs) {
  return std::any_of(programs.attention.begin(), programs.attention.end(),
                     [](const Attention &a) { return a.kernel->keyColumns; });
}

// The memory that all kernels read from.
Memory memoryOf(const Programs &programs) {
  for (const Attention &attention : programs.attention)
    if (attention.kernel->memory != programs.attention.front().kernel->memory)
      throw Error(std::string("plan: kernels must all read one memory, got ") +
                  programs.attention.front().kernel->name + " and " + attention.kernel->name);
  return programs.attention.empty() ? Memory::streaming : programs.attention.front().kernel->memory;
}
bool isResident(const Programs &programs) { return memoryOf(programs) == Memory::sram; }

// The greatest power of two that is not above n.
unsigned powerOfTwo(unsigned n) {
  unsigned power = 1;
  while (power <= n / 2)
    power *= 2;
  return power;
}

// Owners beyond these save nothing, and what all of them have to say grows.
constexpr unsigned maxOwners = 32;
// Rows of a wave of misses: this share of all that are selected, for about so many are missing, within
// limits. More come on chip for nothing where few are missing, fewer cost more waves where many are.
constexpr unsigned waveShare = 8, leastWaveRows = 64, mostWaveRows = 512;
// Slots whose misses are fetched together. Each of their parts gets a piece of every such row, so more are
// more exchange; the misses of fewer differ more, and rows come on chip for nothing.
constexpr unsigned groupSlots = 8;
// Rows of a wave in which every head has as many of its own: of all heads, and in bytes on a part.
constexpr unsigned mostWideRows = 8192, mostWideBytes = 24 * 1024;
// A list of selected positions in bytes is a part of a tile's memory, as are their rows.
constexpr unsigned maxHotRows = TierOptions::maxRows;

HotRows makeHotRows(const Shape &shape, const Programs &programs, const CacheLayout &layout,
                    const Placement &placement) {
  unsigned topK = 0;
  for (const Attention &attention : programs.attention)
    topK = std::max(topK, std::min(attention.topK(), layout.capacity));
  const TierOptions &options = programs.tiers;
  HotRows hot{};
  hot.policy = options.policy;
  hot.nOwners = std::min(maxOwners, powerOfTwo(placement.parts));
  hot.nSets = std::min(hot.nOwners, powerOfTwo(std::max(1u, placement.parts / HotRows::nPairs)));
  const unsigned wanted = options.hotRows != 0
                              ? std::max(options.hotRows, topK)
                              : std::min(4 * std::min(topK, maxHotRows), layout.capacity);
  hot.nSlots = roundUp(std::max(wanted, topK), hot.nOwners);
  hot.width = 4;
  while (shape.headDim % hot.width != 0 || shape.headDim / hot.width > placement.parts)
    hot.width += 4;
  hot.nGroups = std::max(1u, placement.slots / groupSlots);
  const unsigned unit = HotRows::cutRows * hot.nGroups,
                 most = roundUp(std::max(1u, placement.slots * topK), unit),
                 usual = std::clamp(most / waveShare, leastWaveRows, mostWaveRows);
  hot.waveRows = std::min(most, roundUp(options.waveRows != 0 ? options.waveRows : usual, unit));
  if (options.waveRows == 0) {
    const unsigned rowBytes = hot.partBytes(shape.headDim, placement.parts),
                   atOnce = std::min(mostWideRows / placement.slots, mostWideBytes / rowBytes),
                   rows = std::min(roundUp(topK, HotRows::cutRows),
                                   atOnce / HotRows::cutRows * HotRows::cutRows);
    hot.headRows = rows * placement.slots > hot.waveRows ? rows : 0;
  }
  return hot;
}

CacheLayout makeLayout(const Shape &shape, const Programs &programs, unsigned nTiles,
                       std::uint64_t tileBytes) {
  CacheLayout layout{};
  layout.nTasks = shape.nTasks();
  layout.nLayers = programs.nLayers;
  layout.headDim = shape.headDim;
  layout.indexBits = shape.indexBits;
  layout.rowBits = shape.rowBits;
  layout.tiered = memoryOf(programs) == Memory::tiered;
  if (layout.tiered) {
    layout.chunk = block;
    layout.positionsPerRow = 1;
    layout.capacity = roundUp(shape.capacity, block);
  } else if (needsKeyColumns(programs)) {
    layout.chunk = maxChunk(shape.indexBits);
    // The tail of every task stays in SRAM: smaller chunks where that would be much of it, or where
    // the capacity is smaller.
    const auto tailBytes = [&] {
      return std::uint64_t(shape.nTasks()) * shape.headDim * layout.columnBytes(layout.chunk) *
             layout.nCopies() / nTiles;
    };
    while (layout.chunk > block &&
           (layout.chunk / 2 >= shape.capacity || tailBytes() > tileBytes / 5))
      layout.chunk /= 2;
    layout.positionsPerRow = 1;
    layout.capacity = roundUp(shape.capacity, layout.chunk);
  } else {
    const bool gathers =
        std::any_of(programs.attention.begin(), programs.attention.end(),
                    [](const Attention &attention) { return attention.kernel->takesWindow; });
    layout.positionsPerRow =
        programs.append || gathers ? 1 : std::max(1u, packet / (shape.headDim * 2));
    while (block % layout.positionsPerRow != 0)
      --layout.positionsPerRow;
    layout.capacity = roundUp(shape.capacity, block);
  }
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

// Bytes of working tensors and cache on the fullest tile, without what rounds keep between them.
TileNeed tileNeed(const Plan &plan, unsigned nTiles) {
  TileNeed sum{0, 0};
  for (const PlannedAttention &attention : plan.attention) {
    const TileNeed need = attention.kernel->need(plan, attention, nTiles);
    sum.working += need.working;
    sum.cache += need.cache;
  }
  if (plan.history.nRecent != 0)
    sum.cache +=
        ceilDiv(std::uint64_t(plan.shape.batch) * plan.history.nPieces, plan.history.nTiles) *
        plan.history.pieceBytes() * plan.layout.nCopies();
  if (plan.layout.chunk)
    sum.working += plan.layout.tailBytes() * plan.placement.nRounds * plan.layout.nCopies();
  return sum;
}

// Vertices number the rows of a remote buffer in 32 bits.
void checkRows(const Shape &shape, const CacheLayout &layout) {
  constexpr std::uint64_t most = 0xFFFFFFFFu;
  const std::uint64_t byPosition = 2 * (std::uint64_t(layout.capacity) + 1),
                      byComponent =
                          layout.chunk ? std::uint64_t(shape.headDim) * (layout.nChunks() + 1) : 0,
                      rows = layout.nLayers * std::uint64_t(shape.nTasks()) *
                             std::max(byPosition, byComponent);
  if (rows > most)
    throw DoesNotFit("plan: rows of streaming memory must be at most " + std::to_string(most) +
                         ", got " + std::to_string(rows),
                     "rows of streaming memory", rows, most);
}

// The steps that the programs remember, 0 where none does.
unsigned recentSteps(const Programs &programs) {
  unsigned nRecent = 0;
  for (const Attention &attention : programs.attention) {
    if (!attention.remembers())
      continue;
    if (nRecent != 0 && attention.window.nRecent != nRecent)
      throw Error("plan: n_recent must be the same in all programs that remember, got " +
                  std::to_string(nRecent) + " and " + std::to_string(attention.window.nRecent));
    nRecent = attention.window.nRecent;
  }
  return nRecent;
}

History makeHistory(const Shape &shape, const Programs &programs, const CacheLayout &layout,
                    const Placement &placement) {
  History history{};
  history.nRecent = recentSteps(programs);
  if (history.nRecent == 0)
    return history;
  // Fours, so that a piece begins at a multiple of 64 bits.
  history.nTiles = placement.slots * placement.parts;
  const unsigned perElement = std::max(1u, history.nTiles / shape.batch);
  history.length = roundUp(ceilDiv(layout.capacity, perElement), 4);
  history.nPieces = ceilDiv(layout.capacity, history.length);
  return history;
}

void checkPrograms(const Shape &shape, const Programs &programs) {
  for (const Attention &attention : programs.attention)
    if (attention.kernel->takesWindow)
      check("plan", attention.window, shape.nHeads);
  recentSteps(programs);
  if (memoryOf(programs) != Memory::tiered) {
    if (shape.rowBits != 16)
      throw Error("plan: row_bits must be 16 unless memory is 'tiered', got " +
                  std::to_string(shape.rowBits));
    return;
  }
  checkTiers("plan", shape, programs.tiers);
  for (const Attention &attention : programs.attention)
    if (attention.kernel->takesWindow)
      checkTiers("plan", shape, programs.tiers, attention.window);
    else
      checkTiers("plan", shape, programs.tiers, attention.settings);
}

// With so many rounds.
Plan arrange(const Shape &shape, const Programs &programs, const CacheLayout &layout,
             unsigned nTiles, unsigned nRounds) {
  Plan plan{};
  plan.shape = shape;
  plan.resident = isResident(programs);
  plan.layout = layout;
  // In three tiers the block that is being filled has parts to itself.
  plan.placement = place(shape, nTiles, nRounds, maxParts + (layout.tiered ? openParts : 0));
  if (layout.chunk) { // the last parts: the waves fill up the first ones
    plan.layout.tailLength = partLength(layout.chunk, plan.placement.parts);
    plan.layout.tailFirst = plan.placement.parts - plan.layout.nTailParts();
    plan.layout.tailComponents = roundUp(ceilDiv(shape.headDim, plan.placement.parts), 4);
  }
  if (layout.tiered) {
    plan.hot = makeHotRows(shape, programs, layout, plan.placement);
    plan.assumedHitRate = programs.tiers.assumedHitRate;
  }
  plan.history = makeHistory(shape, programs, layout, plan.placement);
  for (const Attention &attention : programs.attention)
    plan.attention.push_back({attention, attention.kernel->waves(plan, attention, nTiles)});
  return plan;
}

} // namespace

void checkTiers(const char *op, const CacheSpec &spec, const TierOptions &tiers) {
  if (spec.indexBits == 16)
    throw Error(std::string(op) + ": index_bits must be 8 or 4 where memory is 'tiered', got 16");
  toUnsigned(op, "hot_rows", tiers.hotRows, TierOptions::maxRows);
  toUnsigned(op, "wave_rows", tiers.waveRows, TierOptions::maxRows);
}

static void checkTopK(const char *op, const CacheSpec &spec, const TierOptions &tiers,
                      unsigned wanted) {
  const unsigned topK = std::min(wanted, spec.capacity);
  if (topK > maxHotRows)
    throw Error(std::string(op) + ": top_k must be at most " + std::to_string(maxHotRows) +
                " where memory is 'tiered', got " + std::to_string(topK));
  if (tiers.hotRows != 0 && tiers.hotRows < topK)
    throw Error(std::string(op) + ": hot_rows must be 0 or at least top_k=" + std::to_string(topK) +
                ", got " + std::to_string(tiers.hotRows));
}

void checkTiers(const char *op, const CacheSpec &spec, const TierOptions &tiers,
                const SparqSettings &settings) {
  checkTopK(op, spec, tiers, settings.topK);
}

void checkTiers(const char *op, const CacheSpec &spec, const TierOptions &tiers,
                const WindowSettings &settings) {
  checkTopK(op, spec, tiers, settings.topK);
}

unsigned Attention::topK() const { return kernel->takesWindow ? window.topK : settings.topK; }

bool Attention::remembers() const { return kernel->takesWindow && window.remembers(); }

HotPolicy hotPolicyNamed(const char *op, const std::string &name) {
  if (name != "lru" && name != "recent")
    throw Error(std::string(op) + ": hot_policy must be 'lru' or 'recent', got '" + name + "'");
  return name == "lru" ? HotPolicy::leastRecent : HotPolicy::oldest;
}

const char *nameOf(HotPolicy policy) { return policy == HotPolicy::leastRecent ? "lru" : "recent"; }

std::size_t CacheLayout::columnElements(unsigned positions) const {
  return quantised() ? std::size_t(positions / block) * recordWords(indexBits) : positions;
}

std::size_t CacheLayout::columnBytes(unsigned positions) const {
  return columnElements(positions) * (quantised() ? 4 : 2);
}

std::size_t CacheLayout::rowElements() const {
  return rowBits == 8 ? codedRow(headDim)
                      : std::size_t(positionsPerRow) * headDim * (tiered ? 2 : 1);
}

unsigned CacheLayout::tailWidth() const { return quantised() ? block : chunk; }

unsigned CacheLayout::scoredWidth() const { return quantised() ? block : tailLength; }

Plan makePlan(const poplar::Target &target, const Shape &shape, const Programs &programs) {
  check("plan", shape);
  if (programs.nLayers < 1 || programs.nLayers > maxLayers)
    throw Error("plan: n_layers must be in [1, " + std::to_string(maxLayers) + "], got " +
                std::to_string(programs.nLayers));
  if (programs.nLayers != 1 && isResident(programs))
    throw Error("plan: n_layers must be 1 where keys and values are in SRAM, got " +
                std::to_string(programs.nLayers));
  for (const Attention &attention : programs.attention)
    if (attention.kernel->takesSettings)
      check("plan", attention.settings, shape.headDim);
  checkPrograms(shape, programs);
  const unsigned nTiles = target.getNumTiles();
  const std::uint64_t tileBytes = target.getBytesPerTile();
  const CacheLayout layout = makeLayout(shape, programs, nTiles, tileBytes);
  checkRows(shape, layout);
  // As few rounds as memory allows: every round has fixed costs.
  const unsigned fewest = ceilDiv(shape.nTasks(), std::min(nTiles, shape.nTasks()));
  for (unsigned nRounds = fewest;; ++nRounds) {
    const Plan plan = arrange(shape, programs, layout, nTiles, nRounds);
    const TileNeed need = tileNeed(plan, nTiles);
    // More rounds need less memory, but for K and V in SRAM. Where even one slot at a time is too
    // much, compiling the graph says by how much.
    const bool hopeless = need.cache > tileBytes;
    if (hopeless || plan.placement.slots == 1 ||
        need.working + need.cache <= workingShare * tileBytes)
      return plan;
  }
}

} // namespace sparq
