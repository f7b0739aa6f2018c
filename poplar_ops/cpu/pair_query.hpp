// SPDX-License-Identifier: Apache-2.0
//
// The query of one pair (batch element, KV head): its components of largest magnitude and what
// follows from them before the cache is read (contract E6.1 and E4).
#pragma once

#include "arith/arith.hpp"
#include "call.hpp"

#include <cstring>

namespace sparq {
namespace cpu {

// Lane sum of |x[c]| (contract E3).
template <class Magnitude> inline float laneSum(std::size_t n, const Magnitude &magnitude) {
  float lanes[nLanes] = {};
  for (std::size_t c = 0; c < n; ++c)
    lanes[c % nLanes] = lanes[c % nLanes] + magnitude(c);
  return treeSum(lanes);
}

// The query heads of one pair, and what they need before the cache is read (contract E6.1 and E4).
class PairQuery {
public:
  PairQuery(Carver &carve, const Call &callIn) : call(&callIn) {
    const std::size_t g = callIn.groupSize, d = callIn.cache.headDim;
    query = carve.take<float>(g * d);
    half = carve.take<Half>(g * d);
    if (!callIn.settings)
      return;
    nRead = rank = callIn.settings->rank;
    components = carve.take<std::uint32_t>(rank);
    columns = carve.take<const Half *>(rank);
    selected = carve.take<float>(g * rank);
    invTau = carve.take<float>(g);
    magnitude = carve.take<float>(d);
    bits = carve.take<std::int32_t>(d);
    work = carve.take<std::int32_t>(d);
    workIndex = carve.take<std::uint32_t>(d + 16);
    if (callIn.cache.keyIndex.inPlanes) {
      const std::size_t nPlanes = std::size_t(rank) * callIn.cache.spec.indexBits;
      widest = carve.take<float>(d);
      depths = carve.take<unsigned char>(roundUp(rank, 4));
      merits = carve.take<std::int32_t>(nPlanes);
      meritWork = carve.take<std::int32_t>(nPlanes);
      meritIndex = carve.take<std::uint32_t>(nPlanes + 16);
      planes = carve.take<std::uint32_t>(nPlanes);
    }
  }

  // For pair `index`.
  void prepare(std::size_t index) {
    const KVCache &cache = call->cache;
    const std::size_t g = call->groupSize, d = cache.headDim;
    const std::ptrdiff_t *const stride = call->query.stride;
    const std::size_t number = call->pairNumber(index);
    const char *from =
        call->query.data + static_cast<std::ptrdiff_t>(number / cache.nKvHeads) * stride[0] +
        static_cast<std::ptrdiff_t>(number % cache.nKvHeads * g) * stride[1] +
        static_cast<std::ptrdiff_t>(index % call->query.nTokens) * call->query.tokenStride;
    for (std::size_t h = 0; h < g; ++h)
      for (std::size_t c = 0; c < d; ++c)
        std::memcpy(half + h * d + c,
                    from + static_cast<std::ptrdiff_t>(h) * stride[1] +
                        static_cast<std::ptrdiff_t>(c) * stride[2],
                    sizeof(Half));
    call->kernels.widen(half, query, g * d);
    pair = call->pair(index);
    if (call->isDense(pair.length))
      return;
    chooseComponents(g, d);
    for (unsigned j = 0; j < nRead; ++j)
      columns[j] = pair.keyColumns + components[j] * cache.keyIndex.columnStride;
  }

  float *query;                        // (g, headDim)
  unsigned nRead = 0;                  // components: the rank, or fewer if in planes
  std::uint32_t *components = nullptr; // (nRead,) ascending
  unsigned char *depths = nullptr;     // (nRead,) planes of these; null if not in planes
  const Half **columns = nullptr;      // (nRead,) of these components
  float *selected = nullptr;           // (g, nRead) the selected components of the query
  float *invTau = nullptr;             // (g,)

private:
  // The components largest in |q| over the group, and the temperature of each head.
  void chooseComponents(std::size_t g, std::size_t d) {
    for (std::size_t c = 0; c < d; ++c) {
      float total = 0.0f;
      for (std::size_t h = 0; h < g; ++h)
        total = total + std::fabs(query[h * d + c]);
      magnitude[c] = total;
    }
    if (depths)
      weighComponents(d);
    std::memcpy(bits, magnitude, d * sizeof(float)); // bits of numbers >= +0 order as they do
    best(bits, call->cache.spec.nIndexed(), rank, work, workIndex, components);
    if (depths)
      choosePlanes();
    const float scale = attentionScale(d);
    for (std::size_t h = 0; h < g; ++h) {
      const float *q = query + h * d;
      std::memset(magnitude, 0, d * sizeof(float));
      for (std::size_t j = 0; j < nRead; ++j) {
        selected[h * nRead + j] = q[components[j]];
        magnitude[components[j]] = std::fabs(q[components[j]]);
      }
      const float all = laneSum(d, [&](std::size_t c) { return std::fabs(q[c]); });
      const float some = laneSum(d, [&](std::size_t c) { return magnitude[c]; });
      invTau[h] = inverseTemperature(all, some, static_cast<float>(d), scale);
    }
  }

  // The nBest largest of n keys, equal ones by lower index; ascending.
  void best(const std::int32_t *keys, std::size_t n, std::size_t nBest, std::int32_t *memory,
            std::uint32_t *memoryIndex, std::uint32_t *positions) const {
    KeyTopK largest{};
    largest.keys = keys;
    largest.end = n;
    largest.nBest = nBest;
    largest.work = memory;
    largest.workIndex = memoryIndex;
    largest.positions = positions;
    call->kernels.keyTopK(largest);
  }

  // Contract E12: magnitudes times the largest step of each component's full blocks.
  void weighComponents(std::size_t d) {
    if (pair.length < blockSize)
      return;
    call->kernels.widen(call->cache.keyIndex.widest(pair.at), widest, d);
    for (std::size_t c = 0; c < d; ++c)
      magnitude[c] = magnitude[c] * widest[c];
  }

  // Contract E12: of the components offered those that are read, and how many planes of each.
  void choosePlanes() {
    const CacheSpec &spec = call->cache.spec;
    const unsigned b = spec.indexBits;
    const std::size_t nPlanes = std::size_t(rank) * b,
                      n = std::min<std::size_t>(nPlanes, spec.indexReadBits);
    for (unsigned j = 0; j < rank; ++j) {
      float merit = magnitude[components[j]];
      for (unsigned t = 0; t < b; ++t, merit = merit * 0.5f)
        std::memcpy(merits + j * b + t, &merit, sizeof(merit));
    }
    best(merits, nPlanes, n, meritWork, meritIndex, planes);
    nRead = 0;
    for (std::size_t i = 0, end; i < n; i = end) {
      const std::uint32_t j = planes[i] / b;
      for (end = i + 1; end < n && planes[end] / b == j;)
        ++end;
      components[nRead] = components[j]; // j is not before nRead
      depths[nRead++] = static_cast<unsigned char>(end - i);
    }
  }

  const Call *call;
  unsigned rank = 0;
  Half *half;                                    // (g, headDim)
  float *magnitude = nullptr;                    // (headDim,)
  std::int32_t *bits = nullptr, *work = nullptr; // (headDim,)
  std::uint32_t *workIndex = nullptr;            // (headDim,)
  // If in planes.
  float *widest = nullptr;                                // (headDim,)
  std::int32_t *merits = nullptr, *meritWork = nullptr;   // (rank, indexBits)
  std::uint32_t *meritIndex = nullptr, *planes = nullptr; // the same
  KVCache::Pair pair{};
};

} // namespace cpu
} // namespace sparq
