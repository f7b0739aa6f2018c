// SPDX-License-Identifier: Apache-2.0
#include "control_slice.hpp"

namespace poplar {
namespace core {

using codelet_abi::Direction;

ControlSlice::ControlSlice(const GraphImpl &graph, ArrayRef<program::Program> programs)
    : g_(graph), computeSets_(graph.computeSets.size(), 0), vertices_(graph.vertices.size(), 0),
      functions_(graph.functions.size(), 0) {
  for (const program::Program &p : programs)
    collect(p);
  // Backwards, until nothing is added: what writes a needed variable needs all that it reads.
  std::size_t before;
  do {
    before = variables_.size();
    followComputeSets();
    for (const ProgramImpl *copy : copies_)
      if (copy->src.valid() && writes(copy->dst))
        need(copy->src);
  } while (variables_.size() != before);
  for (const ProgramImpl *copy : outside_)
    if (writes(copy->dst))
      throw errors::dry_run_needs_data(
          "dry run: control flow must not depend on data from outside the device, "
          "got copy '" +
          copy->name + "'");
}

bool ControlSlice::writesNeeded(vertex_id vertex) const {
  for (const FieldRecord &f : g_.vertices[vertex].fields)
    if (f.info->direction == Direction::Output || f.info->direction == Direction::InOut)
      for (const Tensor &t : f.edges)
        if (writes(t))
          return true;
  return false;
}

void ControlSlice::followComputeSets() {
  for (unsigned id = 0; id < computeSets_.size(); ++id)
    for (vertex_id v : g_.computeSets[id].vertices)
      if (!vertices_[v] && writesNeeded(v))
        add(id, v);
  for (const ProgramImpl *execute : reporting_) {
    const unsigned id = execute->computeSet.getId();
    if (id < computeSets_.size() &&
        writes(execute->predicate)) // of another graph: compileExecute refuses it
      for (vertex_id v : g_.computeSets[id].vertices)
        add(id, v);
  }
}

void ControlSlice::add(unsigned computeSet, vertex_id vertex) {
  computeSets_[computeSet] = 1;
  if (vertices_[vertex])
    return;
  vertices_[vertex] = 1;
  for (const FieldRecord &f : g_.vertices[vertex].fields)
    for (const Tensor &t : f.edges)
      need(t);
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
  for (const Region &r : t.list->regions) // the list may hold more than the view
    if (variables_.count(r.var))
      return true;
  return false;
}

void ControlSlice::collect(const program::Program &program) {
  const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
  if (!impl)
    return;
  collectStep(*impl);
  for (const program::Program &child : impl->children)
    collect(child);
}

void ControlSlice::collectStep(const ProgramImpl &p) {
  switch (p.kind) {
  case ProgramKind::While:
  case ProgramKind::If:
  case ProgramKind::Switch:
    need(p.predicate);
    return;
  case ProgramKind::Call: {
    const unsigned id = p.function.getId();
    if (id < functions_.size() && !functions_[id]) {
      functions_[id] = 1;
      collect(g_.functions[id]);
    }
    return;
  }
  case ProgramKind::Execute:
    if (p.predicate.valid())
      reporting_.push_back(&p);
    return;
  case ProgramKind::CopyTensor:
  case ProgramKind::CycleStamp: // from the stamp it counts from, if any
    copies_.push_back(&p);
    return;
  case ProgramKind::CopyFromStream:
  case ProgramKind::CopyFromRemote:
    outside_.push_back(&p);
    return;
  case ProgramKind::WriteUndef: // writes, but reads nothing
  case ProgramKind::Sequence:
  case ProgramKind::Repeat: // as often as its constant says
  case ProgramKind::CopyToStream:
  case ProgramKind::CopyToRemote:
  case ProgramKind::Sync:
  case ProgramKind::Print:
  case ProgramKind::Error:
  case ProgramKind::Nothing:
    return;
  }
  throwUnknown("dry run: class of program", p.kind);
}

} // namespace core
} // namespace poplar
