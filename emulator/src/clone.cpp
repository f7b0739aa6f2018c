// SPDX-License-Identifier: Apache-2.0
// New variables in the image of a view: its shape, its tiles, and the order of its elements in
// memory.
#include <algorithm>

#include <poplar/Graph.hpp>

#include "core.hpp"
#include "regions.hpp"

namespace poplar {

using core::Access;
using core::GraphImpl;
using core::TensorImpl;
using core::VarId;

namespace {

// Elements of the view, each once, and where they are in the clone.
struct Part {
  VarId var;
  std::size_t begin;
  std::size_t end;
  unsigned tile;
  std::size_t to;
};

bool byAddress(const Part &a, const Part &b) {
  return a.var != b.var ? a.var < b.var : a.begin < b.begin;
}

// The view's elements by address, each once, split where the tile changes.
std::vector<Part> elementsOf(const GraphImpl &g, const TensorImpl &t) {
  std::vector<Part> all;
  core::forEachRegion(t, [&](VarId var, std::size_t begin, std::size_t length) {
    all.push_back({var, begin, begin + length, core::noTile, 0});
  });
  std::sort(all.begin(), all.end(), byAddress);
  std::vector<Part> merged;
  for (const Part &p : all) {
    if (!merged.empty() && merged.back().var == p.var && merged.back().end >= p.begin)
      merged.back().end = std::max(merged.back().end, p.end);
    else
      merged.push_back(p);
  }
  std::vector<Part> parts;
  for (const Part &p : merged)
    g.variables[p.var].tiles.forEach(p.begin, p.end,
                                     [&](std::size_t begin, std::size_t end, unsigned tile) {
                                       parts.push_back({p.var, begin, end, tile, 0});
                                     });
  return parts;
}

// Places for the parts, one after another: all by address, or a tile's after those of the tile
// before.
std::size_t place(std::vector<Part> &parts, bool byTile) {
  std::vector<std::size_t> order(parts.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  if (byTile)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return parts[a].tile < parts[b].tile; });
  std::size_t n = 0;
  for (std::size_t i : order) {
    parts[i].to = n;
    n += parts[i].end - parts[i].begin;
  }
  return n;
}

// The view, of the clone's variable in place of those that it is of. `add` appends what was placed
// at an element, and so many after it.
template <class Add>
Tensor viewOf(const TensorImpl &like, const TensorImpl &t, VarId clone,
              const std::vector<Part> &parts, Add add) {
  core::RegionList list;
  std::size_t n = 0;
  auto append = [&](std::size_t begin, std::size_t length) {
    core::Region *last = list.regions.empty() ? nullptr : &list.regions.back();
    if (last && last->begin + last->length == begin) {
      last->length += length;
    } else {
      list.starts.push_back(n);
      list.regions.push_back({clone, static_cast<std::int64_t>(begin), length, 1});
    }
    n += length;
  };
  core::forEachRegion(t, [&](VarId var, std::size_t begin, std::size_t length) {
    auto p = std::upper_bound(parts.begin(), parts.end(), Part{var, begin, 0, 0, 0}, byAddress) - 1;
    for (const std::size_t end = begin + length; begin < end; ++p) {
      const std::size_t stop = std::min(end, p->end);
      add(p->to + begin - p->begin, stop - begin, append);
      begin = stop;
    }
  });
  return core::fromList(like, std::move(list), t.shape);
}

// Whether the parts are one run of one variable, in the clone as in the original.
bool inOneRun(const std::vector<Part> &parts) {
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (parts[i].var != parts[0].var || parts[i].begin != parts[i - 1].end ||
        parts[i].to - parts[i - 1].to != parts[i].begin - parts[i - 1].begin)
      return false;
  return !parts.empty();
}

std::string cloneName(const GraphImpl &g, const Tensor &t, const DebugContext &dc) {
  const std::string name = dc.getPathName();
  const std::vector<core::Piece> regions =
      name.empty() ? core::regionsOf(t) : std::vector<core::Piece>{};
  return name.empty() ? g.variables[regions.empty() ? 0 : regions[0].var].name + "_clone" : name;
}

bool asNewOrder(const Tensor &t, TensorCloneMethod method) {
  return method == TensorCloneMethod::CREATE_NEW_ORDER || t.numElements() == 0 ||
         (method == TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES && t.containsAliases());
}

// So many clones in one variable, which keep the order and the aliases: of each run of elements on
// one tile, one clone's follow those of the one before.
std::vector<Tensor> inOrder(Graph &graph, GraphImpl &g, const Type &type, const Tensor &t,
                            const std::string &name, TensorCloneMethod method, std::size_t copies) {
  const TensorImpl &i = Access::impl(t);
  std::vector<Part> parts = elementsOf(g, i);
  const std::size_t n =
      place(parts, method == TensorCloneMethod::GATHER_AND_PRESERVE_TILE_ORDER_AND_ALIASES);
  const Tensor whole = graph.addVariable(type, {n * copies}, {name});
  const TensorImpl &like = Access::impl(whole);
  core::TileMap one;
  for (const Part &p : parts)
    one.set(p.to, p.to + p.end - p.begin, p.tile);
  one.forEach(0, n, [&](std::size_t begin, std::size_t end, unsigned tile) {
    if (tile != core::noTile)
      g.variables[like.var].tiles.set(copies * begin, copies * end, tile);
  });
  std::vector<Tensor> r;
  if (copies == 1 && !i.list && inOneRun(parts)) {
    TensorImpl view = like;
    view.shape = i.shape;
    view.strides = i.strides;
    view.offset = i.offset - static_cast<std::int64_t>(parts[0].begin);
    r.push_back(Access::makeTensor(std::move(view)));
    return r;
  }
  for (std::size_t k = 0; k < copies; ++k)
    r.push_back(
        viewOf(like, i, like.var, parts, [&](std::size_t begin, std::size_t length, auto &append) {
          const auto run = std::prev(one.parts().upper_bound(begin));
          append(copies * run->first + k * (run->second.end - run->first) + (begin - run->first),
                 length);
        }));
  return r;
}

} // namespace

Tensor Graph::clone(const Tensor &t, const DebugContext &dc, TensorCloneMethod method) {
  return clone(t.elementType(), t, dc, method);
}

Tensor Graph::clone(const Type &type, const Tensor &t, const DebugContext &dc,
                    TensorCloneMethod method) {
  const TensorImpl &i = Access::impl(t);
  const std::string name = cloneName(*impl, t, dc);
  if (asNewOrder(t, method)) {
    // Elements of the clone are in the order of the view, each on the tile of the element it
    // copies.
    Tensor r = addVariable(type, i.shape, {name});
    core::Variable &v = impl->variables[Access::impl(r).var];
    std::size_t at = 0;
    core::forEachRegion(i, [&](VarId var, std::size_t begin, std::size_t length) {
      impl->variables[var].tiles.forEach(begin, begin + length,
                                         [&](std::size_t b, std::size_t e, unsigned tile) {
                                           if (tile != core::noTile)
                                             v.tiles.set(at + b - begin, at + e - begin, tile);
                                         });
      at += length;
    });
    return r;
  }
  return inOrder(*this, *impl, type, t, name, method, 1)[0];
}

Tensor Graph::cloneN(const Tensor &t, std::size_t N, const DebugContext &dc,
                     TensorCloneMethod method, TensorCloneDuplicationMethod duplicationMethod) {
  return cloneN(t.elementType(), t, N, dc, method, duplicationMethod);
}

Tensor Graph::cloneN(const Type &type, const Tensor &t, std::size_t N, const DebugContext &dc,
                     TensorCloneMethod method, TensorCloneDuplicationMethod duplicationMethod) {
  std::vector<Tensor> r;
  if (duplicationMethod == TensorCloneDuplicationMethod::DUPLICATE_BY_TILE_CONTIGUOUS_REGION &&
      N > 1 && !asNewOrder(t, method)) {
    for (const Tensor &x : inOrder(*this, *impl, type, t, cloneName(*impl, t, dc), method, N))
      r.push_back(x.expand({0}));
    return concat(r, 0);
  }
  for (std::size_t i = 0; i < N; ++i)
    r.push_back(clone(type, t, dc, method).expand({0}));
  return concat(r, 0);
}

} // namespace poplar
