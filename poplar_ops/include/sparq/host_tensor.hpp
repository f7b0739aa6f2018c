// SPDX-License-Identifier: Apache-2.0
//
// A tensor that the host writes or reads. Poplar limits a host transfer to 128 MiB, so a large one
// goes in pieces; and a handle serves one direction only, as in the vendor's own programs.
#pragma once

#include <cstddef>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <string>
#include <vector>

namespace sparq {

class HostTensor {
public:
  HostTensor() = default;
  // Handles begin with `name`; a piece has at most `pieceBytes`.
  static HostTensor writable(poplar::Graph &graph, const poplar::Tensor &tensor,
                             const std::string &name, std::size_t pieceBytes = maxPieceBytes);
  static HostTensor readable(poplar::Graph &graph, const poplar::Tensor &tensor,
                             const std::string &name, std::size_t pieceBytes = maxPieceBytes);

  std::size_t size() const { return pieces_.empty() ? 0 : pieces_.back().end; } // elements
  std::size_t nPieces() const { return pieces_.size(); }

  // size() elements, each as large as the tensor's.
  void write(poplar::Engine &engine, const void *data) const;
  void read(poplar::Engine &engine, void *data) const;

  static constexpr std::size_t maxPieceBytes = std::size_t(64) << 20;

private:
  struct Piece {
    std::string handle;
    std::size_t begin, end; // elements
  };
  static HostTensor inPieces(const poplar::Graph &graph, const poplar::Tensor &tensor,
                             const std::string &name, std::size_t pieceBytes);

  std::vector<Piece> pieces_;
  std::size_t elementBytes_ = 0;
};

} // namespace sparq
