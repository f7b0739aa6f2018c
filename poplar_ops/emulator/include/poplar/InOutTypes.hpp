// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "FieldTypes.hpp"

namespace poplar {

/// An edge the vertex reads.
template <class T> class Input {
public:
  const T &operator*() const { return *ptr; }
  operator const T &() const { return *ptr; }

private:
  const T *ptr;
};
template <class T, VectorLayout L, unsigned A, bool I>
class Input<Vector<T, L, A, I>> : public field::VectorView<const T, vectorHasSize(L)> {
public:
  const Input &operator*() const { return *this; }
  const Input *operator->() const { return this; }
  // Functions of codelets take a Vector: of edges of every direction, and without const.
  operator Vector<T, L, A, I> &() { return reinterpret_cast<Vector<T, L, A, I> &>(*this); }
  operator const Vector<T, L, A, I> &() const {
    return reinterpret_cast<const Vector<T, L, A, I> &>(*this);
  }
};
template <class T, VectorListLayout L, unsigned A, bool I>
class Input<VectorList<T, L, A, I>> : public field::VectorView<const Input<Vector<T>>, true> {
public:
  const Input &operator*() const { return *this; }
  const Input *operator->() const { return this; }
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
