// SPDX-License-Identifier: Apache-2.0
#include "code_memory.hpp"

namespace poplar {
namespace core {

void CodeMemory::addVertex(unsigned tile, const codelet_abi::Vertex &type) {
  Tile &t = tiles_[tile];
  ++t.vertices;
  if (t.codelets.insert(&type).second)
    t.tokens += type.tokens;
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
