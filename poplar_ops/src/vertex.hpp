// SPDX-License-Identifier: Apache-2.0
//
// One call to add a vertex: where, its cost, what it reads and writes, its settings.
#pragma once

#include "sparq/lockstep.hpp"
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace sparq {

// A field of a vertex: "name"_f = a tensor to connect, flat, or an initial value.
struct Field {
  using Value = std::variant<Tensor, unsigned, float, bool>;
  const char *name;
  Value value;

  void set(Graph &graph, const VertexRef &vertex) const {
    if (const auto *const tensor = std::get_if<Tensor>(&value))
      return graph.connect(vertex[name], tensor->rank() > 1 ? tensor->flatten() : *tensor);
    std::visit(
        [&](const auto &number) {
          if constexpr (!std::is_same_v<decltype(number), const Tensor &>)
            graph.setInitialValue(vertex[name], number);
        },
        value);
  }
};
using Fields = std::vector<Field>;

struct FieldName {
  const char *name;
  Field operator=(Field::Value value) const { return {name, std::move(value)}; }
  // A count or the number of a row, of which vertices have 32 bits (checkRows in plan.cpp).
  template <class T, std::enable_if_t<std::is_same_v<T, std::size_t>, int> = 0>
  Field operator=(T value) const {
    return {name, static_cast<unsigned>(value)};
  }
};
constexpr FieldName operator""_f(const char *name, std::size_t) { return {name}; }

// `fields`: each a Field, or Fields.
template <class... Some>
void addVertex(Graph &graph, const ComputeSet &cs, const char *type, unsigned tile,
               std::uint64_t cycles, const Some &...fields) {
  const VertexRef vertex = graph.addVertex(cs, type);
  graph.setTileMapping(vertex, tile);
  const auto set = [&](const auto &some) {
    if constexpr (std::is_same_v<decltype(some), const Field &>)
      some.set(graph, vertex);
    else
      for (const Field &field : some)
        field.set(graph, vertex);
  };
  (set(fields), ...);
  graph.setPerfEstimate(vertex, cycles);
}

} // namespace sparq
