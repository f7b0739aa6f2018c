// SPDX-License-Identifier: Apache-2.0
#include "control_slice.hpp"

namespace poplar {
namespace core {

using codelet_abi::Direction;

ControlSlice::ControlSlice(const GraphImpl &graph, ArrayRef<program::Program> programs)
    : g_(graph), computeSets_(graph.computeSets.size(), 0), functions_(graph.functions.size(), 0) {
  for (const program::Program &p : programs)
    collect(p);
  // Backwards, until nothing is added: what writes a needed variable needs all that it reads.
  std::size_t before;
  do {
    before = variables_.size();
    for (std::size_t id = 0; id < computeSets_.size(); ++id) {
      if (computeSets_[id])
        continue;
      const std::vector<vertex_id> &vertices = g_.computeSets[id].vertices;
      bool writer = false;
      for (std::size_t i = 0; !writer && i < vertices.size(); ++i)
        for (const FieldRecord &f : g_.vertices[vertices[i]].fields)
          if (f.info->direction == Direction::Output || f.info->direction == Direction::InOut)
            for (const Tensor &t : f.edges)
              writer = writer || writes(t);
      if (!writer)
        continue;
      computeSets_[id] = 1;
      for (vertex_id v : vertices)
        for (const FieldRecord &f : g_.vertices[v].fields)
          for (const Tensor &t : f.edges)
            need(t);
    }
    for (const ProgramImpl *copy : copies_)
      if (writes(copy->dst))
        need(copy->src);
  } while (variables_.size() != before);
  for (const ProgramImpl *copy : outside_)
    if (writes(copy->dst))
      throw runtime_error("dry run: control flow must not depend on data from outside the device, "
                          "got copy '" +
                          copy->name + "'");
}

void ControlSlice::need(const Tensor &t) {
  forEachRegion(Access::impl(t), [&](VarId v, std::size_t, std::size_t) { variables_.insert(v); });
}

bool ControlSlice::writes(const Tensor &destination) const {
  if (variables_.empty())
    return false;
  const TensorImpl &t = Access::impl(destination);
  if (!t.list)
    return variables_.count(t.var) != 0;
  for (const Region &r : t.list->regions) // of the view's base: may be more than the view has
    if (variables_.count(r.var))
      return true;
  return false;
}

void ControlSlice::collect(const program::Program &program) {
  const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
  if (!impl)
    return;
  switch (impl->kind) {
  case ProgramKind::While:
  case ProgramKind::If:
  case ProgramKind::Switch:
    need(impl->predicate);
    break;
  case ProgramKind::CopyTensor:
    copies_.push_back(impl.get());
    break;
  case ProgramKind::CopyFromStream:
  case ProgramKind::CopyFromRemote:
    outside_.push_back(impl.get());
    break;
  case ProgramKind::Call: {
    const unsigned id = impl->function.getId();
    if (id < functions_.size() && !functions_[id]) {
      functions_[id] = 1;
      collect(g_.functions[id]);
    }
    break;
  }
  default:
    break;
  }
  for (const program::Program &child : impl->children)
    collect(child);
}

} // namespace core
} // namespace poplar
