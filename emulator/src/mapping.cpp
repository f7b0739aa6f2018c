// SPDX-License-Identifier: Apache-2.0
// Which tile each element lives on.
#include <poplar/Graph.hpp>

#include <algorithm>

#include "core.hpp"
#include "regions.hpp"

namespace poplar {

using core::Access;
using core::VarId;

namespace core {

void TileMap::set(std::size_t begin, std::size_t end, unsigned tile) {
  if (begin >= end)
    return;
  // Appending in order is the common case: no search.
  auto it = parts_.empty() || parts_.rbegin()->second.end <= begin ? parts_.end()
                                                                   : parts_.upper_bound(begin);
  if (it != parts_.begin()) {
    auto prev = std::prev(it);
    if (prev->second.end > begin) {
      const Part old = prev->second;
      if (prev->first == begin)
        it = parts_.erase(prev);
      else
        prev->second.end = begin;
      if (old.end > end)
        it = parts_.emplace(end, old).first;
    }
  }
  while (it != parts_.end() && it->first < end) {
    if (it->second.end > end) {
      const Part rest = it->second;
      parts_.erase(it);
      it = parts_.emplace(end, rest).first;
      break;
    }
    it = parts_.erase(it);
  }
  if (it != parts_.end() && it->first == end && it->second.tile == tile) {
    end = it->second.end;
    it = parts_.erase(it);
  }
  if (it != parts_.begin()) {
    auto prev = std::prev(it);
    if (prev->second.end == begin && prev->second.tile == tile) {
      prev->second.end = end;
      return;
    }
  }
  parts_.emplace_hint(it, begin, Part{end, tile});
}

bool findUnmapped(const Tensor &t, VarId &var, std::size_t &element) {
  const TensorImpl &i = Access::impl(t);
  bool found = false;
  forEachRegion(i, [&](VarId v, std::size_t begin, std::size_t length) {
    if (found)
      return;
    i.graph->variables[v].tiles.forEach(begin, begin + length,
                                        [&](std::size_t b, std::size_t, unsigned tile) {
                                          if (tile == noTile && !found) {
                                            found = true;
                                            var = v;
                                            element = b;
                                          }
                                        });
  });
  return found;
}

} // namespace core

unsigned Graph::toPhysicalTile(unsigned tile, const char *what) const {
  const unsigned n = tiles.empty() ? target.getNumTiles() : static_cast<unsigned>(tiles.size());
  if (tile >= n)
    throw errors::bad_mapping(std::string(what) + ": tile must be below " + std::to_string(n) +
                              ", got " + std::to_string(tile));
  return tiles.empty() ? tile : tiles[tile];
}

unsigned Graph::convertTileToTopLevelGraphTile(unsigned tile) const {
  return toPhysicalTile(tile, "convertTileToTopLevelGraphTile");
}
unsigned Graph::convertVirtualTileToPhysicalTile(unsigned tile) const {
  return toPhysicalTile(tile, "convertVirtualTileToPhysicalTile");
}

void Graph::setTileMapping(const Tensor &t, unsigned tileNum) {
  const unsigned tile = toPhysicalTile(tileNum, "setTileMapping");
  core::forEachRegion(Access::impl(t), [&](VarId var, std::size_t begin, std::size_t length) {
    impl->variables[var].tiles.set(begin, begin + length, tile);
  });
}

void Graph::setTileMapping(const Tensor &t, const TileToTensorMapping &mapping) {
  const Tensor flat = t.flatten();
  for (std::size_t tile = 0; tile < mapping.size(); ++tile) {
    for (const Interval &i : mapping[tile]) {
      if (i.end() > flat.numElements())
        throw errors::bad_mapping("setTileMapping: intervals must end by the tensor's " +
                                  std::to_string(flat.numElements()) + " elements, got [" +
                                  std::to_string(i.begin()) + ", " + std::to_string(i.end()) + ")");
      setTileMapping(flat.slice(i), static_cast<unsigned>(tile));
    }
  }
}

Graph::TileToTensorMapping Graph::getTileMapping(const Tensor &t, bool *isComplete, bool) const {
  std::vector<unsigned> local; // physical to virtual
  if (!tiles.empty()) {
    local.assign(impl->target.getNumTiles(), core::noTile);
    for (std::size_t i = 0; i < tiles.size(); ++i)
      local[tiles[i]] = static_cast<unsigned>(i);
  }
  TileToTensorMapping r(tiles.empty() ? target.getNumTiles() : tiles.size());
  if (isComplete)
    *isComplete = true;
  std::size_t at = 0;
  core::forEachRegion(Access::impl(t), [&](VarId var, std::size_t begin, std::size_t length) {
    impl->variables[var].tiles.forEach(
        begin, begin + length, [&](std::size_t b, std::size_t e, unsigned tile) {
          const unsigned id = tile == core::noTile || tiles.empty() ? tile : local[tile];
          if (id == core::noTile) {
            if (isComplete)
              *isComplete = false;
            return;
          }
          const std::size_t from = at + b - begin, to = at + e - begin;
          if (!r[id].empty() && r[id].back().end() == from)
            r[id].back() = Interval(r[id].back().begin(), to);
          else
            r[id].emplace_back(from, to);
        });
    at += length;
  });
  return r;
}

Graph::TileToTensorMapping Graph::getTileMapping(const Tensor &t, bool requireComplete,
                                                 bool allowExternal) const {
  bool complete = true;
  TileToTensorMapping r = getTileMapping(t, &complete, allowExternal);
  if (requireComplete && !complete)
    throw errors::unmapped("getTileMapping: every element of tensor " + core::tensorName(t) +
                           " must be mapped to a tile of this graph");
  return r;
}

Graph::TileToTensorMapping Graph::getVariableTileMapping(const Tensor &t) const {
  const core::TensorImpl &i = Access::impl(t);
  const std::vector<core::Piece> p = core::regionsOf(t);
  if (p.empty())
    return TileToTensorMapping(target.getNumTiles());
  return getTileMapping(i.graph->wholeTensor(p[0].var, {impl->variables[p[0].var].numElements}),
                        false);
}

Tensor Graph::getVariable(VariableRef v) const {
  return impl->wholeTensor(v.id(), {impl->variables.at(v.id()).numElements});
}
bool Graph::isConstant(VariableRef v) const { return impl->variables.at(v.id()).constant; }

std::vector<std::vector<Interval>>
Graph::getSortedContiguousRegions(const Tensor &t, ArrayRef<Interval> regions,
                                  bool removeAliasedIntervals,
                                  std::vector<std::size_t> *aliases) const {
  struct Part {
    VarId var;
    std::size_t begin; // in the variable
    std::size_t length;
    std::size_t at; // in the flattened view
  };
  const Tensor flat = t.flatten();
  std::vector<Part> parts;
  for (const Interval &i : regions) {
    std::size_t at = i.begin();
    for (const core::Piece &p : core::regionsOf(flat.slice(i))) {
      parts.push_back({p.var, p.begin, p.length, at});
      at += p.length;
    }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Part &a, const Part &b) {
    return a.var != b.var ? a.var < b.var : a.begin < b.begin;
  });
  if (removeAliasedIntervals) {
    std::vector<Part> kept;
    for (const Part &p : parts) {
      if (!kept.empty() && kept.back().var == p.var &&
          p.begin < kept.back().begin + kept.back().length) {
        const std::size_t covered = kept.back().begin + kept.back().length - p.begin;
        if (covered < p.length)
          kept.push_back({p.var, p.begin + covered, p.length - covered, p.at + covered});
        continue;
      }
      kept.push_back(p);
    }
    parts = std::move(kept);
  }
  // Of elements that come more than once, the first ones stand for all: a part is split where what
  // stands for it is not one interval of the view.
  std::vector<Part> firsts; // of the run of elements that `parts` cover without a gap
  std::vector<std::vector<Interval>> r;
  std::size_t lastFirst = 0; // what stands for the last interval's end
  auto append = [&](std::size_t at, std::size_t length, std::size_t first, bool follows) {
    if (!follows)
      r.emplace_back();
    if (follows && r.back().back().end() == at && (!aliases || lastFirst == first))
      r.back().back() = Interval(r.back().back().begin(), at + length);
    else {
      r.back().emplace_back(at, at + length);
      if (aliases)
        aliases->push_back(first);
    }
    lastFirst = first + length;
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part p = parts[i];
    bool follows =
        i && parts[i - 1].var == p.var && parts[i - 1].begin + parts[i - 1].length == p.begin;
    if (!aliases) {
      append(p.at, p.length, p.at, follows);
      continue;
    }
    if (!firsts.empty() &&
        (firsts.back().var != p.var || firsts.back().begin + firsts.back().length <= p.begin))
      firsts.clear();
    std::size_t k = std::upper_bound(firsts.begin(), firsts.end(), p.begin,
                                     [](std::size_t x, const Part &q) { return x < q.begin; }) -
                    firsts.begin();
    for (k = k ? k - 1 : 0; k < firsts.size() && p.length; ++k) {
      const Part &q = firsts[k];
      const std::size_t skip = p.begin - q.begin, n = std::min(p.length, q.length - skip);
      append(p.at, n, q.at + skip, follows);
      p = {p.var, p.begin + n, p.length - n, p.at + n};
      follows = true;
    }
    if (p.length) {
      append(p.at, p.length, p.at, follows);
      firsts.push_back(p);
    }
  }
  return r;
}

void Graph::reorderToSimplify(Tensor *t, ArrayRef<Tensor *> ts, bool) const {
  // One order for all, by the address of the first tensor's elements.
  const Tensor flat = t->flatten();
  const auto regions = getSortedContiguousRegions(flat, {{0, flat.numElements()}});
  auto reorder = [&](Tensor *x) {
    const Tensor f = x->flatten();
    std::vector<Tensor> parts;
    for (const auto &list : regions)
      for (const Interval &i : list)
        parts.push_back(f.slice(i));
    *x = parts.empty() ? f : concat(parts);
  };
  std::vector<Tensor *> all(ts.begin(), ts.end());
  for (Tensor *x : all)
    reorder(x);
  reorder(t);
}

} // namespace poplar
