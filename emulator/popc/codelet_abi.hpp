// SPDX-License-Identifier: Apache-2.0
// What a codelet object (.gp) tells the library about its vertices.
// Included by the registration code that popc generates and by the library that loads it.
// Both must come from the same version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace codelet_abi {

constexpr unsigned version = 3;

enum class Direction : std::uint8_t { Input, Output, InOut, State };

// Shape of a field. Vector edges are stored as {pointer, 32-bit count}, scalar edges as a pointer,
// lists as a vector of those.
enum class Nesting : std::uint8_t {
  Scalar,          // Input<T>, or plain state T
  Vector,          // Input<Vector<T>>, or state Vector<T>
  VectorOfScalars, // Vector<Input<T>>
  VectorOfVectors, // Vector<Input<Vector<T>>>
  VectorList,      // Input<VectorList<T>>
};

// Same order as poplar::Type's objects.
enum class Element : std::uint8_t {
  Invalid,
  Bool,
  Char,
  UnsignedChar,
  SignedChar,
  Short,
  UnsignedShort,
  Int,
  UnsignedInt,
  Long,
  UnsignedLong,
  LongLong,
  UnsignedLongLong,
  Quarter,
  QuarterMetadata,
  Half,
  Float
};

// Same order as poplar::VectorLayout.
enum class Layout : std::uint8_t {
  Span,
  ShortSpan,
  OnePtr,
  ScaledPtr32,
  ScaledPtr64,
  ScaledPtr128,
  CompactPtr
};

struct Field {
  const char *name;
  std::size_t offset; // in the vertex object
  Direction direction;
  Nesting nesting;
  Element element;
  Layout layout;      // of the vector of elements
  Layout outerLayout; // of the list of edges
  unsigned minAlign;  // bytes, of every vector of elements
  unsigned outerMinAlign;
};

enum class VertexKind : std::uint8_t { Vertex, MultiVertex, SupervisorVertex };

struct Vertex {
  const char *name;
  VertexKind kind;
  std::size_t size;
  std::size_t align;
  const Field *fields;
  unsigned numFields;
  bool (*run)(void *vertex, unsigned workerId); // compute(); void counts as true
  unsigned tokens;                              // of its source, with what it calls
};

struct Table {
  unsigned version;
  unsigned numVertices;
  const Vertex *vertices;
};

// Exported by a codelet object: `n` tables, one per source file.
using TablesFunction = const Table *const *(*)(unsigned *n);
constexpr const char *tablesSymbol = "poplar_codelet_tables";

// The worker that runs a vertex, for the IPU's builtins that ask for it.
struct Worker {
  unsigned tile;
  unsigned id;               // 0 to 5
  std::uint64_t *generator;  // two words: the state of its random numbers
  std::uint64_t (*cycles)(); // of the tile's counter
};
using WorkerFunction = Worker *(*)();
// Exported by a codelet object with such builtins: a variable of that type. Loading the object sets
// it.
constexpr const char *workerSymbol = "poplar_codelet_worker";

// The half that an overflow gives, of that sign; the event is known from then on.
using OverflowFunction = std::uint16_t (*)(std::uint16_t sign);
// Exported by a codelet object whose floating-point events the host's flags show: a variable of
// that type. Loading the object sets it.
constexpr const char *overflowSymbol = "poplar_codelet_half_overflow";

} // namespace codelet_abi
