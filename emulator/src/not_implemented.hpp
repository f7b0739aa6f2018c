// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "errors.hpp"

namespace poplar {
namespace core {

/// For what the SDK has and the emulator has not.
[[noreturn]] inline void notImplemented(const std::string &name) {
  throw errors::not_implemented(name + ": not implemented in the emulator");
}

} // namespace core
} // namespace poplar
