// SPDX-License-Identifier: Apache-2.0
//
// Which IPU of several has what of a model's caches.
#pragma once

#include "sparq/device_options.hpp"
#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparq {

// One IPU's part: layers [firstLayer, firstLayer + nLayers), each with this cache.
struct Share {
  Shape shape;
  unsigned firstLayer = 0, nLayers = 1;
  unsigned firstBatch = 0, firstKvHead = 0; // where heads are split

  // Of what there is for each batch element, these.
  template <class T> std::vector<T> ofBatch(const std::vector<T> &all) const {
    return {all.begin() + firstBatch, all.begin() + firstBatch + shape.batch};
  }
  // Number of its first KV head in batch element b of its own, among all.
  std::size_t firstRow(const Shape &whole, unsigned b) const {
    return (firstBatch + b) * std::size_t(whole.nKvHeads) + firstKvHead;
  }
};

// Throws Error unless nIpus is a power of two up to maxIpus, and there are at least nIpus layers,
// or KV heads, then the batch, split evenly.
std::vector<Share> shareOut(const Shape &shape, unsigned nLayers, unsigned nIpus, Split split);

// The part of an array {batch, nKvHeads, each} that a share has, `whole` being the shape of all;
// and back.
template <class T>
std::vector<T> partOf(const Shape &whole, const Share &share, const T *array, std::size_t each) {
  std::vector<T> part;
  part.reserve(share.shape.nTasks() * each);
  for (unsigned b = 0; b != share.shape.batch; ++b) {
    const T *const from = array + share.firstRow(whole, b) * each;
    part.insert(part.end(), from, from + share.shape.nKvHeads * each);
  }
  return part;
}

template <class T>
void putPart(const Shape &whole, const Share &share, const std::vector<T> &part, T *array,
             std::size_t each) {
  const std::size_t n = share.shape.nKvHeads * each;
  for (unsigned b = 0; b != share.shape.batch; ++b)
    std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(b * n), n,
                array + share.firstRow(whole, b) * each);
}

} // namespace sparq
