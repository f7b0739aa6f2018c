// SPDX-License-Identifier: Apache-2.0
#include "codelets/cache.cycles.hpp"
#include "history.hpp"
#include "index.hpp"
#include "rows.hpp"

namespace sparq {

namespace {

// The memory that all kernels read from.
Memory memoryOf(const Programs &programs) {
  for (const Attention &attention : programs.attention)
    if (attention.kernel->memory != programs.attention.front().kernel->memory)
      throw Error(std::string("plan: kernels must all read one memory, got ") +
                  programs.attention.front().kernel->name + " and " + attention.kernel->name);
  return programs.attention.empty() ? Memory::streaming : programs.attention.front().kernel->memory;
}

} // namespace

std::vector<const StoreKind *> makeStores(const Programs &programs) {
  const auto any = [&](const auto &is) {
    return std::any_of(programs.attention.begin(), programs.attention.end(), is);
  };
  const Memory memory = memoryOf(programs);
  const bool tiered = memory == Memory::tiered;
  std::vector<const StoreKind *> all;
  all.push_back(memory == Memory::sram ? &kindOf<ResidentRows>()
                : tiered               ? &kindOf<JoinedRows>()
                                       : &kindOf<SplitRows>());
  if (any([](const Attention &a) { return a.kernel->keyColumns; })) {
    all.push_back(tiered ? &kindOf<ResidentRecords>() : &kindOf<KeyColumns>());
    all.push_back(&kindOf<ValueSum>());
  }
  if (tiered)
    all.push_back(&kindOf<HotBuffer>());
  if (any([](const Attention &a) { return a.remembers(); }))
    all.push_back(&kindOf<RecentShares>());
  return all;
}

Layered addLayered(Graph &graph, const Cache &cache, const Type &type, std::size_t nRows,
                   unsigned rowsPerPart, std::size_t width, const char *name) {
  const Placement &p = cache.plan.placement;
  const unsigned nLayers = cache.layout().nLayers;
  const std::string full = cache.name + "/" + name;
  Layered layered;
  layered.rowsPerPart = rowsPerPart;
  if (nLayers != 1)
    layered.stored = addSliced(graph, p, type, p.nTasks, nRows, rowsPerPart, width * nLayers,
                               {full + "_of_layers"});
  layered.state = addSliced(graph, p, type, p.nTasks, nRows, rowsPerPart, width, {full});
  return layered;
}

RemoteBuffer addBuffer(Graph &graph, const Cache &cache, const char *name, const Type &type,
                       std::size_t width, std::size_t nRows, bool hostWrites) {
  const std::size_t rowBytes = width * graph.getTarget().getTypeSize(type);
  const unsigned nTiles = graph.getTarget().getNumTiles();
  const std::size_t nSpare = hostWrites ? RemoteRows::batchSize(nRows, rowBytes, nTiles) : 0;
  return graph.addRemoteBuffer(cache.name + "/" + name, type, width, nRows + nSpare);
}

std::uint64_t bytesOf(const RemoteBuffer &buffer, const Target &target) {
  return std::uint64_t(buffer.getRepeats()) * buffer.numElements() *
         target.getTypeSize(buffer.elementType());
}

void FillStep::addOffsets(unsigned slot, const Tensor &rows, std::size_t first, unsigned stride,
                          unsigned layerRows) const {
  const auto n = static_cast<unsigned>(rows.numElements());
  addVertex(graph, offsets, "sparq::FillOffsets", placement().home(slot), cycles::fillOffsets(n),
            "layer"_f = cache.layer[slot][0], "rows"_f = rows, "n"_f = n, "first"_f = first,
            "step"_f = stride, "layerRows"_f = layerRows);
}

} // namespace sparq
