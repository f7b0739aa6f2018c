// SPDX-License-Identifier: Apache-2.0
//
// What a caller chooses of the caches of a model on a device: sparq_ipu.device_options in Python.
// No result depends on it.
#pragma once

#include "sparq/plan.hpp"
#include <string>

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

} // namespace sparq
