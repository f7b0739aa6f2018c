// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "FieldTypes.hpp"

namespace poplar {

/// An edge the vertex reads. A vector of them is a Vector as any other, as the SDK has it: codelets
/// hand it to functions, and point to its elements, without const. They must not write there.
template <class T> class Input {
public:
  const T &operator*() const { return *ptr; }
  operator const T &() const { return *ptr; }

private:
  const T *ptr;
};
template <class T, VectorLayout L, unsigned A, bool I>
class Input<Vector<T, L, A, I>> : public Vector<T, L, A, I> {
public:
  const Input &operator*() const { return *this; }
  const Input *operator->() const { return this; }
};
template <class T, VectorListLayout L, unsigned A, bool I>
class Input<VectorList<T, L, A, I>> : public field::VectorView<const Input<Vector<T>>, true> {
public:
  const Input &operator*() const { return *this; }
  const Input *operator->() const { return this; }
};

/// An Input<size_t>: 32 bits on a device. popc refuses Input<uint64_t>, which is the same type
/// here.
template <> class Input<unsigned long> {
public:
  unsigned long operator*() const { return *ptr; }
  operator unsigned long() const { return *ptr; }

private:
  const unsigned *ptr;
};

/// An edge the vertex writes.
template <class T> class Output {
public:
  T &operator*() const { return *ptr; }
  operator T &() const { return *ptr; }

private:
  T *ptr;
};
template <class T, VectorLayout L, unsigned A, bool I>
class Output<Vector<T, L, A, I>> : public Vector<T, L, A, I> {
public:
  const Output &operator*() const { return *this; }
  const Output *operator->() const { return this; }
};
template <class T, VectorListLayout L, unsigned A, bool I>
class Output<VectorList<T, L, A, I>> : public field::VectorView<const Output<Vector<T>>, true> {
public:
  const Output &operator*() const { return *this; }
  const Output *operator->() const { return this; }
};

/// An edge the vertex reads and writes.
template <class T> class InOut {
public:
  T &operator*() const { return *ptr; }
  operator T &() const { return *ptr; }

private:
  T *ptr;
};
template <class T, VectorLayout L, unsigned A, bool I>
class InOut<Vector<T, L, A, I>> : public Vector<T, L, A, I> {
public:
  const InOut &operator*() const { return *this; }
  const InOut *operator->() const { return this; }
};
template <class T, VectorListLayout L, unsigned A, bool I>
class InOut<VectorList<T, L, A, I>> : public field::VectorView<const InOut<Vector<T>>, true> {
public:
  const InOut &operator*() const { return *this; }
  const InOut *operator->() const { return this; }
};

} // namespace poplar
