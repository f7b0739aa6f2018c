// SPDX-License-Identifier: Apache-2.0
// An estimate of the memory that code takes on each tile.
#pragma once

#include <sparq_emulator/CodeModel.hpp>

#include <map>
#include <set>
#include <vector>

#include "core.hpp"

namespace poplar {
namespace core {

// A piece of a variable that goes from one tile to another.
struct Move {
  unsigned srcTile;
  unsigned dstTile;
  VarId var;
  std::size_t begin;
  std::size_t end;
};

// What a tile receives or sends in an exchange.
struct Moved {
  std::uint64_t bytes = 0, pieces = 0;
  std::uint64_t sends = 0; // instructions that send, if it sends
  // The last move: its variable, the tile at the other end, the end of its piece and the piece's
  // bytes, whoever receives them.
  VarId var = ~0u;
  unsigned other = 0;
  std::size_t end = 0;
  std::uint64_t length = 0;

  void add(const Move &m, unsigned otherTile, std::size_t size);
};
struct MovedOfTile {
  unsigned tile;
  Moved in, out;
};

/// Adds up code while a graph is compiled.
class CodeMemory {
public:
  explicit CodeMemory(unsigned tiles) : tiles_(tiles) {}

  /// Bytes of one tile, by kind.
  struct Bytes {
    std::uint64_t vertex = 0, stacks = 0, control = 0, exchange = 0, hostExchange = 0, headers = 0;
    std::uint64_t code() const { return vertex + control + exchange + hostExchange; }
    std::uint64_t total() const { return code() + stacks + headers; }
  };

  void addVertex(unsigned tile, const codelet_abi::Vertex &type);
  /// A step of a program; a branch with so many ways.
  void addStep() { control_ += model_.perStep; }
  void addBranch(std::size_t ways) {
    control_ += model_.perBranch + (ways > 2 ? ways : 0) * model_.perStep;
  }
  /// A tile's part in an exchange.
  void addExchange(const MovedOfTile &t) {
    tiles_[t.tile].exchange += model_.perExchange + t.in.pieces * model_.perPieceReceived +
                               t.out.sends * model_.perPieceSent;
  }
  /// Pieces that are copied within a tile.
  void addPieces(unsigned tile, std::uint64_t n) {
    tiles_[tile].exchange += n * model_.perPieceCopied;
  }
  /// The share of a tile in a copy of a stream or remote buffer.
  void addTransfer(unsigned tile, std::uint64_t packets) {
    tiles_[tile].hostExchange += model_.perTransfer + packets * model_.perPacket;
    tiles_[tile].headers += packets * model_.perHeader;
  }

  Bytes bytes(unsigned tile) const;
  /// Bytes that code has room for.
  std::uint64_t room() const { return model_.room; }

private:
  struct Tile {
    std::set<const codelet_abi::Vertex *> codelets;
    std::uint64_t vertices = 0, tokens = 0, exchange = 0, hostExchange = 0, headers = 0;
  };
  const sparq::emulator::CodeModel model_;
  std::vector<Tile> tiles_;
  std::uint64_t control_ = 0;
};

} // namespace core
} // namespace poplar
