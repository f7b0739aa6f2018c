// SPDX-License-Identifier: Apache-2.0
//
// Keys by component.
#pragma once

#include "kernels/table.hpp"

namespace sparq::cpu {

// Positions that are written to the columns together: one cache line.
constexpr std::size_t linePositions = 32;

// Rows [begin, end) of K (, headDim) to the columns (nComponents, columnStride) of their first
// components.
void writeColumns(const Half *rows, std::size_t headDim, std::size_t nComponents, Half *columns,
                  std::size_t columnStride, std::size_t begin, std::size_t end);

} // namespace sparq::cpu
