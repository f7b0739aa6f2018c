// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace poplar {

/// How a vector field is stored in the vertex. On the host every layout is a pointer and a count;
/// ONE_PTR and the other layouts without a count have no size().
enum class VectorLayout {
  SPAN,
  SHORT_SPAN,
  ONE_PTR,
  SCALED_PTR32,
  SCALED_PTR64,
  SCALED_PTR128,
  COMPACT_PTR
};

enum class VectorListLayout {
  ONE_PTR,
  SCALED_PTR32,
  SCALED_PTR64,
  SCALED_PTR128,
  DELTAN,
  DELTANELEMENTS,
  COMPACT_DELTAN
};

constexpr bool vectorHasSize(VectorLayout l) {
  return l == VectorLayout::SPAN || l == VectorLayout::SHORT_SPAN;
}

namespace field {

// What the loader writes: the same for vectors of every layout.
template <class T> struct VectorStorage {
  T *ptr;
  unsigned count;
};

template <class T, bool HasSize> struct VectorView : protected VectorStorage<T> {
  T *data() const { return this->ptr; }
  T &operator[](unsigned i) const { return this->ptr[i]; }
  /// Of `quarter`, which no tensor here has: so nothing is connected, and there are none.
  const std::uint8_t *getMetadata() const { return nullptr; }
};
template <class T> struct VectorView<T, true> : VectorView<T, false> {
  unsigned size() const { return this->count; }
  bool empty() const { return this->count == 0; }
  T *begin() const { return this->ptr; }
  T *end() const { return this->ptr + this->count; }
};

} // namespace field

/// A vector of values (state, or the target of an edge) or of edges (`Vector<Input<...>>`).
/// `MinAlign`: the alignment of the first element, in bytes.
template <class T, VectorLayout L = VectorLayout::SPAN, unsigned MinAlign = 0,
          bool Interleaved = false>
struct Vector : field::VectorView<T, vectorHasSize(L)> {};

/// Rows of different lengths; v[i][j].
template <class T, VectorListLayout L = VectorListLayout::DELTANELEMENTS, unsigned MinAlign = 0,
          bool Interleaved = false>
struct VectorList : field::VectorView<Vector<T>, true> {};

} // namespace poplar
