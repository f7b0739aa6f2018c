// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace poplar {
namespace layout {
enum class Vector { NotAVector, Span, ShortSpan, OnePtr, ScaledPtr32, ScaledPtr64, ScaledPtr128 };
std::string to_string(const Vector v);
enum class VectorList {
  NotAVector,
  OnePtr,
  ScaledPtr32,
  ScaledPtr64,
  ScaledPtr128,
  DeltaN,
  DeltaNElements
};
std::string to_string(const VectorList v);
} // namespace layout
} // namespace poplar
