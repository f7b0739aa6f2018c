// SPDX-License-Identifier: Apache-2.0
//
// The positions with the largest keys, equal keys by lower index (contract E6.3, E7), without
// sorting.
//
// Keys are bit patterns of numbers >= +0, ordered as integers. The threshold (the nBest-th largest
// key) is found bit by bit, counting at each bit how many keys reach it: 31 vectorised counts. To
// count over few keys, a lower bound comes first: of the maxima of disjoint units of positions, the
// nBest-th largest is reached by at least nBest keys; only the keys above it are counted over
// (about 1.4 nBest of them where positions are alike). Every case is linear in the number of keys.
#pragma once

#include "vectors.hpp"

inline IntVec larger(IntVec a, IntVec b) { return a > b ? a : b; }

// A merit is +0 or more; the mask matters for NaN only, whose sign would spoil the order of bit
// patterns.
constexpr unsigned signMask = 0x7FFFFFFFu;

inline void roughKeys(const RoughKeys &a) {
  constexpr unsigned vectors = 16 / width; // of 16 positions
  const Merit &merit = a.merit;
  for (std::size_t at = a.begin; at < a.end; at += blockSize) {
    IntVec most[vectors] = {};
    for (unsigned part = 0; part < blockSize; part += 16) {
      for (unsigned v = 0; v < vectors; ++v) {
        const std::size_t p = at + part + v * width;
        Vec key{};
        for (unsigned h = 0; h < merit.groupSize; ++h)
          key = key + load(merit.weights + h * merit.weightStride + p) * broadcast(a.inverseSum[h]);
        const IntVec bits = bitcast<IntVec>(bitcast<BitsVec>(key) & signMask);
        __builtin_memcpy(a.keys + p, &bits, sizeof(bits));
        most[v] = larger(bits, most[v]);
      }
    }
    __builtin_memcpy(a.maxima + at / blockSize * 16, most, sizeof(most));
  }
}

inline void meritsAt(const Merit &a, const std::uint32_t *positions, std::size_t n,
                     std::int32_t *keys) {
  for (std::size_t i = 0; i < n; i += width) {
    const std::size_t left = n - i, some = left < width ? left : width;
    Vec key{};
    for (unsigned h = 0; h < a.groupSize; ++h) {
      float weight[width] = {};
      for (std::size_t j = 0; j < some; ++j)
        weight[j] = a.weights[h * a.weightStride + positions[i + j]];
      key = key + load(weight) / broadcast(a.weightSum[h]);
    }
    const IntVec bits = bitcast<IntVec>(bitcast<BitsVec>(key) & signMask);
    __builtin_memcpy(keys + i, &bits, some * sizeof(std::int32_t));
  }
}

inline std::size_t countAtLeast(const std::int32_t *keys, std::size_t n, std::int32_t threshold) {
  std::int32_t count = 0; // n is at most 2^24
  for (std::size_t j = 0; j < n; ++j)
    count += keys[j] >= threshold;
  return static_cast<std::size_t>(count);
}

inline std::size_t countAbove(const std::int32_t *keys, std::size_t n, std::int32_t threshold) {
  std::int32_t count = 0;
  for (std::size_t j = 0; j < n; ++j)
    count += keys[j] > threshold;
  return static_cast<std::size_t>(count);
}

// A threshold that at least `wanted` keys reach, and fewer than `wanted` exceed - or exactly
// `wanted` reach, if the bits allow stopping there.
inline std::int32_t nthLargest(const std::int32_t *keys, std::size_t n, std::size_t wanted) {
  std::int32_t threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::int32_t higher = threshold | std::int32_t(1) << bit;
    const std::size_t count = countAtLeast(keys, n, higher);
    if (count >= wanted)
      threshold = higher;
    if (count == wanted)
      break;
  }
  return threshold;
}

#ifndef SPARQ_WIDE_VECTORS // else in simd_avx512.hpp
// The indices (the first being `index`) of those of 16 numbers that reach the threshold; returns
// how many.
inline unsigned appendAtLeast(const std::int32_t *x, std::int32_t threshold, std::uint32_t index,
                              std::uint32_t *to) {
  unsigned count = 0;
  for (unsigned mask = atLeast(x, threshold); mask; mask &= mask - 1)
    to[count++] = index + static_cast<unsigned>(__builtin_ctz(mask));
  return count;
}
#endif

// The indices of keys above `bound`, ascending, and up to 16 numbers after them; returns how many.
// With maxima of the blocks, where there are few such keys, most blocks need no look; which ones is
// listed first, since branches for each would be mispredicted half of the time.
inline std::size_t gatherAbove(const std::int32_t *keys, const std::int32_t *maxima, std::size_t n,
                               std::int32_t bound, std::uint32_t *where, std::int32_t *work) {
  std::size_t count = 0;
  if (bound == 0x7FFFFFFF)
    return 0;
  const std::int32_t reach = bound + 1;
  const std::size_t blocks = n / blockSize;
  std::size_t listed = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    work[listed] = static_cast<std::int32_t>(block);
    listed += !maxima || atLeast(maxima + block * 16, reach);
  }
  for (std::size_t i = 0; i < listed; ++i) {
    const std::size_t j = static_cast<std::size_t>(work[i]) * blockSize;
    for (unsigned part = 0; part < blockSize; part += 16)
      count += appendAtLeast(keys + j + part, reach, static_cast<std::uint32_t>(j + part),
                             where + count);
  }
  for (std::size_t j = blocks * blockSize; j < n; ++j)
    if (keys[j] > bound)
      where[count++] = static_cast<std::uint32_t>(j);
  return count;
}

// A key that at least `wanted` of the keys reach, from the maxima of disjoint units of positions:
// lane j of a few neighbouring blocks. The more units, the tighter the bound and the longer the
// search for it: twice as many as wanted.
inline std::int32_t lowerBound(const std::int32_t *maxima, std::size_t blocks, std::size_t wanted,
                               std::int32_t *work) {
  if (blocks * 16 < wanted)
    return 0;
  const std::size_t blocksEach = blocks * 16 / (2 * wanted), each = blocksEach ? blocksEach : 1;
  std::size_t n = 0;
  for (std::size_t first = 0; first < blocks; first += each, n += 16) {
    const std::size_t last = first + each < blocks ? first + each : blocks;
    std::int32_t most[16] = {};
    for (std::size_t block = first; block < last; ++block)
      for (unsigned j = 0; j < 16; ++j)
        most[j] = maxima[block * 16 + j] > most[j] ? maxima[block * 16 + j] : most[j];
    __builtin_memcpy(work + n, most, sizeof(most));
  }
  return nthLargest(work, n, wanted);
}

// The first `ties` indices of keys equal to `threshold` and all of larger ones, ascending.
struct Chooser {
  std::int32_t threshold;
  std::size_t ties;
  bool operator()(std::int32_t key) {
    const bool tie = key == threshold && ties != 0;
    ties -= tie;
    return tie || key > threshold;
  }
};

// A bound for rough keys from one for merits. A rough key and a merit are sums of groupSize
// products each; their relative difference is at most (2 groupSize + 3) * 2^-24.
inline std::int32_t roughBound(std::int32_t bound, unsigned groupSize) {
  const float slack = static_cast<float>(groupSize + 8) * 0x1p-22f;
  const float lower = bitcast<float>(bound) * (1.0f - slack);
  return lower > 0.0f && bitcast<std::int32_t>(lower) < bound ? bitcast<std::int32_t>(lower) : 0;
}

inline void keyTopK(const KeyTopK &a) {
  const std::int32_t *keys = a.keys + a.begin;
  const std::size_t n = a.end - a.begin;
  if (a.nBest == 0)
    return;
  const std::int32_t *const maxima = a.maxima ? a.maxima + a.begin / blockSize * 16 : nullptr;
  std::int32_t bound = maxima ? lowerBound(maxima, n / blockSize, a.nBest, a.work) : 0;
  if (a.merit)
    bound = roughBound(bound, a.merit->groupSize);
  std::int32_t *const found = a.work;
  std::uint32_t *const where = a.workIndex, *to = a.positions;
  const std::uint32_t *const stop = to + a.nBest;
  const std::size_t above = gatherAbove(keys, maxima, n, bound, where, a.work);
  const auto base = static_cast<std::uint32_t>(a.begin);
  if (a.merit && above >= a.nBest) {
    Merit merit = *a.merit;
    merit.weights += a.begin;
    meritsAt(merit, where, above, found);
  } else {
    for (std::size_t i = 0; i < above; ++i)
      found[i] = keys[where[i]];
  }

  if (above >= a.nBest) { // the best are among those found
    const std::int32_t threshold = nthLargest(found, above, a.nBest);
    const std::size_t reached = countAtLeast(found, above, threshold);
    Chooser choose{threshold,
                   reached == a.nBest ? reached : a.nBest - countAbove(found, above, threshold)};
    for (std::size_t j = 0; to != stop; ++j) {
      *to = base + where[j];
      to += choose(found[j]);
    }
    return;
  }
  // All that were found, and the first of those at the bound. (Rough keys come here if fewer than
  // nBest are not zero, and then all of these are among the best.)
  Chooser choose{bound, a.nBest - above};
  for (std::size_t j = 0; to != stop && j < n; j += 16) {
    const std::int32_t reach = choose.ties ? bound : bound + 1;
    unsigned mask = 0;
    if (j + 16 <= n)
      mask = atLeast(keys + j, reach);
    else
      for (std::size_t i = j; i < n; ++i)
        mask |= static_cast<unsigned>(keys[i] >= reach) << (i - j);
    for (; mask && to != stop; mask &= mask - 1) {
      const auto i = j + static_cast<unsigned>(__builtin_ctz(mask));
      if (choose(keys[i]))
        *to++ = base + static_cast<std::uint32_t>(i);
    }
  }
  while (to != stop) // NaN among the keys, which nobody asked about: any position will do
    *to++ = base;
}
