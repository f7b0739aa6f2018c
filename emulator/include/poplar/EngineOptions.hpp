// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "OptionFlags.hpp"
#include "Target.hpp"

namespace poplar {

/// What an engine of programs for a target is made with, to be told from others: the flags, with
/// those of the environment variable POPLAR_ENGINE_OPTIONS.
class EngineOptions {
public:
  EngineOptions(const OptionFlags &flags, const Target &target, unsigned replicationFactor = 1);
  std::size_t hash() const { return hash_; }

private:
  std::size_t hash_;
};

/// For boost::hash.
inline std::size_t hash_value(const EngineOptions &options) { return options.hash(); }

} // namespace poplar

namespace std {
template <> struct hash<poplar::EngineOptions> {
  size_t operator()(const poplar::EngineOptions &options) const { return options.hash(); }
};
} // namespace std
