// SPDX-License-Identifier: Apache-2.0
#include "sparq/host_tensor.hpp"
#include <algorithm>
#include <poplar/Target.hpp>

namespace sparq {

HostTensor HostTensor::inPieces(const poplar::Graph &graph, const poplar::Tensor &tensor,
                                const std::string &name, std::size_t pieceBytes) {
  HostTensor host;
  const std::size_t n = tensor.numElements();
  const std::size_t most =
      std::max<std::size_t>(1, pieceBytes / graph.getTarget().getTypeSize(tensor.elementType()));
  for (std::size_t begin = 0; begin < n; begin += most)
    host.pieces_.push_back(
        {name + "/" + std::to_string(host.pieces_.size()), begin, std::min(begin + most, n)});
  return host;
}

HostTensor HostTensor::writable(poplar::Graph &graph, const poplar::Tensor &tensor,
                                const std::string &name, std::size_t pieceBytes) {
  const HostTensor host = inPieces(graph, tensor, name + "/write", pieceBytes);
  const poplar::Tensor flat = tensor.flatten();
  for (const Piece &piece : host.pieces_)
    graph.createHostWrite(piece.handle, flat.slice(piece.begin, piece.end));
  return host;
}

HostTensor HostTensor::readable(poplar::Graph &graph, const poplar::Tensor &tensor,
                                const std::string &name, std::size_t pieceBytes) {
  const HostTensor host = inPieces(graph, tensor, name + "/read", pieceBytes);
  const poplar::Tensor flat = tensor.flatten();
  for (const Piece &piece : host.pieces_)
    graph.createHostRead(piece.handle, flat.slice(piece.begin, piece.end));
  return host;
}

} // namespace sparq
