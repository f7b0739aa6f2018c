// SPDX-License-Identifier: Apache-2.0
// A graph written out: for people and for Graphviz.
#include <poplar/Graph.hpp>
#include <poplar/ProfileValue.hpp>

#include "core.hpp"

namespace poplar {

namespace {

const char *directionName(codelet_abi::Direction d) {
  switch (d) {
  case codelet_abi::Direction::Input:
    return "input";
  case codelet_abi::Direction::Output:
    return "output";
  case codelet_abi::Direction::InOut:
    return "inout";
  case codelet_abi::Direction::State:
    return "state";
  }
  core::throwUnknown("direction of a field", d);
}

ProfileValue tileOf(unsigned tile) {
  return tile == core::noTile ? ProfileValue("none") : ProfileValue(tile);
}

ProfileValue describeVertex(const core::GraphImpl &g, const core::VertexRecord &v) {
  ProfileValue::Vector fields;
  for (const core::FieldRecord &f : v.fields) {
    ProfileValue::Map field{{"name", f.info->name},
                            {"direction", directionName(f.info->direction)}};
    ProfileValue::Vector edges;
    for (const Tensor &t : f.edges)
      edges.push_back(t.valid() ? ProfileValue(t.getDebugStr()) : ProfileValue("none"));
    field.insert({"edges", ProfileValue(std::move(edges))});
    fields.push_back(ProfileValue(std::move(field)));
  }
  return ProfileValue::Map{{"type", v.type->name},
                           {"tile", tileOf(v.tile)},
                           {"computeSet", g.computeSets[v.computeSet].name},
                           {"fields", ProfileValue(std::move(fields))}};
}

} // namespace

// The SDK's forms are not known: this is one of the emulator's own, for people.
void Graph::serialize(std::ostream &out, SerializationFormat) const {
  ProfileValue::Vector variables, vertices;
  for (const core::Variable &v : impl->variables)
    variables.push_back(ProfileValue::Map{{"name", v.name},
                                          {"type", v.type.toString()},
                                          {"elements", ProfileValue(v.numElements)},
                                          {"constant", ProfileValue(v.constant)}});
  for (const core::VertexRecord &v : impl->vertices)
    vertices.push_back(describeVertex(*impl, v));
  serializeToJSON(out,
                  ProfileValue::Map{{"writtenBy", "emulator"},
                                    {"tiles", ProfileValue(target.getNumTiles())},
                                    {"variables", ProfileValue(std::move(variables))},
                                    {"vertices", ProfileValue(std::move(vertices))}},
                  true);
}

void Graph::serialize(std::ostream &out, ArrayRef<program::Program>,
                      SerializationFormat format) const {
  serialize(out, format);
}

void Graph::outputVertexGraph(std::ostream &out, ArrayRef<program::Program>) const {
  out << "digraph vertices {\n";
  for (std::size_t i = 0; i < impl->vertices.size(); ++i) {
    const core::VertexRecord &v = impl->vertices[i];
    out << "  v" << i << " [shape=box, label=\"" << v.type->name << "\\ntile "
        << (v.tile == core::noTile ? std::string("none") : std::to_string(v.tile)) << "\\n"
        << impl->computeSets[v.computeSet].name << "\"];\n";
    for (const core::FieldRecord &f : v.fields)
      for (const Tensor &t : f.edges) {
        if (!t.valid())
          continue;
        std::set<unsigned> variables;
        for (const VariableInterval &r : t.getVarRegions())
          variables.insert(r.var.id());
        for (const unsigned x : variables) {
          const std::string variable = "x" + std::to_string(x), vertex = "v" + std::to_string(i);
          const bool writes = f.info->direction != codelet_abi::Direction::Input;
          out << "  " << (writes ? vertex : variable) << " -> " << (writes ? variable : vertex)
              << " [label=\"" << f.info->name << "\""
              << (f.info->direction == codelet_abi::Direction::InOut ? ", dir=both" : "") << "];\n";
        }
      }
  }
  for (std::size_t i = 0; i < impl->variables.size(); ++i)
    out << "  x" << i << " [label=\"" << impl->variables[i].name << "\"];\n";
  out << "}\n";
}

void Graph::outputComputeGraph(std::ostream &out, ArrayRef<program::Program>) const {
  out << "digraph computeSets {\n";
  for (std::size_t i = 0; i < impl->computeSets.size(); ++i)
    out << "  c" << i << " [shape=box, label=\"" << impl->computeSets[i].name << "\\n"
        << impl->computeSets[i].vertices.size() << " vertices\"];\n";
  out << "}\n";
}

} // namespace poplar
