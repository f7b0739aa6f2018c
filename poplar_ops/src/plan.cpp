// SPDX-License-Identifier: Apache-2.0
#include "sparq/plan.hpp"
#include <algorithm>
#include <poplar/Target.hpp>

namespace sparq {
namespace {

constexpr unsigned block = 64;     // positions of a block (docs/exactness.md E3)
constexpr unsigned packet = 1024;  // bytes that streaming memory moves at a time
constexpr unsigned maxChunk = 512; // positions of a row of key columns: one packet of fp16
constexpr unsigned maxParts =
    128; // more tiles to a slot cost more in exchange than they save in arithmetic
// Of a tile's memory: what landing buffers of one wave may take, and what all working tensors of a
// slot may.
constexpr std::uint64_t landingBudget = 64 * 1024;
constexpr double workingShare = 0.7;
// A wave that reads less than this costs more in fixed overhead than its granularity saves.
constexpr std::uint64_t minWaveBytes = 2 * 1024 * 1024;
constexpr unsigned targetWaves = 4;

unsigned ceilDiv(std::uint64_t a, std::uint64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}
unsigned roundUp(unsigned a, unsigned to) { return ceilDiv(a, to) * to; }

unsigned partLength(unsigned positions, unsigned parts) {
  return ceilDiv(ceilDiv(positions, block), parts) * block;
}

CacheLayout makeLayout(const Shape &shape, const Programs &programs, unsigned nTiles,
                       std::uint64_t tileBytes) {
  CacheLayout layout{};
  if (!programs.sparq.empty()) {
    layout.chunk = maxChunk;
    // The tail of every task stays in SRAM: smaller chunks where that would be much of it, or where
    // the capacity is smaller.
    const auto tailBytes = [&] {
      return std::uint64_t(shape.nTasks()) * shape.headDim * layout.chunk * 2 / nTiles;
    };
    while (layout.chunk > block &&
           (layout.chunk / 2 >= shape.capacity || tailBytes() > tileBytes / 5))
      layout.chunk /= 2;
    layout.positionsPerRow = 1;
    layout.capacity = roundUp(shape.capacity, layout.chunk);
  } else {
    layout.positionsPerRow = programs.append ? 1 : std::max(1u, packet / (shape.headDim * 2));
    while (block % layout.positionsPerRow != 0)
      --layout.positionsPerRow;
    layout.capacity = roundUp(shape.capacity, block);
  }
  return layout;
}

Placement place(const Shape &shape, unsigned nTiles, unsigned nRounds) {
  Placement p{};
  p.nTasks = shape.nTasks();
  p.slots = ceilDiv(p.nTasks, nRounds);
  p.nRounds = ceilDiv(p.nTasks, p.slots);
  p.parts = std::min(nTiles / p.slots, maxParts);
  p.width = ceilDiv(shape.headDim / 8, p.parts) * 8;
  p.nSlices = ceilDiv(shape.headDim, p.width);
  return p;
}

// How many units (blocks, chunks) to take at a time, at most `most`, so that few are read in vain
// at the end.
unsigned unitsPerWave(unsigned nUnits, unsigned most) {
  const unsigned fewest = ceilDiv(nUnits, most);
  unsigned best = fewest;
  for (unsigned nWaves = fewest; nWaves <= std::min(2 * fewest, nUnits); ++nWaves)
    if (nWaves * ceilDiv(nUnits, nWaves) < best * ceilDiv(nUnits, best))
      best = nWaves;
  return ceilDiv(nUnits, best);
}

Waves denseWaves(const Shape &shape, const Placement &p, const CacheLayout &layout) {
  Waves w{};
  const unsigned nBlocks = layout.capacity / block;
  const unsigned most =
      std::max<std::uint64_t>(1, landingBudget / (shape.headDim * 2 * block)) * p.parts;
  const unsigned blocks = unitsPerWave(nBlocks, std::min(most, nBlocks));
  w.stride = blocks * block;
  w.length = partLength(w.stride, p.parts);
  w.nWaves = ceilDiv(nBlocks, blocks);
  w.chunk = 1;
  return w;
}

Waves residentWaves(const Placement &p, const CacheLayout &layout) {
  Waves w{};
  w.length = partLength(layout.capacity, p.parts);
  w.stride = layout.capacity;
  w.nWaves = 1;
  w.chunk = 1;
  return w;
}

Waves sparqWaves(const Placement &p, const CacheLayout &layout, unsigned rank, unsigned nTiles) {
  Waves w{};
  const std::uint64_t chunkBytes = std::uint64_t(layout.chunk) * rank * 2; // of one slot
  // As few waves as make the granularity worth while, within the landing budget (all tiles share
  // the landing rows).
  const unsigned least = ceilDiv(minWaveBytes, chunkBytes * p.slots);
  const unsigned most = std::max<std::uint64_t>(1, landingBudget * nTiles / (chunkBytes * p.slots));
  const unsigned chunks = unitsPerWave(
      layout.nChunks(),
      std::min({std::max(least, ceilDiv(layout.nChunks(), targetWaves)), most, layout.nChunks()}));
  w.stride = chunks * layout.chunk;
  w.length = partLength(w.stride, p.parts);
  w.nWaves = ceilDiv(layout.nChunks(), chunks);
  w.tailLength = layout.tailLength;
  w.tailFirst = layout.tailFirst;
  w.chunk = layout.chunk;
  return w;
}

// Bytes of K and V in SRAM on the fullest tile.
std::uint64_t residentBytes(const Plan &plan) {
  return std::uint64_t(plan.resident.length) * plan.shape.headDim * 4 * plan.placement.nRounds;
}

// Bytes of working tensors on the fullest tile, without what rounds keep between them.
std::uint64_t workingBytes(const Plan &plan, const Programs &programs, unsigned nTiles) {
  const Shape &shape = plan.shape;
  const Placement &p = plan.placement;
  const std::uint64_t g = shape.groupSize(), d = shape.headDim;
  const auto positions = [&](const Waves &w) {
    return std::uint64_t(w.partPositions()) * (g + 1) * 4;
  };
  std::uint64_t bytes = 0;
  if (programs.denseStreaming)
    bytes += positions(plan.dense) + std::uint64_t(plan.dense.length) * d * 2 +
             std::uint64_t(plan.dense.length / block) * g * d * 4;
  if (programs.denseSram)
    bytes += positions(plan.resident) + residentBytes(plan) +
             std::uint64_t(plan.resident.length / block) * g * d * 4;
  for (std::size_t i = 0; i != programs.sparq.size(); ++i) {
    const Waves &w = plan.sparq[i];
    const SparqSettings &s = programs.sparq[i];
    const std::uint64_t k = std::min(s.topK, plan.layout.capacity);
    bytes += positions(w) + std::uint64_t(w.stride) * s.rank * 2 * p.slots / nTiles +
             std::uint64_t(w.length) * s.rank * 2 + ceilDiv(k, p.parts) * d * 2 * 3 + k * g * 8 +
             ceilDiv(k, block) * g * p.width * 4 +
             (std::uint64_t(w.nWaves) * w.stride + w.chunk) / 32 * 16; // marks of all positions
  }
  if (plan.layout.chunk)
    bytes += std::uint64_t(plan.layout.tailLength) * d * 2 * p.nRounds;
  return bytes;
}

} // namespace

Plan makePlan(const poplar::Target &target, const Shape &shape, const Programs &programs) {
  check("plan", shape);
  for (const SparqSettings &settings : programs.sparq)
    check("plan", settings, shape);
  const unsigned nTiles = target.getNumTiles();
  const std::uint64_t tileBytes = target.getBytesPerTile();
  Plan plan{};
  plan.shape = shape;
  const CacheLayout layout = makeLayout(shape, programs, nTiles, tileBytes);
  // Vertices number the rows of a remote buffer in 32 bits: K, V and a scratch row of each task, or
  // the chunks of each component.
  const std::uint64_t byPosition = 2 * (std::uint64_t(layout.capacity) + 1),
                      byComponent =
                          layout.chunk ? std::uint64_t(shape.headDim) * (layout.nChunks() + 1) : 0,
                      rows = shape.nTasks() * std::max(byPosition, byComponent);
  if (rows > 0xFFFFFFFFu)
    throw Error("plan: rows of streaming memory must be at most 4294967295, got " +
                std::to_string(rows));
  const auto arrange = [&](unsigned nRounds) {
    plan.layout = layout;
    plan.placement = place(shape, nTiles, nRounds);
    if (layout.chunk) { // the last parts: the waves fill up the first ones
      plan.layout.tailLength = partLength(layout.chunk, plan.placement.parts);
      plan.layout.tailFirst = plan.placement.parts - plan.layout.nTailParts();
    }
    plan.dense = denseWaves(shape, plan.placement, plan.layout);
    plan.resident = residentWaves(plan.placement, plan.layout);
    plan.sparq.clear();
    for (const SparqSettings &settings : programs.sparq)
      plan.sparq.push_back(sparqWaves(plan.placement, plan.layout, settings.rank, nTiles));
  };
  // As few rounds as memory allows: every round has fixed costs.
  const unsigned fewest = ceilDiv(shape.nTasks(), std::min(nTiles, shape.nTasks()));
  for (unsigned nRounds = fewest;; ++nRounds) {
    arrange(nRounds);
    // More rounds need less memory, but for K and V in SRAM. Where even one slot at a time is too
    // much, compiling the graph says by how much.
    const bool hopeless = programs.denseSram && residentBytes(plan) > tileBytes;
    if (hopeless || plan.placement.slots == 1 ||
        workingBytes(plan, programs, nTiles) <= workingShare * tileBytes)
      return plan;
  }
}

} // namespace sparq
