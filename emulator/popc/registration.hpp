// SPDX-License-Identifier: Apache-2.0
// Turns member pointers of vertex classes into descriptions of fields.
// Included by the code that popc generates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <poplar/QuarterFloat.hpp>
#include <poplar/Vertex.hpp>

#include "codelet_abi.hpp"

namespace codelet_registration {

using codelet_abi::Direction;
using codelet_abi::Element;
using codelet_abi::Layout;
using codelet_abi::Nesting;

// Reaches private fields: access checks do not apply to the arguments of an explicit instantiation,
// so a private member can be named there and handed out through a friend.
template <class Tag, auto Member> struct Reveal {
  friend constexpr auto revealed(Tag) { return Member; }
};

template <class T> constexpr Element elementOf() {
  using U = std::remove_cv_t<T>;
  if (std::is_same<U, bool>::value)
    return Element::Bool;
  if (std::is_same<U, char>::value)
    return Element::Char;
  if (std::is_same<U, unsigned char>::value)
    return Element::UnsignedChar;
  if (std::is_same<U, signed char>::value)
    return Element::SignedChar;
  if (std::is_same<U, short>::value)
    return Element::Short;
  if (std::is_same<U, unsigned short>::value)
    return Element::UnsignedShort;
  if (std::is_same<U, int>::value)
    return Element::Int;
  if (std::is_same<U, unsigned>::value)
    return Element::UnsignedInt;
  if (std::is_same<U, long long>::value)
    return Element::LongLong;
  if (std::is_same<U, unsigned long long>::value)
    return Element::UnsignedLongLong;
  if (std::is_same<U, quarter>::value)
    return Element::Quarter;
  if (std::is_same<U, half>::value)
    return Element::Half;
  if (std::is_same<U, float>::value)
    return Element::Float;
  return Element::Invalid;
}

constexpr Layout layoutOf(poplar::VectorLayout l) { return static_cast<Layout>(l); }

struct Shape {
  Direction direction;
  Nesting nesting;
  Element element;
  Layout layout;
  Layout outerLayout;
  unsigned minAlign;
  unsigned outerMinAlign;
};

// The primary template is plain scalar state.
template <class T> struct FieldShape {
  static constexpr Shape get() {
    return {Direction::State, Nesting::Scalar, elementOf<T>(), Layout::Span, Layout::Span, 0, 0};
  }
};

// State vectors, and lists of edges.
template <class T, poplar::VectorLayout L, unsigned A, bool I>
struct FieldShape<poplar::Vector<T, L, A, I>> {
  static constexpr Shape get() {
    Shape s = FieldShape<std::remove_cv_t<T>>::get();
    if (s.direction == Direction::State) {
      static_assert(elementOf<T>() != Element::Invalid ||
                        FieldShape<std::remove_cv_t<T>>::get().direction != Direction::State,
                    "a vector field holds scalars or edges");
      s.nesting = Nesting::Vector;
      s.layout = layoutOf(L);
      s.minAlign = A;
    } else {
      s.nesting =
          s.nesting == Nesting::Scalar ? Nesting::VectorOfScalars : Nesting::VectorOfVectors;
      s.outerLayout = layoutOf(L);
      s.outerMinAlign = A;
    }
    return s;
  }
};

template <class T, Direction D> struct EdgeShape {
  static constexpr Shape get() {
    return {D, Nesting::Scalar, elementOf<T>(), Layout::Span, Layout::Span, 0, 0};
  }
};
template <class T, poplar::VectorLayout L, unsigned A, bool I, Direction D>
struct EdgeShape<poplar::Vector<T, L, A, I>, D> {
  static constexpr Shape get() {
    return {D, Nesting::Vector, elementOf<T>(), layoutOf(L), Layout::Span, A, 0};
  }
};
template <class T, poplar::VectorListLayout L, unsigned A, bool I, Direction D>
struct EdgeShape<poplar::VectorList<T, L, A, I>, D> {
  static constexpr Shape get() {
    return {D, Nesting::VectorList, elementOf<T>(), Layout::Span, Layout::OnePtr, A, 0};
  }
};
template <class T> struct FieldShape<poplar::Input<T>> : EdgeShape<T, Direction::Input> {};
template <class T> struct FieldShape<poplar::Output<T>> : EdgeShape<T, Direction::Output> {};
template <class T> struct FieldShape<poplar::InOut<T>> : EdgeShape<T, Direction::InOut> {};

template <class C, class T> constexpr codelet_abi::Field describe(const char *name, T C::*) {
  constexpr Shape s = FieldShape<std::remove_cv_t<T>>::get();
  static_assert(s.element != Element::Invalid,
                "vertex fields hold bool, integers of up to 64 "
                "bits, quarter, half or float, and edges or vectors of them");
  return {name,          0,          s.direction,    s.nesting, s.element, s.layout,
          s.outerLayout, s.minAlign, s.outerMinAlign};
}

// State that has an element's type on a device, and a wider one here: a graph's value fills its
// lower half. And what such an Input points to, which the class reads as a device does.
template <class C, class T>
constexpr codelet_abi::Field describe(const char *name, T C::*, Element element) {
  return {name, 0, Direction::State, Nesting::Scalar, element, Layout::Span, Layout::Span, 0, 0};
}

template <class C>
constexpr codelet_abi::Field describe(const char *name, poplar::Input<unsigned long> C::*,
                                      Element element) {
  return {name, 0, Direction::Input, Nesting::Scalar, element, Layout::Span, Layout::Span, 0, 0};
}

// Where the member lies in a V: the base class that declares it may not come first.
template <class V, class C, class T> std::size_t offsetIn(T C::*member) {
  alignas(V) static unsigned char space[sizeof(V)];
  const V *v = reinterpret_cast<const V *>(space);
  return static_cast<std::size_t>(reinterpret_cast<const unsigned char *>(&(v->*member)) - space);
}

template <class V> constexpr codelet_abi::VertexKind kindOf() {
  return std::is_base_of<poplar::MultiVertex, V>::value ? codelet_abi::VertexKind::MultiVertex
         : std::is_base_of<poplar::SupervisorVertex, V>::value
             ? codelet_abi::VertexKind::SupervisorVertex
             : codelet_abi::VertexKind::Vertex;
}

// A class may have compute() and compute(unsigned), and derive from another kind of vertex for
// each. Only one of the two fits each of these; where a class has but one, whatever it is, the last
// takes it.
template <class V> using ByWorker = std::is_base_of<poplar::MultiVertex, V>;
template <class C, class R> constexpr auto entry(std::true_type, R (C::*f)(unsigned)) { return f; }
template <class C, class R> constexpr auto entry(std::true_type, R (C::*f)(unsigned) const) {
  return f;
}
template <class C, class R> constexpr auto entry(std::false_type, R (C::*f)()) { return f; }
template <class C, class R> constexpr auto entry(std::false_type, R (C::*f)() const) { return f; }
template <class Kind, class F> constexpr F entry(Kind, F f) { return f; }

template <class V, class C> bool call(V &v, bool (C::*f)(), unsigned) { return (v.*f)(); }
template <class V, class C> bool call(V &v, void (C::*f)(), unsigned) { return (v.*f)(), true; }
template <class V, class C> bool call(V &v, bool (C::*f)() const, unsigned) { return (v.*f)(); }
template <class V, class C> bool call(V &v, void (C::*f)() const, unsigned) {
  return (v.*f)(), true;
}
template <class V, class C> bool call(V &v, bool (C::*f)(unsigned), unsigned w) {
  return (v.*f)(w);
}
template <class V, class C> bool call(V &v, void (C::*f)(unsigned), unsigned w) {
  return (v.*f)(w), true;
}
template <class V, class C> bool call(V &v, bool (C::*f)(unsigned) const, unsigned w) {
  return (v.*f)(w);
}
template <class V, class C> bool call(V &v, void (C::*f)(unsigned) const, unsigned w) {
  return (v.*f)(w), true;
}

} // namespace codelet_registration
