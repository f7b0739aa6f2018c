// SPDX-License-Identifier: Apache-2.0
#include "random.hpp"

#include <poplar/Graph.hpp>
#include <poplar/RandomSeed.hpp>

#include "tile_vertices.hpp"

namespace poplar {
namespace core {
namespace {

thread_local codelet_abi::Worker theWorker{};

// The vertices that read and write the states of a tile's six generators: four words each, low ones
// first.
struct SeedsVertex {
  std::uint32_t *seeds;
  std::uint32_t size;
};
constexpr unsigned wordsPerWorker = 4;

template <bool set> bool moveSeeds(void *vertex, unsigned) {
  std::uint32_t *seeds = static_cast<SeedsVertex *>(vertex)->seeds;
  std::uint64_t *states = theWorker.generator - 2 * theWorker.id;
  for (unsigned i = 0; i < 2 * workersPerTile; ++i) {
    if (set) {
      states[i] = seeds[2 * i] | static_cast<std::uint64_t>(seeds[2 * i + 1]) << 32;
    } else {
      seeds[2 * i] = static_cast<std::uint32_t>(states[i]);
      seeds[2 * i + 1] = static_cast<std::uint32_t>(states[i] >> 32);
    }
  }
  return true;
}

constexpr codelet_abi::Field seedsField(codelet_abi::Direction direction) {
  return {"seeds",
          offsetof(SeedsVertex, seeds),
          direction,
          codelet_abi::Nesting::Vector,
          codelet_abi::Element::UnsignedInt,
          codelet_abi::Layout::OnePtr,
          codelet_abi::Layout::Span,
          4,
          0};
}
constexpr codelet_abi::Field given[] = {seedsField(codelet_abi::Direction::Input)},
                             taken[] = {seedsField(codelet_abi::Direction::Output)};
constexpr unsigned seedsTokens = 50; // four words in or out of registers, for six workers
constexpr codelet_abi::Vertex setSeeds =
    tileVertexType<SeedsVertex>("poplar::SetHwSeeds", given, moveSeeds<true>, seedsTokens);
constexpr codelet_abi::Vertex getSeeds =
    tileVertexType<SeedsVertex>("poplar::GetHwSeeds", taken, moveSeeds<false>, seedsTokens);

void addSeedsVertices(Graph &graph, const Tensor &seeds, const codelet_abi::Vertex &type,
                      program::Sequence &prog, const DebugContext &dc) {
  addOnEveryTile(
      graph, type, 4 * workersPerTile * wordsPerWorker, prog, dc,
      [&](const VertexRef &v, unsigned tile) { graph.connect(v["seeds"], seeds[tile].flatten()); });
}

std::vector<std::size_t> seedsShape(const Graph &graph) {
  return {graph.getTarget().getNumTiles(), workersPerTile, wordsPerWorker};
}

} // namespace

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::vector<const codelet_abi::Vertex *> builtInVertices() { return {&setSeeds, &getSeeds}; }

codelet_abi::Worker *currentWorker() { return &theWorker; }

void Generators::reserve(unsigned tiles) {
  while (states_.size() < 2 * std::size_t(tiles) * workersPerTile)
    states_.push_back(mixed(states_.size())); // a first state for each worker
}

void Generators::enter(unsigned tile, unsigned worker) {
  theWorker = {tile, worker, states_.data() + 2 * (std::size_t(tile) * workersPerTile + worker),
               tileCycles};
}

} // namespace core

Tensor getHwSeeds(Graph &graph, program::Sequence &prog, const DebugContext &dc) {
  Tensor seeds = graph.addVariable(UNSIGNED_INT, core::seedsShape(graph), {dc, "hwSeeds"});
  for (unsigned tile = 0; tile < seeds.dim(0); ++tile)
    graph.setTileMapping(seeds[tile], tile);
  core::addSeedsVertices(graph, seeds, core::getSeeds, prog, dc);
  return seeds;
}

void setHwSeeds(Graph &graph, const Tensor &hwSeeds, program::Sequence &prog,
                const DebugContext &dc) {
  const std::vector<std::size_t> shape = core::seedsShape(graph);
  if (hwSeeds.elementType() != UNSIGNED_INT || hwSeeds.shape() != shape)
    throw errors::bad_argument("setHwSeeds: hwSeeds must be unsigned int of shape " +
                               core::shapeString(shape) + " (tiles, workers, words), got " +
                               hwSeeds.elementType().toString() + " of " +
                               core::shapeString(hwSeeds.shape()));
  core::addSeedsVertices(graph, hwSeeds, core::setSeeds, prog, dc);
}

} // namespace poplar
