// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/table.hpp"
#include <cstddef>

namespace sparq {
namespace cpu {

// A key or a value as a cache with rows of 8 bits holds it (docs/exactness.md E10), in place.
void roundRow(Half *row, std::size_t headDim);

} // namespace cpu
} // namespace sparq
