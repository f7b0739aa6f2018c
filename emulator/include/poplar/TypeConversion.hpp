// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ArrayRef.hpp"
#include "Quarter.hpp"
#include "Target.hpp"
#include "Type.hpp"

namespace poplar {

/// Converts floats to the device representation of `type` (HALF or FLOAT); throws type_error.
void convertToDeviceType(const Type &type, ArrayRef<float> src, void *dst);
void convertToDeviceType(const Type &type, ArrayRef<double> src, void *dst);
/// The reverse.
void convertFromDeviceType(const Type &type, const void *src, float *dst, std::size_t numElements);
inline void convertFromDeviceType(const Type &type, const void *src, ArrayRef<float> dst) {
  convertFromDeviceType(type, src, const_cast<float *>(dst.data()), dst.size());
}

/// With metadata: of QUARTER alone. What rounds to more than the greatest value becomes that value,
/// or NaN.
void convertToDeviceType(const Type &type, const QuarterMetadata &metadata, ArrayRef<float> src,
                         void *dst, bool nanOnOverflow = false);
void convertToDeviceType(const Type &type, const QuarterMetadata &metadata, ArrayRef<double> src,
                         void *dst, bool nanOnOverflow = false);
template <typename T>
void convertToDeviceType(const Type &type, const QuarterMetadata &metadata,
                         const ArrayRef<const T> &src, void *dst, bool nanOnOverflow = false) {
  convertToDeviceType(type, metadata, ArrayRef<T>(src.data(), src.size()), dst, nanOnOverflow);
}
void convertFromDeviceType(const Type &type, const QuarterMetadata &metadata, const void *src,
                           float *dst, std::size_t numElements);
void convertFromDeviceType(const Type &type, const QuarterMetadata &metadata, const void *src,
                           double *dst, std::size_t numElements);
inline void convertFromDeviceType(const Type &type, const QuarterMetadata &metadata,
                                  const void *src, ArrayRef<float> dst) {
  convertFromDeviceType(type, metadata, src, const_cast<float *>(dst.data()), dst.size());
}
inline void convertFromDeviceType(const Type &type, const QuarterMetadata &metadata,
                                  const void *src, ArrayRef<double> dst) {
  convertFromDeviceType(type, metadata, src, const_cast<double *>(dst.data()), dst.size());
}

} // namespace poplar
