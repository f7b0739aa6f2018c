// SPDX-License-Identifier: Apache-2.0
//
// What a caller chooses of the caches of a model on a device: sparq_ipu.device_options in Python.
// No result depends on it.
#pragma once

#include "sparq/plan.hpp"
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace sparq {

// What of a model an IPU of several has.
//
//   layers   layer l of L is on IPU l * N / L. What passes from IPU to IPU is what a layer hands to
//            the next.
//   heads    every IPU has all layers, of its share of the KV heads, then of the batch.
enum class Split { layers, heads };

// Throws Error for another name.
Split splitNamed(const char *op, const std::string &name);

// Most IPUs that links join.
constexpr unsigned maxIpus = 64;

struct DeviceOptions {
  std::string device = "emulator"; // or "ipu"
  unsigned nTiles = 0;             // of an emulated IPU; 0: all of a real one
  unsigned nIpus = 1;
  Split split = Split::layers;
  TierOptions tiers{}; // for a cache in three tiers; the kernels determine its memory
};

// Which IPU of several has what of a model's caches.

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
