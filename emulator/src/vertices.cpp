// SPDX-License-Identifier: Apache-2.0
// Vertices and the wiring of their fields.
#include <poplar/Graph.hpp>

#include <poplar/HalfFloat.hpp>

#include <cstring>

#include "core.hpp"
#include "regions.hpp"

namespace poplar {

using codelet_abi::Direction;
using codelet_abi::Nesting;
using core::Access;
using core::FieldRecord;
using core::VertexRecord;

namespace core {

VertexRecord &GraphImpl::vertex(const VertexRef &v) {
  if (v.getId() >= vertices.size())
    throw errors::unknown_graph_object("vertex must be one of this graph's " +
                                       std::to_string(vertices.size()) + " vertices, got id " +
                                       std::to_string(v.getId()));
  return vertices[v.getId()];
}

FieldRecord &GraphImpl::field(const FieldRef &f) {
  VertexRecord &v = vertex(Access::vertexOf(f));
  const std::string &name = Access::nameOf(f);
  for (FieldRecord &r : v.fields)
    if (name == r.info->name)
      return r;
  throw errors::unknown_vertex_field(v.type->name, name);
}

std::string GraphImpl::describe(const FieldRef &f) const {
  const VertexRecord &v = vertices[Access::vertexOf(f).getId()];
  std::string s = std::string("field '") + Access::nameOf(f) + "'";
  if (f.isIndexed())
    s += "[" + std::to_string(f.getIndex()) + "]";
  return s + " of vertex " + v.type->name;
}

VertexRef Access::makeVertex(vertex_id id) {
  VertexRef v;
  v.id_ = id;
  return v;
}

VertexIntrospector Access::introspect(const VertexRecord &v) {
  VertexIntrospector i;
  i.vertex_ = &v;
  return i;
}

std::size_t fieldEdgeCount(const FieldRecord &f) { return f.edges.size(); }

std::vector<double> fieldInitialValues(const FieldRecord &f, std::size_t edge) {
  const Type type = typeOf(f.info->element);
  const std::size_t size = typeSize(type);
  std::vector<double> r;
  if (f.info->direction == Direction::State) {
    for (std::size_t i = 0; i < f.initial.size(); i += size)
      r.push_back(valueAsDouble(f.initial.data() + i, type));
    return r;
  }
  if (edge >= f.edges.size() || !f.edges[edge].valid())
    throw errors::index_out_of_range(std::string("getInitialValues: field '") + f.info->name +
                                     "' must be connected");
  const TensorImpl &t = Access::impl(f.edges[edge]);
  forEachPiece(t, [&](VarId var, std::size_t begin, std::size_t n) {
    const Variable &v = t.graph->variables[var];
    if (!v.constant)
      throw errors::index_out_of_range(std::string("getInitialValues: field '") + f.info->name +
                                       "' must be state or connected to constants, got '" + v.name +
                                       "'");
    for (std::size_t i = begin; i < begin + n; ++i)
      r.push_back(valueAsDouble(v.data.data() + i * size, type));
  });
  return r;
}

namespace {

bool isList(const FieldRecord &f) {
  switch (f.info->nesting) {
  case Nesting::VectorOfScalars:
  case Nesting::VectorOfVectors:
  case Nesting::VectorList:
    return true;
  case Nesting::Scalar:
  case Nesting::Vector:
    return false;
  }
  throwUnknown("nesting of a field", f.info->nesting);
}

void setSize(const GraphImpl &g, const FieldRef &ref, FieldRecord &f, std::size_t n,
             const char *op) {
  if (f.sized && f.size != n)
    throw errors::field_size(std::string(op) + ": " + g.describe(ref) + " must keep its size " +
                             std::to_string(f.size) + ", got " + std::to_string(n));
  if (f.edges.size() > n)
    throw errors::field_size(std::string(op) + ": " + g.describe(ref) + " must have room for " +
                             std::to_string(f.edges.size()) + " elements, got " +
                             std::to_string(n));
  f.sized = true;
  f.size = n;
  f.edges.resize(n);
}

// Checks an edge's tensor and stores it.
void setEdge(const GraphImpl &g, const FieldRef &ref, FieldRecord &f, Tensor &slot, const Tensor &t,
             unsigned rank) {
  auto what = [&] { return "connect: " + g.describe(ref); }; // for errors only
  const TensorImpl &i = Access::impl(t);
  if (i.graph != &g)
    throw errors::unknown_graph_object(what() + " must be connected to a tensor of its graph");
  const Type want = typeOf(f.info->element);
  if (i.type != want)
    throw errors::type_mismatch(what() + " must be connected to " + want.toString().str() +
                                ", got " + i.type.toString().str() + " tensor " + tensorName(t));
  if (i.shape.size() != rank)
    throw errors::field_rank(what() + " must be connected to a tensor of rank " +
                             std::to_string(rank) + ", got shape " + shapeString(i.shape) +
                             " of tensor " + tensorName(t));
  if (f.info->direction != Direction::Input) {
    if (t.containsConstant())
      throw errors::bad_output(what() + " writes: the tensor must not be constant, got " +
                               tensorName(t));
    if (t.containsAliases())
      throw errors::bad_output(what() + " writes: the tensor must not repeat elements, got " +
                               t.getDebugStr());
  }
  if (slot.valid())
    throw errors::connected_twice(what() + " must be connected once, got tensor " + tensorName(t) +
                                  " after " + tensorName(slot));
  slot = t;
}

} // namespace
} // namespace core

FieldRef VertexRef::operator[](StringRef fieldName) const {
  FieldRef f;
  f.vertex_ = *this;
  f.name_ = fieldName.str();
  return f;
}

FieldRef FieldRef::operator[](std::size_t index) const {
  FieldRef f = *this;
  if (indexed_)
    throw errors::field_kind("field '" + name_ + "' must be indexed once, got [" +
                             std::to_string(index_) + "][" + std::to_string(index) + "]");
  f.index_ = index;
  f.indexed_ = true;
  return f;
}

ComputeSet Graph::addComputeSet(const DebugContext &dc) {
  impl->computeSets.push_back({dc.getPathName(), {}});
  return ComputeSet(static_cast<unsigned>(impl->computeSets.size() - 1));
}

VertexRef Graph::addVertex(ComputeSet cs, StringRef vertexType) {
  if (cs.getId() >= impl->computeSets.size())
    throw errors::unknown_graph_object("addVertex: compute set must be one of this graph's " +
                                       std::to_string(impl->computeSets.size()) + ", got id " +
                                       std::to_string(cs.getId()));
  const auto it = impl->codelets.find(vertexType.str());
  if (it == impl->codelets.end())
    throw errors::unknown_vertex("addVertex: vertex type must be in an added codelet file, got '" +
                                 vertexType.str() + "' (" + std::to_string(impl->codelets.size()) +
                                 " types are known)");
  const auto id = static_cast<vertex_id>(impl->vertices.size());
  impl->vertices.emplace_back();
  VertexRecord &v = impl->vertices.back();
  v.type = it->second;
  v.computeSet = cs.getId();
  v.fields.resize(v.type->numFields);
  for (unsigned i = 0; i < v.type->numFields; ++i) {
    FieldRecord &f = v.fields[i];
    f.info = &v.type->fields[i];
    if (f.info->direction != Direction::State && !core::isList(f))
      f.edges.resize(1);
  }
  impl->computeSets[cs.getId()].vertices.push_back(id);
  return Access::makeVertex(id);
}

VertexRef Graph::addVertex(ComputeSet cs, StringRef vertexType,
                           ArrayRef<ConnectionDesc> connections) {
  VertexRef v = addVertex(cs, vertexType);
  for (const ConnectionDesc &c : connections) {
    if (c.isArray)
      connect(v[c.field], ArrayRef<Tensor>(c.tensors));
    else if (c.tensors.empty())
      connectConstant(v[c.field], c.value.data(), c.traits);
    else
      connect(v[c.field], c.tensors[0]);
  }
  return v;
}

void Graph::connect(FieldRef ref, const Tensor &tensor) {
  FieldRecord &f = impl->field(ref);
  if (f.info->direction == Direction::State)
    throw errors::field_kind("connect: " + impl->describe(ref) +
                             " must be an Input, Output or InOut, got state");
  const bool list = core::isList(f);
  if (ref.isIndexed()) {
    if (!list)
      throw errors::field_kind("connect: " + impl->describe(ref) +
                               " must not be indexed: it is not a list");
    if (!f.sized && ref.getIndex() >= f.edges.size())
      f.edges.resize(ref.getIndex() + 1); // its size may be set afterwards
    if (f.sized && ref.getIndex() >= f.size)
      throw errors::index_out_of_range("connect: " + impl->describe(ref) +
                                       ": index must be below its size " + std::to_string(f.size) +
                                       ", got " + std::to_string(ref.getIndex()));
    core::setEdge(*impl, ref, f, f.edges[ref.getIndex()], tensor,
                  f.info->nesting == Nesting::VectorOfScalars ? 0 : 1);
    return;
  }
  if (!list) {
    core::setEdge(*impl, ref, f, f.edges[0], tensor, f.info->nesting == Nesting::Vector ? 1 : 0);
    return;
  }
  const unsigned rank = f.info->nesting == Nesting::VectorOfScalars ? 1 : 2;
  if (tensor.rank() != rank)
    throw errors::field_rank("connect: " + impl->describe(ref) +
                             " must be connected to a tensor of rank " + std::to_string(rank) +
                             ", got shape " + tensor.shapeToString());
  core::setSize(*impl, ref, f, tensor.dim(0), "connect");
  for (std::size_t i = 0; i < f.size; ++i)
    core::setEdge(*impl, ref, f, f.edges[i], tensor[i], rank - 1);
}

void Graph::connect(FieldRef ref, ArrayRef<Tensor> tensors) {
  FieldRecord &f = impl->field(ref);
  if (f.info->direction == Direction::State || !core::isList(f) || ref.isIndexed())
    throw errors::field_kind("connect: " + impl->describe(ref) +
                             " must be a list of edges to take " + std::to_string(tensors.size()) +
                             " tensors");
  core::setSize(*impl, ref, f, tensors.size(), "connect");
  for (std::size_t i = 0; i < f.size; ++i)
    core::setEdge(*impl, ref, f, f.edges[i], tensors[i],
                  f.info->nesting == Nesting::VectorOfScalars ? 0 : 1);
}

void Graph::connectConstant(FieldRef ref, const void *value, const TypeTraits &traits) {
  FieldRecord &f = impl->field(ref);
  if (f.info->direction != Direction::Input || f.info->nesting != Nesting::Scalar)
    throw errors::field_kind("connect: " + impl->describe(ref) +
                             " must be a scalar Input to take a value");
  const Tensor t =
      addConstant(core::typeOf(f.info->element), {}, value, traits, true,
                  {impl->computeSets[impl->vertex(Access::vertexOf(ref)).computeSet].name + "/" +
                   f.info->name});
  core::setEdge(*impl, ref, f, f.edges[0], t, 0);
  f.constantEdge = true;
  const unsigned tile = impl->vertex(Access::vertexOf(ref)).tile;
  if (tile != core::noTile)
    impl->variables[Access::impl(t).var].tiles.set(0, 1, tile);
}

void Graph::setFieldInitialValue(FieldRef ref, const void *values, std::size_t n,
                                 const TypeTraits &traits, bool isArray) {
  FieldRecord &f = impl->field(ref);
  const std::string what = "setInitialValue: " + impl->describe(ref);
  if (f.info->direction != Direction::State)
    throw errors::field_kind(what + " must be state, got an edge");
  const bool vector = f.info->nesting == Nesting::Vector;
  const Type type = core::typeOf(f.info->element);
  const std::size_t size = core::typeSize(type);
  if (ref.isIndexed()) {
    if (!vector || !f.sized || ref.getIndex() >= f.size || isArray)
      throw errors::index_out_of_range(
          what + ": must be an element of a state vector of known size " + std::to_string(f.size) +
          ", got index " + std::to_string(ref.getIndex()));
    f.initial.resize(f.size * size);
    core::convertValue(values, traits, type, f.initial.data() + ref.getIndex() * size, what);
    f.initialised = true;
    return;
  }
  if (isArray != vector)
    throw errors::field_kind(
        what + (vector ? " must take an array of values, got one value"
                       : " must take one value, got an array of " + std::to_string(n)));
  if (vector) {
    if (f.sized && f.size != n)
      throw errors::field_size(what + " must keep its size " + std::to_string(f.size) + ", got " +
                               std::to_string(n));
    f.sized = true;
    f.size = n;
  }
  f.initial.resize(n * size);
  for (std::size_t i = 0; i < n; ++i)
    core::convertValue(static_cast<const char *>(values) + i * traits.size, traits, type,
                       f.initial.data() + i * size, what);
  f.initialised = true;
}

void Graph::setInitialValueHalf(FieldRef field, uint16_t val) {
  const float f = half_bits::toFloat(val);
  setFieldInitialValue(field, &f, 1, TypeTraits::make<float>(), false);
}

void Graph::setInitialValueHalf(FieldRef field, ArrayRef<uint16_t> vals) {
  std::vector<float> f(vals.size());
  copyDeviceHalfToFloat(target, vals.data(), f.data(), f.size());
  setFieldInitialValue(field, f.data(), f.size(), TypeTraits::make<float>(), true);
}

void Graph::setFieldSize(FieldRef ref, std::size_t size) {
  FieldRecord &f = impl->field(ref);
  if (f.info->direction == Direction::State) {
    if (f.info->nesting != Nesting::Vector)
      throw errors::field_kind("setFieldSize: " + impl->describe(ref) +
                               " must be a vector, got a scalar");
    if (f.sized && f.size != size)
      throw errors::field_size("setFieldSize: " + impl->describe(ref) + " must keep its size " +
                               std::to_string(f.size) + ", got " + std::to_string(size));
    f.sized = true;
    f.size = size;
    return;
  }
  if (core::isList(f)) {
    core::setSize(*impl, ref, f, size, "setFieldSize");
    return;
  }
  if (f.info->nesting == Nesting::Scalar)
    throw errors::field_kind("setFieldSize: " + impl->describe(ref) +
                             " must be a vector, got a scalar");
  if (f.edges[0].valid() && f.edges[0].numElements() != size)
    throw errors::field_size(
        "setFieldSize: " + impl->describe(ref) + " must have the size of its tensor " +
        std::to_string(f.edges[0].numElements()) + ", got " + std::to_string(size));
  f.sized = true;
  f.size = size;
}

std::size_t Graph::getFieldSize(FieldRef ref) const {
  const FieldRecord &f = impl->field(ref);
  if (ref.isIndexed()) {
    if (ref.getIndex() >= f.edges.size() || !f.edges[ref.getIndex()].valid())
      throw errors::no_size("getFieldSize: " + impl->describe(ref) + " must be connected");
    return f.edges[ref.getIndex()].numElements();
  }
  if (f.info->direction != Direction::State && !core::isList(f) && f.edges[0].valid())
    return f.edges[0].numElements();
  if (!f.sized)
    throw errors::no_size("getFieldSize: " + impl->describe(ref) +
                          " must have its size set or be connected");
  return f.size;
}

static const codelet_abi::Field &findField(const core::GraphImpl &g, StringRef vertexName,
                                           StringRef fieldName) {
  const auto it = g.codelets.find(vertexName.str());
  if (it == g.codelets.end())
    throw errors::unknown_vertex("vertex type must be in an added codelet file, got '" +
                                 vertexName.str() + "'");
  for (unsigned i = 0; i < it->second->numFields; ++i)
    if (fieldName == it->second->fields[i].name)
      return it->second->fields[i];
  throw errors::unknown_vertex_field(vertexName.str(), fieldName.str());
}

std::size_t Graph::getMaxFieldDim(StringRef vertexName, StringRef fieldName, unsigned) const {
  const codelet_abi::Field &f = findField(*impl, vertexName, fieldName);
  return f.layout == codelet_abi::Layout::ShortSpan ? (1u << 11) - 1 : ~0u;
}

double Graph::getMaxVertexFieldValue(StringRef vertexName, StringRef fieldName) const {
  const codelet_abi::Field &f = findField(*impl, vertexName, fieldName);
  switch (core::typeSize(core::typeOf(f.element))) {
  case 1:
    return 255;
  case 2:
    return f.element == codelet_abi::Element::Half ? 65504 : 65535;
  default:
    return 4294967295.0;
  }
}

void Graph::setTileMapping(VertexRef v, unsigned tileNum) {
  VertexRecord &r = impl->vertex(v);
  r.tile = toPhysicalTile(tileNum, "setTileMapping");
  for (FieldRecord &f : r.fields)
    if (f.constantEdge)
      impl->variables[Access::impl(f.edges[0]).var].tiles.set(0, 1, r.tile);
}

void Graph::setPerfEstimate(const VertexRef &v, std::uint64_t cycles, std::uint64_t flops) {
  setPerfEstimate(v, VertexPerfEstimate(cycles, flops));
}

void Graph::setPerfEstimate(const VertexRef &v, const VertexPerfEstimate &estimate) {
  VertexRecord &r = impl->vertex(v);
  r.estimate = estimate;
  r.hasEstimate = true;
}

VertexPerfEstimate Graph::getPerfEstimate(const VertexRef &v) const {
  const VertexRecord &r = impl->vertex(v);
  if (r.hasEstimate)
    return r.estimate;
  const auto it = impl->estimators.find(r.type->name);
  if (it == impl->estimators.end())
    throw errors::no_cycle_estimate(std::string("getPerfEstimate: vertex ") + r.type->name +
                                    " has no estimate");
  return it->second(Access::introspect(r), impl->target);
}

void Graph::registerPerfEstimator(StringRef vertexTypeName, PerfEstimateFunc f) {
  impl->estimators[vertexTypeName.str()] = std::move(f);
}

// ---- what estimators see

unsigned FieldData::rank() const {
  switch (field_->info->nesting) {
  case Nesting::Scalar:
    return 0;
  case Nesting::Vector:
  case Nesting::VectorOfScalars:
    return 1;
  case Nesting::VectorOfVectors:
  case Nesting::VectorList:
    return 2;
  }
  core::throwUnknown("nesting of a field", field_->info->nesting);
}

std::size_t FieldData::size() const {
  if (field_->info->direction == Direction::State || core::isList(*field_))
    return field_->info->nesting == Nesting::Scalar ? 1 : field_->size;
  return field_->edges[0].valid() ? field_->edges[0].numElements() : field_->size;
}

std::size_t FieldData::getSizeAtIndex(std::size_t i) const {
  if (!core::isList(*field_))
    return size();
  if (i >= field_->edges.size() || !field_->edges[i].valid())
    throw errors::index_out_of_range(std::string("getSizeAtIndex: field '") + field_->info->name +
                                     "' must be a list of more than " + std::to_string(i) +
                                     " connected edges");
  return field_->edges[i].numElements();
}

layout::Vector FieldData::getProfilerVectorLayout(std::size_t nestingLevel) const {
  const codelet_abi::Layout l =
      core::isList(*field_) && nestingLevel == 0 ? field_->info->outerLayout : field_->info->layout;
  switch (l) {
  case codelet_abi::Layout::Span:
    return layout::Vector::Span;
  case codelet_abi::Layout::ShortSpan:
    return layout::Vector::ShortSpan;
  case codelet_abi::Layout::ScaledPtr32:
    return layout::Vector::ScaledPtr32;
  case codelet_abi::Layout::ScaledPtr64:
    return layout::Vector::ScaledPtr64;
  case codelet_abi::Layout::ScaledPtr128:
    return layout::Vector::ScaledPtr128;
  case codelet_abi::Layout::OnePtr:
  case codelet_abi::Layout::CompactPtr:
    return layout::Vector::OnePtr;
  }
  core::throwUnknown("layout of a field", l);
}

layout::VectorList FieldData::getProfilerVectorListLayout() const {
  return field_->info->nesting == codelet_abi::Nesting::VectorList
             ? layout::VectorList::DeltaNElements
             : layout::VectorList::NotAVector;
}

std::string FieldData::name() const { return field_->info->name; }

FieldData VertexIntrospector::getFieldInfo(const std::string &name) const {
  for (const FieldRecord &f : vertex_->fields) {
    if (name == f.info->name) {
      FieldData d;
      d.field_ = &f;
      return d;
    }
  }
  throw errors::unknown_vertex_field(vertex_->type->name, name);
}

} // namespace poplar
