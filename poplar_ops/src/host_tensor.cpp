// SPDX-License-Identifier: Apache-2.0
#include "sparq/host_tensor.hpp"
#include <algorithm>
#include <poplar/Target.hpp>

namespace sparq {

HostTensor HostTensor::inPieces(const poplar::Graph &graph, const poplar::Tensor &tensor,
                                const std::string &name, std::size_t pieceBytes) {
  HostTensor host;
  host.elementBytes_ = graph.getTarget().getTypeSize(tensor.elementType());
  const std::size_t n = tensor.numElements();
  const std::size_t most = std::max<std::size_t>(1, pieceBytes / host.elementBytes_);
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

void HostTensor::write(poplar::Engine &engine, const void *data) const {
  const char *const bytes = static_cast<const char *>(data);
  for (const Piece &piece : pieces_) {
    const void *const begin = bytes + piece.begin * elementBytes_, *const end =
                                                                       bytes +
                                                                       piece.end * elementBytes_;
    engine.writeTensor(piece.handle, begin, end);
  }
}

void HostTensor::read(poplar::Engine &engine, void *data) const {
  char *const bytes = static_cast<char *>(data);
  for (const Piece &piece : pieces_) {
    void *const begin = bytes + piece.begin * elementBytes_, *const end =
                                                                 bytes + piece.end * elementBytes_;
    engine.readTensor(piece.handle, begin, end);
  }
}

} // namespace sparq
