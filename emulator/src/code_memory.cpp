// SPDX-License-Identifier: Apache-2.0
#include "code_memory.hpp"

#include <algorithm>
#include <tuple>

namespace poplar {
namespace core {

void CodeMemory::addVertex(unsigned tile, const codelet_abi::Vertex &type) {
  Tile &t = tiles_[tile];
  ++t.vertices;
  if (t.codelets.insert(&type).second)
    t.tokens += type.tokens;
}

void CodeMemory::addExchange(const GraphImpl &graph, std::vector<Move> &moves) {
  if (moves.empty())
    return;
  std::set<unsigned> taking;
  // A sender sends an element once, whoever receives it.
  std::sort(moves.begin(), moves.end(), [](const Move &a, const Move &b) {
    return std::tie(a.srcTile, a.var, a.begin) < std::tie(b.srcTile, b.var, b.begin);
  });
  for (std::size_t i = 0; i != moves.size();) {
    const Move &first = moves[i];
    std::size_t end = first.end;
    while (++i != moves.size() && moves[i].srcTile == first.srcTile && moves[i].var == first.var &&
           moves[i].begin <= end)
      end = std::max(end, moves[i].end);
    const std::uint64_t bytes = (end - first.begin) * typeSize(graph.variables[first.var].type);
    tiles_[first.srcTile].exchange += (1 + bytes / model_.bytesPerSend) * model_.perPieceSent;
    taking.insert(first.srcTile);
  }
  std::sort(moves.begin(), moves.end(), [](const Move &a, const Move &b) {
    return std::tie(a.dstTile, a.srcTile, a.var, a.begin) <
           std::tie(b.dstTile, b.srcTile, b.var, b.begin);
  });
  for (std::size_t i = 0; i != moves.size();) {
    const Move &first = moves[i];
    std::size_t end = first.end;
    while (++i != moves.size() && moves[i].dstTile == first.dstTile &&
           moves[i].srcTile == first.srcTile && moves[i].var == first.var && moves[i].begin <= end)
      end = std::max(end, moves[i].end);
    tiles_[first.dstTile].exchange += model_.perPieceReceived;
    taking.insert(first.dstTile);
  }
  for (const unsigned tile : taking)
    tiles_[tile].exchange += model_.perExchange;
}

CodeMemory::Bytes CodeMemory::bytes(unsigned tile) const {
  constexpr std::uint64_t workers = 6;
  const Tile &t = tiles_[tile];
  Bytes b;
  b.vertex = t.codelets.empty() ? 0 : t.tokens * model_.perToken + model_.compilerRuntime;
  b.stacks = workers * model_.perWorkerStack + model_.supervisorStack;
  b.control = model_.controlBase + control_ + t.vertices * model_.perVertex;
  b.exchange = t.exchange;
  b.hostExchange = model_.hostExchangeBase + t.hostExchange;
  b.headers = t.headers;
  return b;
}

} // namespace core
} // namespace poplar
