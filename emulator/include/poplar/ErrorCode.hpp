// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "StringRef.hpp"

namespace poplar {

/// The reason why a tile or device stopped. The emulator gives the reason in the exception's text.
enum class ErrorCode {
  NONE,
  UNKNOWN,
  TRAP,
  FLOATING_POINT_INVALID_OPERATION,
  FLOATING_POINT_DIVIDE_BY_ZERO,
  FLOATING_POINT_OVERFLOW,
  TILE_MEMORY_BANK_CONFLICT,
  INVALID_EXCHANGE_CONFIGURATION,
  INVALID_ADDRESS,
  INVALID_OPERAND,
  INVALID_PROGRAM_COUNTER,
  INVALID_INSTRUCTION,
  EXCHANGE_ERROR,
  MEMORY_ERROR,
  IPUSOFTERR,
  LINK_DOWN,
  HOST_LINK_DOWN,
  HOST_SYNC_TIMEOUT,
  IPU_MEMORY_FAILURE
};

/// The enumerator's name.
std::string errorCodeToString(ErrorCode code);
/// Throws poplar_error for a name of no code.
ErrorCode errorCodeFromString(StringRef name);

/// Where on a device an error was: no emulated run has one.
struct ErrorLocation {
  ErrorLocation(const ErrorLocation &) = default;
  unsigned getTile() const { return tile_; }

private:
  unsigned tile_;
};

} // namespace poplar
