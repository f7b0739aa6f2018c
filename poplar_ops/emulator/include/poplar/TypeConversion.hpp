// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ArrayRef.hpp"
#include "Target.hpp"
#include "Type.hpp"

namespace poplar {

/// Converts floats to the device representation of `type` (HALF or FLOAT); throws type_error.
void convertToDeviceType(const Type &type, ArrayRef<float> src, void *dst);
void convertToDeviceType(const Type &type, ArrayRef<double> src, void *dst);
/// The reverse.
void convertFromDeviceType(const Type &type, const void *src, float *dst, std::size_t numElements);

} // namespace poplar
