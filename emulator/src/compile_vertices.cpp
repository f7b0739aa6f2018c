// SPDX-License-Identifier: Apache-2.0
// Compute sets: checks, where each edge points, and the state of each vertex.
#include <algorithm>
#include <cstring>

#include "compiler.hpp"

namespace poplar {
namespace core {

using codelet_abi::Direction;
using codelet_abi::Layout;
using codelet_abi::Nesting;
using codelet_abi::VertexKind;

namespace {

std::string vertexName(const VertexRecord &v, const ComputeSetRecord &cs) {
  std::string s = std::string("vertex ") + v.type->name;
  if (v.tile != noTile)
    s += " on tile " + std::to_string(v.tile);
  return s + (cs.name.empty() ? "" : " of compute set '" + cs.name + "'");
}

bool isVectorOfElements(const FieldRecord &f) {
  switch (f.info->nesting) {
  case Nesting::Vector:
  case Nesting::VectorOfVectors:
  case Nesting::VectorList:
    return true;
  case Nesting::Scalar:
  case Nesting::VectorOfScalars:
    return false;
  }
  throwUnknown("nesting of a field", f.info->nesting);
}

bool isListOfEdges(const FieldRecord &f) {
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

// What a field's declaration grants of the addresses of its vectors: all that a vertex may rely on.
std::uint64_t grantedAlignment(const FieldRecord &f) {
  const std::uint64_t element = typeSize(typeOf(f.info->element));
  auto ofPointer = [](Layout l) -> std::uint64_t {
    switch (l) {
    case Layout::ScaledPtr32:
      return 4;
    case Layout::ScaledPtr64:
      return 8;
    case Layout::ScaledPtr128:
      return 16;
    case Layout::Span:
    case Layout::ShortSpan:
    case Layout::OnePtr:
    case Layout::CompactPtr:
      return 1;
    }
    throwUnknown("alignment: layout of a field", l);
  };
  if (!isVectorOfElements(f))
    return element;
  return std::max({element, std::uint64_t(f.info->minAlign), ofPointer(f.info->layout)});
}

// How often compute() is called: compute(0) .. compute(5) of a MultiVertex.
unsigned callsOf(VertexKind kind) {
  switch (kind) {
  case VertexKind::MultiVertex:
    return 6;
  case VertexKind::Vertex:
  case VertexKind::SupervisorVertex:
    return 1;
  }
  throwUnknown("kind of vertex", kind);
}

} // namespace

void Compiler::checkVertex(const VertexRecord &v, const ComputeSetRecord &cs) const {
  if (v.tile == noTile)
    throw errors::unmapped(vertexName(v, cs) + " must be mapped to a tile, got none");
  for (const FieldRecord &f : v.fields) {
    std::size_t i = 0;
    // Made only for errors: there are many edges.
    auto what = [&] {
      return vertexName(v, cs) + ": field '" + f.info->name + "'" +
             (f.edges.size() > 1 ? "[" + std::to_string(i) + "]" : "");
    };
    if (f.info->direction == Direction::State) {
      if (!f.initialised)
        throw errors::no_initial_value(what() + " must have an initial value, got none");
      continue;
    }
    if (f.edges.empty() && !f.sized)
      throw errors::not_connected(what() + " must be connected or have its size set, got neither");
    if (isListOfEdges(f) && !f.sized)
      throw errors::no_size(what() + " must have its size set, got elements alone");
    for (; i < f.edges.size(); ++i) {
      const Tensor &edge = f.edges[i];
      if (!edge.valid())
        throw errors::not_connected(what() + " must be connected, got nothing");
      if (f.info->nesting == Nesting::Vector && f.sized && edge.numElements() != f.size)
        throw errors::field_size(what() + " must have its field size " + std::to_string(f.size) +
                                 ", got a tensor of " + std::to_string(edge.numElements()));
      if (isVectorOfElements(f) && f.info->layout == Layout::ShortSpan &&
          edge.numElements() >= 2048)
        throw errors::field_size(what() + " must have at most 2047 elements (SHORT_SPAN), got " +
                                 std::to_string(edge.numElements()));
      VarId var = 0;
      std::size_t element = 0;
      if (findUnmapped(edge, var, element))
        throwUnmapped(what(), var, element);
    }
  }
}

// No element may be written twice in a compute set, nor written by one vertex and read by another,
// nor be an Output and an Input of one vertex: what an Output holds before the vertex runs is
// undefined.
ComputeSetUse Compiler::checkConflicts(const ComputeSetRecord &cs) {
  struct Use : Extent {
    vertex_id vertex;
    const FieldRecord *field;
  };
  std::vector<Use> writes, reads;
  ComputeSetUse use;
  // Vertices of one type are often connected to the same elements, or to neighbours: by type and
  // field, which extent was added last.
  std::map<const codelet_abi::Vertex *, std::vector<std::size_t>> lastExtents;
  for (vertex_id id : cs.vertices) {
    const VertexRecord &vertex = g_.vertices[id];
    std::vector<std::size_t> &last = lastExtents[vertex.type];
    last.resize(vertex.fields.size(), ~std::size_t(0));
    for (std::size_t i = 0; i < vertex.fields.size(); ++i) {
      const FieldRecord &f = vertex.fields[i];
      const Direction direction = f.info->direction;
      if (direction == Direction::State)
        continue;
      std::vector<Use> &to = direction == Direction::Input ? reads : writes;
      std::vector<Extent> &extents = direction == Direction::Output ? use.writes : use.reads;
      for (const Tensor &t : f.edges)
        forEachRegion(Access::impl(t), [&](VarId v, std::size_t b, std::size_t n) {
          to.push_back({{v, b, b + n}, id, &f});
          if (last[i] < extents.size() && extend(extents[last[i]], to.back()))
            return;
          last[i] = extents.size();
          extents.push_back(to.back());
        });
    }
  }
  auto place = [&](const Use &a, std::size_t element) {
    const VertexRecord &v = g_.vertices[a.vertex];
    return std::string("field '") + a.field->info->name + "' of vertex " + v.type->name +
           " on tile " + std::to_string(v.tile) + " (element " + std::to_string(element) + " of '" +
           g_.variables[a.var].name + "')";
  };
  auto before = [](const Use &a, const Use &b) {
    return a.var != b.var ? a.var < b.var : a.begin < b.begin;
  };
  std::sort(writes.begin(), writes.end(), before);
  const std::string set = "compute set '" + cs.name + "': ";
  for (std::size_t i = 1; i < writes.size(); ++i) {
    const Use &a = writes[i - 1], &b = writes[i];
    if (a.var == b.var && b.begin < a.end)
      throw errors::overlapping_writes(set + "an element must be written once, got " +
                                       place(a, b.begin) + " and " + place(b, b.begin));
  }
  for (const Use &r : reads) {
    auto w = std::upper_bound(writes.begin(), writes.end(), r, before);
    if (w != writes.begin() && std::prev(w)->var == r.var && std::prev(w)->end > r.begin)
      --w;
    for (; w != writes.end() && w->var == r.var && w->begin < r.end; ++w)
      if (w->end > r.begin && w->vertex != r.vertex)
        throw errors::read_beside_write(
            set + "an element that one vertex writes must not be read by another, got " +
            place(*w, std::max(w->begin, r.begin)) + " and " +
            place(r, std::max(w->begin, r.begin)));
      else if (w->end > r.begin && w->field->info->direction == Direction::Output)
        inPlace_.insert(&g_.vertices[r.vertex]);
  }
  merge(use.reads);
  merge(use.writes);
  return use;
}

void Compiler::writePointer(std::uint64_t at, Address target) {
  exe_->relocations.push_back({at, target});
}

void Compiler::writeCount(std::uint64_t at, std::size_t count) {
  const auto n = static_cast<std::uint32_t>(count);
  std::memcpy(exe_->stateImage.data() + at, &n, 4);
}

// A buffer of an edge, with room for guards beside it. To be aligned to `align` and no better, it
// starts `align` behind a place that is aligned to twice as much.
Address Compiler::allocateEdge(std::uint64_t bytes, std::uint64_t align) {
  const std::uint64_t guard = guardEdges_ ? guardBytes : 0, past = checkAlignment_ ? align : 0,
                      block = std::max<std::uint64_t>({align + past, guard, 8}),
                      before = (guard + block - 1) / block * block;
  return allocate(before + past + bytes + guard, block) + before + past;
}

// An edge points straight into its variable when its elements are contiguous there and aligned as
// the field asks. Otherwise it points at a buffer, filled before the vertex runs and emptied after:
// Poplar, too, lays variables out or copies so that a vertex sees aligned contiguous elements.
// With SPARQ_EMULATOR_GUARD=1 every edge has a buffer, between guards that no vertex may touch.
// With SPARQ_EMULATOR_CHECK_ALIGNMENT=1 every edge has a buffer that is aligned no better than the
// field's declaration grants.
Compiler::EdgePlace Compiler::placeEdge(const VertexRecord &v, const FieldRecord &f,
                                        const Tensor &t, ComputeSetPlan &plan) {
  const TensorImpl &impl = Access::impl(t);
  const std::size_t size = typeSize(impl.type);
  const std::size_t count = t.numElements();
  const std::uint64_t align = grantedAlignment(f);
  const bool buffered = guardEdges_ || checkAlignment_;
  unsigned pieces = 0;
  VarId var = 0;
  std::size_t begin = 0;
  std::size_t onTile = 0;
  std::vector<std::size_t> ownPieces;
  forEachRegion(impl, [&](VarId x, std::size_t b, std::size_t n) {
    if (pieces++ == 0) {
      var = x;
      begin = b;
    }
    g_.variables[x].tiles.forEach(b, b + n, [&](std::size_t from, std::size_t to, unsigned tile) {
      if (tile != v.tile)
        return;
      onTile += to - from;
      ownPieces.push_back(to - from);
    });
  });
  if (pieces == 0 && !buffered)
    return {0, 0, false};
  if (exe_->reportsReads)
    plan.edges.push_back({v.type->name, f.info->name, f.info->direction, packRuns(t)});
  const bool straight = pieces == 0 || (pieces == 1 && addressOf(var, begin) % align == 0);
  // Elements of other tiles are counted where they land. Elements of this tile need memory only
  // when they are rearranged. A device never rearranges a single piece: its allocator aligns it.
  if (pieces > 1)
    temporaries_[v.tile] += onTile * size;
  if (pieces > 1 && onTile) {
    code_.addPieces(v.tile, pieces);
    const unsigned ways = f.info->direction == Direction::InOut ? 2 : 1;
    for (const std::size_t n : ownPieces)
      for (unsigned i = 0; i != ways; ++i)
        addLocal(v.tile, n, n * size);
  }
  const std::uint64_t bytes = count * size;
  const bool output = f.info->direction == Direction::Output;
  const bool poisoned = output && !exe_->zeros && inPlace_.count(&v) == 0;
  if (straight && !buffered) {
    if (poisoned)
      plan.poisons.push_back({addressOf(var, begin), bytes, impl.type});
    return {addressOf(var, begin), count, false};
  }
  const Address at = allocateEdge(bytes, align);
  if (guardEdges_) {
    plan.guards.push_back({at - guardBytes, guardBytes, f.info->name});
    plan.guards.push_back({at + bytes, guardBytes, f.info->name});
  }
  const std::vector<Run> runs = packRuns(t);
  const auto gathers = static_cast<unsigned>(plan.gathers.size());
  if (poisoned)
    plan.poisons.push_back({at, bytes, impl.type});
  else
    for (const Run &r : runs)
      plan.gathers.push_back({at + r.src, r.dst, r.bytes, r.count, r.srcStep, r.dstStep});
  if (guardEdges_ && f.info->direction == Direction::Input && !runs.empty())
    plan.guards.push_back(
        {at, bytes, f.info->name, gathers, static_cast<unsigned>(plan.gathers.size())});
  if (f.info->direction != Direction::Input)
    for (const Run &r : runs)
      plan.scatters.push_back({r.dst, at + r.src, r.bytes, r.count, r.dstStep, r.srcStep});
  return {at, count, true};
}

Compiler::EdgePlace Compiler::placeEdge(const VertexRecord &v, const FieldRecord &f,
                                        std::size_t element, ComputeSetPlan &plan) {
  const EdgePlace place = placeEdge(v, f, f.edges[element], plan);
  if (f.info->direction != Direction::Input) {
    const std::string index = isListOfEdges(f) ? "[" + std::to_string(element) + "]" : "";
    addWritten(v, f, std::string("field '") + f.info->name + "'" + index, place.at,
               place.count * typeSize(typeOf(f.info->element)), plan);
  }
  return place;
}

void Compiler::addWritten(const VertexRecord &v, const FieldRecord &f, const std::string &name,
                          Address at, std::uint64_t bytes, ComputeSetPlan &plan) const {
  if (checkWorkers_ && bytes && callsOf(v.type->kind) > 1)
    plan.written.push_back({at, bytes, typeOf(f.info->element), f.info->direction, name});
}

void Compiler::compileComputeSet(unsigned id) {
  const ComputeSetRecord &cs = g_.computeSets[id];
  for (vertex_id v : cs.vertices)
    checkVertex(g_.vertices[v], cs);
  computeSetUses_.push_back(checkConflicts(cs));
  std::fill(temporaries_.begin(), temporaries_.end(), 0);
  ComputeSetPlan plan;
  plan.name = cs.name;
  std::vector<vertex_id> order = cs.vertices;
  std::stable_sort(order.begin(), order.end(), [&](vertex_id a, vertex_id b) {
    return g_.vertices[a].tile < g_.vertices[b].tile;
  });
  std::vector<std::uint8_t> &image = exe_->stateImage;
  auto reserve = [&](std::size_t bytes, std::size_t align) {
    const std::size_t at = (image.size() + align - 1) / align * align;
    image.resize(at + bytes, 0);
    return at;
  };
  // What is done around a vertex, up to here.
  auto finish = [&plan](VertexPlan &p) {
    p.gathersEnd = static_cast<unsigned>(plan.gathers.size());
    p.scattersEnd = static_cast<unsigned>(plan.scatters.size());
    p.poisonsEnd = static_cast<unsigned>(plan.poisons.size());
    p.guardsEnd = static_cast<unsigned>(plan.guards.size());
    p.writtenEnd = static_cast<unsigned>(plan.written.size());
  };
  for (vertex_id vid : order) {
    const VertexRecord &v = g_.vertices[vid];
    VertexPlan p{}, before{};
    finish(before);
    const std::size_t state = reserve(v.type->size, std::max<std::size_t>(16, v.type->align));
    p.run = v.type->run;
    p.state = state;
    p.calls = callsOf(v.type->kind);
    for (const FieldRecord &f : v.fields) {
      const std::size_t at = state + f.info->offset;
      const std::size_t size = typeSize(typeOf(f.info->element));
      if (f.info->direction == Direction::State) {
        const std::string name = std::string("state '") + f.info->name + "'";
        if (f.info->nesting == Nesting::Scalar) {
          std::memcpy(image.data() + at, f.initial.data(), size);
          addWritten(v, f, name, at, size, plan);
        } else {
          const std::size_t granted = grantedAlignment(f), past = checkAlignment_ ? granted : 0;
          const std::size_t data =
              reserve(past + f.initial.size(), std::max<std::size_t>(16, 2 * granted)) + past;
          if (!f.initial.empty())
            std::memcpy(image.data() + data, f.initial.data(), f.initial.size());
          writePointer(at, data | relocationInState);
          writeCount(at + 8, f.size);
          addWritten(v, f, name, data, f.initial.size(), plan);
        }
        continue;
      }
      if (f.info->nesting == Nesting::Scalar || f.info->nesting == Nesting::Vector) {
        const EdgePlace e = placeEdge(v, f, 0, plan);
        writePointer(at, e.at);
        if (f.info->nesting == Nesting::Vector)
          writeCount(at + 8, e.count);
        continue;
      }
      const bool scalars = f.info->nesting == Nesting::VectorOfScalars;
      const std::size_t stride = scalars ? 8 : 16;
      const std::size_t data = reserve(f.edges.size() * stride, 16);
      writePointer(at, data | relocationInState);
      writeCount(at + 8, f.edges.size());
      for (std::size_t i = 0; i < f.edges.size(); ++i) {
        const EdgePlace e = placeEdge(v, f, i, plan);
        writePointer(data + i * stride, e.at);
        if (!scalars)
          writeCount(data + i * stride + 8, e.count);
      }
    }
    if (slice_ && !slice_->runs(vid)) { // it counts, but a dry run leaves it out
      plan.gathers.resize(before.gathersEnd);
      plan.scatters.resize(before.scattersEnd);
      plan.poisons.resize(before.poisonsEnd);
      plan.guards.resize(before.guardsEnd);
      plan.written.resize(before.writtenEnd);
      continue;
    }
    finish(p);
    p.name = v.type->name;
    plan.asksWorker |= g_.askWorker.count(v.type) != 0;
    p.tile = v.tile;
    p.showsEvents = g_.hideEvents.count(v.type) == 0;
    plan.vertices.push_back(p);
  }
  StepCount cost;
  cost.kind = sparq::emulator::StepKind::Compute;
  cost.name = cs.name;
  addComputeCost(cs, cost);
  computeSetCosts_[id] = std::move(cost);
  computeSetPlans_[id] = static_cast<unsigned>(exe_->computeSets.size());
  exe_->computeSets.push_back(std::move(plan));
}

} // namespace core
} // namespace poplar
