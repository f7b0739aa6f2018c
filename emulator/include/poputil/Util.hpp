// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <vector>

#include "exceptions.hpp"

namespace poputil {

/// Regions, sequences of regions, and one of these for each partition.
using Regions = std::vector<poplar::Interval>;
using Sequences = std::vector<Regions>;

inline Regions flattenIntervals(const Sequences &intervals) {
  Regions flat;
  for (const Regions &regions : intervals)
    flat.insert(flat.end(), regions.begin(), regions.end());
  return flat;
}
inline std::size_t intervalSequenceNumElements(const Sequences &seq) {
  std::size_t n = 0;
  for (const poplar::Interval &region : flattenIntervals(seq))
    n += region.size();
  return n;
}
inline void mergeAdjacentRegions(Regions &regions) {
  Regions merged;
  std::sort(regions.begin(), regions.end());
  for (const poplar::Interval &region : regions)
    if (!merged.empty() && merged.back().end() == region.begin())
      merged.back() = {merged.back().begin(), region.end()};
    else if (region.size() != 0)
      merged.push_back(region);
  regions = merged;
}
inline void mergeAdjacentRegions(Sequences &mapping) {
  for (Regions &regions : mapping)
    mergeAdjacentRegions(regions);
}

/// At most `maxPartitions` parts of whole grains, as even as they can be. A region that is cut, and
/// a sequence that is, goes on in the next part.
inline std::vector<Sequences> splitRegions(const Sequences &regions, unsigned grainSize,
                                           unsigned maxPartitions,
                                           unsigned minElementsPerPartition = 0,
                                           unsigned maxElementsPerPartition = UINT_MAX,
                                           unsigned maxElementsPerRegion = UINT_MAX) {
  const std::size_t n = intervalSequenceNumElements(regions), grain = std::max(grainSize, 1u);
  const auto grains = [&](std::size_t elements) { return (elements + grain - 1) / grain; };
  std::size_t part = std::max<std::size_t>(
      {(grains(n) + maxPartitions - 1) / maxPartitions, grains(minElementsPerPartition), 1});
  part = std::min(part * grain, std::max(maxElementsPerPartition / grain, std::size_t(1)) * grain);
  if (n > part * maxPartitions)
    throw poplibs_error("splitRegions: maxPartitions must be at least " +
                        std::to_string((n + part - 1) / part) + ", got " +
                        std::to_string(maxPartitions));
  std::vector<Sequences> parts;
  std::size_t left = 0; // of the last part
  for (const Regions &sequence : regions) {
    bool goesOn = false;
    for (poplar::Interval region : sequence)
      while (region.size() != 0) {
        if (left == 0) {
          parts.emplace_back();
          left = part;
          goesOn = false;
        }
        if (!goesOn)
          parts.back().emplace_back();
        goesOn = true;
        const std::size_t most = std::min<std::size_t>(left, maxElementsPerRegion);
        const std::size_t end = region.begin() + std::min(region.size(), most);
        parts.back().back().emplace_back(region.begin(), end);
        left -= end - region.begin();
        region = {end, region.end()};
      }
  }
  return parts;
}
inline Sequences splitRegions(const Regions &regions, unsigned grainSize, unsigned maxPartitions,
                              unsigned minElementsPerPartition = 0,
                              unsigned maxElementsPerPartition = UINT_MAX,
                              unsigned maxElementsPerRegion = UINT_MAX) {
  Sequences parts;
  for (const Sequences &part :
       splitRegions(Sequences{regions}, grainSize, maxPartitions, minElementsPerPartition,
                    maxElementsPerPartition, maxElementsPerRegion))
    parts.push_back(flattenIntervals(part));
  return parts;
}
/// The same for the workers of a tile: `Of` is Regions or Sequences.
template <class Of>
std::vector<Of> splitRegionsBetweenWorkers(const poplar::Target &target, const Of &regions,
                                           unsigned grainSize, unsigned minElementsPerPartition = 0,
                                           unsigned maxElementsPerPartition = UINT_MAX,
                                           unsigned maxElementsPerRegion = UINT_MAX) {
  return splitRegions(regions, grainSize, target.getNumWorkerContexts(), minElementsPerPartition,
                      maxElementsPerPartition, maxElementsPerRegion);
}

template <class T> std::vector<T> unflattenIndex(const std::vector<T> &shape, std::size_t index) {
  std::vector<T> indices(shape.size());
  for (std::size_t i = shape.size(); i-- != 0; index /= shape[i])
    indices[i] = static_cast<T>(index % shape[i]);
  return indices;
}
template <class T>
std::size_t flattenIndex(const std::vector<T> &shape, const std::vector<T> &indices) {
  std::size_t index = 0;
  for (std::size_t i = 0; i != shape.size(); ++i)
    index = index * shape[i] + indices[i];
  return index;
}

/// A copy of the tensor on the same tiles.
inline poplar::Tensor duplicate(
    poplar::Graph &graph, const poplar::Tensor &in, poplar::program::Sequence &p,
    const poplar::DebugContext &dc = {},
    poplar::TensorCloneMethod method = poplar::TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
  const poplar::Tensor copy = graph.clone(in, dc, method);
  p.add(poplar::program::Copy(in, copy));
  return copy;
}

} // namespace poputil
