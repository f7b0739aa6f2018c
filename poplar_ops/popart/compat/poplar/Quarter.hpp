// SPDX-License-Identifier: Apache-2.0
//
// PopART's headers name this type of the SDK and nothing else of its 8-bit floats. The operators do
// not use it: it is here so that those headers compile where there is no SDK.
#pragma once

namespace poplar {
struct QuarterMetadata {
  enum class Format { F143, F152 };
};
} // namespace poplar
