// SPDX-License-Identifier: Apache-2.0
//
// The query of one pair (batch element, KV head): its components of largest magnitude and what
// follows from them before the cache is read (contract E6.1 and E4).
#pragma once

#include "arith/arith.hpp"
#include "call.hpp"

#include <cstring>

namespace sparq::cpu {

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
    rank = callIn.settings->rank;
    components = carve.take<std::uint32_t>(rank);
    columns = carve.take<const Half *>(rank);
    selected = carve.take<float>(g * rank);
    invTau = carve.take<float>(g);
    magnitude = carve.take<float>(d);
    bits = carve.take<std::int32_t>(d);
    work = carve.take<std::int32_t>(d);
    workIndex = carve.take<std::uint32_t>(d + 16);
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
    for (unsigned j = 0; j < rank; ++j)
      columns[j] = pair.keyColumns + components[j] * cache.keyIndex.columnStride;
  }

  float *query;                        // (g, headDim)
  std::uint32_t *components = nullptr; // (rank,) ascending
  const Half **columns = nullptr;      // (rank,) of these components
  float *selected = nullptr;           // (g, rank) the selected components of the query
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
    std::memcpy(bits, magnitude, d * sizeof(float)); // bits of numbers >= +0 order as they do
    call->kernels.keyTopK({bits, nullptr, 0, d, rank, work, workIndex, components, nullptr});
    const float scale = attentionScale(d);
    for (std::size_t h = 0; h < g; ++h) {
      const float *q = query + h * d;
      std::memset(magnitude, 0, d * sizeof(float));
      for (std::size_t j = 0; j < rank; ++j) {
        selected[h * rank + j] = q[components[j]];
        magnitude[components[j]] = std::fabs(q[components[j]]);
      }
      const float all = laneSum(d, [&](std::size_t c) { return std::fabs(q[c]); });
      const float some = laneSum(d, [&](std::size_t c) { return magnitude[c]; });
      invTau[h] = inverseTemperature(all, some, static_cast<float>(d), scale);
    }
  }

  const Call *call;
  unsigned rank = 0;
  Half *half;                                    // (g, headDim)
  float *magnitude = nullptr;                    // (headDim,)
  std::int32_t *bits = nullptr, *work = nullptr; // (headDim,)
  std::uint32_t *workIndex = nullptr;            // (headDim,)
  KVCache::Pair pair{};
};

} // namespace sparq::cpu
