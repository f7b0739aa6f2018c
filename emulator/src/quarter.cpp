// SPDX-License-Identifier: Apache-2.0
// Metadata of FP8 numbers, and conversion of host values to them and back.
#include <ostream>

#include <poplar/Quarter.hpp>
#include <poplar/QuarterFloat.hpp>
#include <poplar/TypeConversion.hpp>

#include "core.hpp"

namespace poplar {

QuarterMetadata::QuarterMetadata(Format format, int scale) : format_(format), scale_(scale) {
  if (scale < -32 || scale > 31)
    throw errors::quarter_metadata("QuarterMetadata: scale must be from -32 to 31, got " +
                                   std::to_string(scale));
}

std::uint8_t QuarterMetadata::getBinary() const {
  return static_cast<std::uint8_t>((format_ == Format::F143 ? 0x80 : 0) | (scale_ & 0x3f));
}

std::ostream &operator<<(std::ostream &os, const QuarterMetadata &metadata) {
  return os << (metadata.getFormat() == QuarterMetadata::Format::F143 ? "{F143, " : "{F152, ")
            << metadata.getScale() << "}";
}

namespace {

quarter_metadata checked(const Type &type, const QuarterMetadata &metadata, const char *op) {
  if (type != QUARTER)
    throw errors::type_mismatch(std::string(op) + ": type must be quarter to have metadata, got " +
                                type.toString().str());
  return unpackMetadata(metadata.getBinary());
}

template <class T>
void toQuarters(const Type &type, const QuarterMetadata &metadata, ArrayRef<T> src, void *dst,
                bool nanOnOverflow) {
  const quarter_metadata m = checked(type, metadata, "convertToDeviceType");
  for (std::size_t i = 0; i < src.size(); ++i)
    static_cast<std::uint8_t *>(dst)[i] =
        quarter_bits::fromDouble(static_cast<double>(src[i]), m, nanOnOverflow);
}

template <class T>
void fromQuarters(const Type &type, const QuarterMetadata &metadata, const void *src, T *dst,
                  std::size_t n) {
  const quarter_metadata m = checked(type, metadata, "convertFromDeviceType");
  for (std::size_t i = 0; i < n; ++i)
    dst[i] = static_cast<T>(quarter_bits::toDouble(static_cast<const std::uint8_t *>(src)[i], m));
}

} // namespace

void convertToDeviceType(const Type &type, const QuarterMetadata &metadata, ArrayRef<float> src,
                         void *dst, bool nanOnOverflow) {
  toQuarters(type, metadata, src, dst, nanOnOverflow);
}
void convertToDeviceType(const Type &type, const QuarterMetadata &metadata, ArrayRef<double> src,
                         void *dst, bool nanOnOverflow) {
  toQuarters(type, metadata, src, dst, nanOnOverflow);
}
void convertFromDeviceType(const Type &type, const QuarterMetadata &metadata, const void *src,
                           float *dst, std::size_t n) {
  fromQuarters(type, metadata, src, dst, n);
}
void convertFromDeviceType(const Type &type, const QuarterMetadata &metadata, const void *src,
                           double *dst, std::size_t n) {
  fromQuarters(type, metadata, src, dst, n);
}

} // namespace poplar
