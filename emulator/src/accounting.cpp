// SPDX-License-Identifier: Apache-2.0
// Static costs: exchange bytes, worker cycles, tile memory.
#include <sparq_emulator/DeviceModel.hpp>
#include <sparq_emulator/Errors.hpp>

#include <algorithm>
#include <tuple>

#include "compiler.hpp"
#include "links.hpp"

namespace poplar {
namespace core {

using codelet_abi::Direction;
using codelet_abi::Layout;
using codelet_abi::Nesting;
using codelet_abi::VertexKind;

// A move of a tile, which come by variable and beginning. An element that is sent or received
// before counts once.
void Moved::add(const Move &m, unsigned otherTile, std::size_t size) {
  constexpr sparq::emulator::CodeModel model;
  const bool goesOn = m.var == var && m.begin <= end;
  if (!goesOn) {
    end = m.begin;
    length = 0;
    ++sends;
  }
  if (m.end > end) {
    const std::uint64_t n = (m.end - end) * size;
    bytes += n;
    pieces += !goesOn || otherTile != other;
    sends += (length + n) / model.bytesPerSend - length / model.bytesPerSend;
    length += n;
    end = m.end;
  }
  var = m.var;
  other = otherTile;
}

std::vector<MovedOfTile> Compiler::byTile(std::vector<Move> &moves) {
  std::sort(moves.begin(), moves.end(), [](const Move &a, const Move &b) {
    if (a.var != b.var || a.begin != b.begin)
      return a.var != b.var ? a.var < b.var : a.begin < b.begin;
    return a.srcTile != b.srcTile ? a.srcTile < b.srcTile : a.dstTile < b.dstTile;
  });
  std::vector<MovedOfTile> r;
  auto of = [&](unsigned tile) -> MovedOfTile & {
    std::size_t &at = placeByTile_[tile]; // in this `r`, or an earlier one
    if (at >= r.size() || r[at].tile != tile) {
      at = r.size();
      r.push_back({tile, {}, {}});
    }
    return r[at];
  };
  for (const Move &m : moves) {
    const std::size_t size = typeSize(g_.variables[m.var].type);
    of(m.dstTile).in.add(m, m.srcTile, size);
    of(m.srcTile).out.add(m, m.dstTile, size);
  }
  return r;
}

void Compiler::land(const std::vector<MovedOfTile> &moved) {
  for (const MovedOfTile &t : moved)
    temporaries_[t.tile] += t.in.bytes;
}

// The cost of an exchange. Its code is added.
sparq::emulator::ExchangeCount Compiler::exchange(const std::vector<MovedOfTile> &moved) {
  const sparq::emulator::DeviceModel model;
  ExchangeCount c;
  unsigned busiest = 0;
  for (const MovedOfTile &t : moved) {
    c.bytesIn += t.in.bytes;
    c.bytesOut += t.out.bytes;
    c.maxBytesIn = std::max(c.maxBytesIn, t.in.bytes);
    c.maxBytesOut = std::max(c.maxBytesOut, t.out.bytes);
    for (const Moved *m : {&t.in, &t.out}) {
      const auto cycles = model.transferCycles(m->bytes, m->pieces),
                 most = model.transferCycles(c.busyBytes, c.busyPieces);
      if (cycles > most || (cycles == most && t.tile < busiest)) { // of equal ones the first tile
        c.busyBytes = m->bytes;
        c.busyPieces = m->pieces;
        busiest = t.tile;
      }
    }
    code_.addExchange(t);
  }
  c.maxBytes = std::max(c.maxBytesIn, c.maxBytesOut);
  return c;
}

void Compiler::addLocal(unsigned tile, std::uint64_t elements, std::uint64_t bytes) {
  LocalCopy &c = local_[tile];
  c.elements += std::min(elements, LocalCopy::longPiece);
  c.bytes += bytes;
}

// That of the tile that has most to copy since the last call.
sparq::emulator::LocalCopy Compiler::takeLocal() {
  const sparq::emulator::DeviceModel model;
  LocalCopy most;
  for (const auto &tile : local_)
    if (model.localCycles(tile.second) > model.localCycles(most))
      most = tile.second;
  local_.clear();
  return most;
}

std::string Compiler::nameOfTile(unsigned tile) const {
  if (g_.target.getNumIPUs() == 1)
    return "tile " + std::to_string(tile);
  return "tile " + std::to_string(tile % g_.target.getTilesPerIPU()) + " of IPU " +
         std::to_string(ipuOf(tile));
}

void Compiler::insertIPU(unsigned ipu, std::vector<unsigned> &ipus) {
  const auto at = std::lower_bound(ipus.begin(), ipus.end(), ipu);
  if (at == ipus.end() || *at != ipu)
    ipus.insert(at, ipu);
}

void Compiler::addIPUs(const Tensor &t, std::vector<unsigned> &ipus) const {
  if (g_.target.getNumIPUs() == 1) {
    insertIPU(0, ipus);
    return;
  }
  forEachRegion(Access::impl(t), [&](VarId var, std::size_t b, std::size_t n) {
    g_.variables[var].tiles.forEach(
        b, b + n, [&](std::size_t, std::size_t, unsigned tile) { insertIPU(ipuOf(tile), ipus); });
  });
}

// An element that several tiles of an IPU receive crosses a link once.
void Compiler::addLinks(const std::vector<Move> &moves, StepCount &cost) const {
  if (g_.target.getNumIPUs() == 1)
    return;
  std::vector<Move> crossing; // with IPUs for tiles
  for (const Move &m : moves) {
    Move by = m;
    by.srcTile = ipuOf(m.srcTile);
    by.dstTile = ipuOf(m.dstTile);
    insertIPU(by.srcTile, cost.ipus);
    insertIPU(by.dstTile, cost.ipus);
    if (by.srcTile != by.dstTile)
      crossing.push_back(by);
  }
  std::sort(crossing.begin(), crossing.end(), [](const Move &a, const Move &b) {
    return std::tie(a.srcTile, a.dstTile, a.var, a.begin) <
           std::tie(b.srcTile, b.dstTile, b.var, b.begin);
  });
  IpuFlows flows;
  std::size_t end = 0;
  for (std::size_t i = 0; i < crossing.size(); ++i) {
    const Move &m = crossing[i];
    const bool same = i && crossing[i - 1].srcTile == m.srcTile &&
                      crossing[i - 1].dstTile == m.dstTile && crossing[i - 1].var == m.var;
    const std::size_t from = same ? std::max(end, m.begin) : m.begin;
    end = same ? std::max(end, m.end) : m.end;
    if (m.end > from)
      flows[{m.srcTile, m.dstTile}] += (m.end - from) * typeSize(g_.variables[m.var].type);
  }
  addLinkExchange(flows, g_.target.getNumIPUs(), cost.links);
}

// Bytes of a vertex on the device: pointers and state as laid out there, not as here.
static std::uint64_t deviceStateBytes(const VertexRecord &v) {
  auto pointerBytes = [](Layout l) -> std::uint64_t {
    switch (l) {
    case Layout::Span:
      return 8;
    case Layout::ScaledPtr32:
    case Layout::ScaledPtr64:
    case Layout::ScaledPtr128:
      return 2;
    case Layout::ShortSpan:
    case Layout::OnePtr:
    case Layout::CompactPtr:
      return 4;
    }
    throwUnknown("memory: layout of a field", l);
  };
  auto edgeBytes = [&](const FieldRecord &f) -> std::uint64_t {
    const std::uint64_t list = pointerBytes(f.info->outerLayout), n = f.edges.size();
    switch (f.info->nesting) {
    case Nesting::Scalar:
      return 4;
    case Nesting::Vector:
      return pointerBytes(f.info->layout);
    case Nesting::VectorOfScalars:
      return list + 4 * n;
    case Nesting::VectorOfVectors:
    case Nesting::VectorList:
      return list + pointerBytes(f.info->layout) * n;
    }
    throwUnknown("memory: nesting of a field", f.info->nesting);
  };
  std::uint64_t bytes = 0;
  for (const FieldRecord &f : v.fields) {
    if (f.info->direction != Direction::State)
      bytes += edgeBytes(f);
    else if (f.info->nesting == Nesting::Scalar)
      bytes += typeSize(typeOf(f.info->element));
    else
      bytes += pointerBytes(f.info->layout) + f.initial.size();
  }
  return (bytes + 3) / 4 * 4;
}

// What moves between tiles before and after the vertex runs, and the outputs that wait for it on
// the tile that wrote them. An InOut waits in its landing copy.
static void collectMoves(const GraphImpl &g, const VertexRecord &v, std::vector<Move> &in,
                         std::vector<Move> &out, std::vector<Move> &waiting) {
  for (const FieldRecord &f : v.fields) {
    const Direction direction = f.info->direction;
    if (direction == Direction::State)
      continue;
    auto add = [&](VarId var, std::size_t begin, std::size_t end, unsigned tile) {
      if (tile == v.tile)
        return;
      if (direction != Direction::Output)
        in.push_back({tile, v.tile, var, begin, end});
      if (direction != Direction::Input)
        out.push_back({v.tile, tile, var, begin, end});
      if (direction == Direction::Output)
        waiting.push_back({tile, v.tile, var, begin, end});
    };
    for (const Tensor &t : f.edges)
      forEachRegion(Access::impl(t), [&](VarId var, std::size_t b, std::size_t n) {
        g.variables[var].tiles.forEach(
            b, b + n,
            [&](std::size_t begin, std::size_t end, unsigned tile) { add(var, begin, end, tile); });
      });
  }
}

void Compiler::addComputeCost(const ComputeSetRecord &cs, StepCount &cost) {
  const unsigned tiles = g_.target.getNumTiles(), workers = g_.target.getNumWorkerContexts();
  // By tile: the issue slots of each worker that has vertices to run.
  std::vector<std::vector<std::uint64_t>> slots(tiles);
  std::vector<std::uint64_t> serial(tiles, 0);
  std::vector<Move> in, out, waiting;
  for (vertex_id id : cs.vertices) {
    const VertexRecord &v = g_.vertices[id];
    vertexStateBytes_[v.tile] += deviceStateBytes(v);
    code_.addVertex(v.tile, *v.type);
    insertIPU(ipuOf(v.tile), cost.ipus);
    ++cost.vertices;
    VertexPerfEstimate estimate = v.estimate;
    bool has = v.hasEstimate;
    if (!has) {
      const auto it = g_.estimators.find(v.type->name);
      if ((has = it != g_.estimators.end()))
        estimate = it->second(Access::introspect(v), g_.target);
    }
    if (!has && cost.verticesWithoutEstimate++ == 0)
      cost.vertexWithoutEstimate = v.type->name;
    cost.flops += estimate.flops;
    switch (v.type->kind) {
    case VertexKind::Vertex: {
      std::vector<std::uint64_t> &s = slots[v.tile];
      if (s.size() < workers)
        s.push_back(estimate.cycles);
      else
        *std::min_element(s.begin(), s.end()) += estimate.cycles;
      break;
    }
    case VertexKind::MultiVertex:
    case VertexKind::SupervisorVertex:
      serial[v.tile] += estimate.cycles;
      break;
    }
    collectMoves(g_, v, in, out, waiting);
  }
  if (recordsTiles_)
    cost.cyclesOfTiles.resize(tiles);
  for (unsigned t = 0; t < tiles; ++t) {
    std::uint64_t cycles = serial[t];
    if (!slots[t].empty())
      cycles += workers * *std::max_element(slots[t].begin(), slots[t].end());
    cost.tileCycles = std::max(cost.tileCycles, cycles);
    if (recordsTiles_)
      cost.cyclesOfTiles[t] = static_cast<unsigned>(cycles);
  }
  cost.syncs = 1;
  cost.localCopy = takeLocal();
  if (!in.empty()) {
    ++cost.exchanges;
    const std::vector<MovedOfTile> moved = byTile(in);
    land(moved);
    cost.before = exchange(moved);
    addLinks(in, cost);
  }
  if (!out.empty()) {
    ++cost.exchanges;
    ++cost.syncs;
    land(byTile(waiting));
    cost.after = exchange(byTile(out));
    addLinks(out, cost);
  }
  for (unsigned t = 0; t < tiles; ++t)
    if (temporaries_[t])
      computeSetUses_.back().temporaries.emplace_back(t, temporaries_[t]);
  accountTemporaries();
}

void Compiler::accountTemporaries() {
  for (std::size_t t = 0; t < temporaries_.size(); ++t)
    maxTemporaries_[t] = std::max(maxTemporaries_[t], temporaries_[t]);
}

// Code must lie in memory that is not interleaved, which is the smaller part of a tile's.
void Compiler::checkCodeFits() const {
  for (unsigned tile = 0; tile < g_.target.getNumTiles(); ++tile) {
    const CodeMemory::Bytes b = code_.bytes(tile);
    if (b.code() <= code_.room())
      continue;
    auto part = [](const char *name, std::uint64_t n) { return name + std::to_string(n); };
    throw sparq::emulator::OutOfTileMemory(
        "tile memory: code of " + nameOfTile(tile) + " must need at most " +
            std::to_string(code_.room()) + " bytes, got " + std::to_string(b.code()) + " (" +
            part("vertex code ", b.vertex) + part(", control code ", b.control) +
            part(", exchange code ", b.exchange) + part(", host exchange code ", b.hostExchange) +
            ")",
        b.code(), code_.room(), tile);
  }
}

void Compiler::accountMemory(ArrayRef<program::Program> programs) {
  const unsigned tiles = g_.target.getNumTiles();
  sparq::emulator::MemoryCount &m = exe_->memory;
  m.limit = g_.target.getBytesPerTile();
  m.vertices = g_.vertices.size();
  std::vector<std::uint64_t> variables(tiles, 0);
  // A variable's elements on a tile take whole 8-byte words.
  auto forEachShare = [&](const Variable &v, auto f) {
    std::map<unsigned, std::uint64_t> share;
    const std::size_t size = typeSize(v.type);
    for (const auto &p : v.tiles.parts())
      share[p.second.tile] += (p.second.end - p.first) * size;
    for (const auto &s : share)
      f(s.first, (s.second + 7) / 8 * 8);
  };
  for (const Variable &v : g_.variables)
    forEachShare(v, [&](unsigned tile, std::uint64_t bytes) { variables[tile] += bytes; });
  m.bytesPerTile.assign(tiles, 0);
  m.codePerTile.assign(tiles, 0);
  for (unsigned t = 0; t < tiles; ++t) {
    m.codePerTile[t] = code_.bytes(t).total();
    m.bytesPerTile[t] = variables[t] + vertexStateBytes_[t] + maxTemporaries_[t] + m.codePerTile[t];
    if (m.bytesPerTile[t] > m.bytesPerTile[m.tile])
      m.tile = t;
  }
  m.bytes = m.bytesPerTile[m.tile];
  std::vector<std::uint64_t> always(vertexStateBytes_);
  for (unsigned t = 0; t < tiles; ++t)
    always[t] += m.codePerTile[t];
  countLive(g_, programs, computeSetUses_, always, m);
  m.variables = variables[m.tile];
  m.vertexState = vertexStateBytes_[m.tile];
  m.temporaries = maxTemporaries_[m.tile];
  const CodeMemory::Bytes code = code_.bytes(m.tile);
  m.codeAndStacks = code.total();
  m.vertexCode = code.vertex;
  m.stacks = code.stacks;
  m.controlCode = code.control;
  m.exchangeCode = code.exchange;
  m.hostExchangeCode = code.hostExchange + code.headers;
  std::map<std::string, std::uint64_t> byName;
  for (const Variable &v : g_.variables)
    forEachShare(v, [&](unsigned tile, std::uint64_t bytes) {
      if (tile == m.tile)
        byName[v.name] += bytes;
    });
  for (const auto &n : byName)
    m.largest.push_back({n.first, n.second});
  m.largest.push_back({"(vertex state)", m.vertexState});
  m.largest.push_back({"(temporaries of one step)", m.temporaries});
  m.largest.push_back({"(vertex code)", m.vertexCode});
  m.largest.push_back({"(stacks)", m.stacks});
  m.largest.push_back({"(control code)", m.controlCode});
  m.largest.push_back({"(exchange code)", m.exchangeCode});
  m.largest.push_back({"(host exchange code)", m.hostExchangeCode});
  std::stable_sort(m.largest.begin(), m.largest.end(),
                   [](const auto &a, const auto &b) { return a.bytes > b.bytes; });
  const auto allow = exe_->options.find("debug.allowOutOfMemory");
  if (g_.target.getTargetType() == TargetType::CPU ||
      (allow != exe_->options.end() && allow->second == "true"))
    return;
  checkCodeFits();
  if (m.bytes <= m.limit)
    return;
  std::string list;
  for (std::size_t i = 0; i < m.largest.size() && i < 5; ++i)
    list += (i ? ", " : "") + m.largest[i].name + " " + std::to_string(m.largest[i].bytes);
  throw sparq::emulator::OutOfTileMemory(
      "tile memory: " + nameOfTile(m.tile) + " must need at most " + std::to_string(m.limit) +
          " bytes, got " + std::to_string(m.bytes) + " (largest: " + list + ")",
      m.bytes, m.limit, m.tile);
}

} // namespace core
} // namespace poplar
