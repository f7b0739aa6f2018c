// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ArrayRef.hpp"
#include "Interval.hpp"
#include "Type.hpp"
#include "VariableRef.hpp"

namespace poplar {

namespace core {
struct TensorImpl;
struct Access;
} // namespace core

enum class UpsampleMethod { REPEAT };

/// A view of elements of variables: cheap to copy; a default-constructed one is not valid().
///
/// View operations throw index_error for dimensions and ranges out of bounds and
/// tensor_creation_error for shapes that do not fit.
class Tensor {
public:
  Tensor();
  Tensor(const Tensor &) = default;
  Tensor(Tensor &&) noexcept = default;
  Tensor &operator=(const Tensor &) = default;
  Tensor &operator=(Tensor &&) noexcept = default;
  ~Tensor();

  Type elementType() const;
  /// Element `i` of dimension 0; the dimension is dropped.
  Tensor operator[](std::size_t i) const &;
  Tensor slice(std::size_t begin, std::size_t end, unsigned dimension) const;
  Tensor slice(std::size_t begin, std::size_t end) const { return slice(begin, end, 0); }
  Tensor slice(const Interval &region, unsigned dimension = 0) const {
    return slice(region.begin(), region.end(), dimension);
  }
  Tensor slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const;
  std::vector<Tensor> slices(ArrayRef<Interval> intervals, unsigned dimension = 0) const;
  /// One tensor per list of intervals: the concatenation of its slices.
  std::vector<Tensor> slices(const std::vector<std::vector<Interval>> &intervals,
                             unsigned dimension = 0) const;
  std::vector<Tensor> slices(const poplar::ArrayRef<unsigned> &indices,
                             unsigned dimension = 0) const;
  Tensor index(ArrayRef<std::size_t> indices) const;
  Tensor flatten() const;
  /// Merges the dimensions [dimBegin, dimEnd).
  Tensor flatten(unsigned dimBegin, unsigned dimEnd) const;
  Tensor reshape(ArrayRef<std::size_t> shape) const;
  Tensor dimShuffle(ArrayRef<unsigned> permutation) const;
  Tensor dimShufflePartial(ArrayRef<unsigned> source, ArrayRef<unsigned> destination) const;
  Tensor dimRoll(unsigned dimIdx, unsigned newIdx = 0) const;
  Tensor reshapePartial(unsigned beginIndex, unsigned endIndex,
                        ArrayRef<std::size_t> newDims) const;
  /// Inserts dimensions of size 1 before each of the given dimensions.
  Tensor expand(ArrayRef<std::size_t> indices) const;
  Tensor squeeze(ArrayRef<std::size_t> indices) const;
  Tensor transpose() const;
  Tensor subSample(unsigned stride, unsigned dimension) const;
  Tensor upsample(unsigned scale, unsigned dimension, UpsampleMethod method) const;
  /// Repeats the whole dimension N times.
  Tensor broadcast(unsigned N, unsigned dimension) const;
  /// The same bits as another type of the same size.
  Tensor reinterpret(const Type &type) const;
  Tensor reverse(unsigned dimension) const;

  std::size_t numElements() const;
  std::size_t dim(unsigned i) const;
  std::vector<std::size_t> shape() const;
  unsigned rank() const;
  bool isContiguous() const;
  bool containsAliases() const;
  bool containsConstant() const;
  bool isParallelWriteable() const;
  std::vector<Interval> getContiguousRegions() const;
  std::vector<VariableInterval> getVarRegions() const;
  bool intersectsWith(const Tensor &other) const;
  std::string shapeToString() const;
  void dump() const;
  void dumpRegions() const;
  std::string getVarStr() const;
  std::string getDebugStr() const;
  bool valid() const;
  /// The value of a tensor of one constant element; false for any other tensor.
  template <typename T> bool getConstantValue(T *result) const {
    double value = 0;
    if (!constantAsDouble(value))
      return false;
    *result = static_cast<T>(value);
    return true;
  }
  /// Of an FP8 tensor, which the emulator has none of: not valid().
  Tensor getMetadata() const;
  bool hasMetadata() const;

  bool operator==(const Tensor &other) const;
  bool operator!=(const Tensor &other) const { return !(*this == other); }

private:
  friend struct core::Access;
  bool constantAsDouble(double &value) const;
  std::shared_ptr<const core::TensorImpl> impl;
};

Tensor concat(ArrayRef<Tensor> ts, unsigned dimension = 0);
Tensor concat(const Tensor &first, const Tensor &second, unsigned dimension = 0);
/// Appends `second`, of one rank less, along a dimension of `first`.
Tensor append(const Tensor &first, const Tensor &second, unsigned dimension);
Tensor append(const Tensor &first, const Tensor &second);

std::ostream &operator<<(std::ostream &os, const Tensor &tensor);

} // namespace poplar
