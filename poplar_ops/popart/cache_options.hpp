// SPDX-License-Identifier: Apache-2.0
//
// The options of a cache that attributes give, beside its name. Operators of one cache agree on
// them. python/sparq_ipu/poptorch/contract.py has the same table with the same messages.
#pragma once

#include "popart_headers.hpp"
#include "sparq/kernels.hpp"
#include <string>
#include <utility>
#include <vector>

namespace sparq_popart {

struct CacheOptions {
  sparq::CacheSpec spec; // batch, nKvHeads and headDim come with the inputs
  sparq::Memory memory = sparq::Memory::streaming; // or tiered
  sparq::TierOptions tiers;                        // for tiered memory

  CacheOptions() = default;
  // Throws sparq::Error where a value is out of range.
  explicit CacheOptions(const popart::OpCreatorInfo &info);

  // Throws sparq::Error unless a cache of this shape can be in that memory.
  void check(const char *op, const sparq::CacheSpec &shape) const;
  // Every option by name, in one order, with its value as messages show it.
  std::vector<std::pair<std::string, std::string>> shown() const;

  bool operator==(const CacheOptions &other) const { return shown() == other.shown(); }
};

} // namespace sparq_popart
