// SPDX-License-Identifier: Apache-2.0
#include "remote_copy.hpp"
#include <algorithm>

namespace sparq {
namespace {

// Calls add(begin, end) for pieces of the tensor's rows.
template <class Add> void inPieces(const poplar::Tensor &tensor, const Add &add) {
  const std::size_t n = tensor.dim(0),
                    rowBytes = tensor.dim(1) * (tensor.elementType() != poplar::HALF ? 4 : 2);
  const std::size_t most = std::max<std::size_t>(1, maxCopyBytes / rowBytes);
  for (std::size_t begin = 0; begin < n; begin += most)
    add(begin, std::min(begin + most, n));
}

} // namespace

void readRemote(Lockstep &lockstep, const poplar::RemoteBuffer &buffer,
                const poplar::Tensor &tensor, const poplar::Tensor &rows,
                poplar::program::Sequence &program, const poplar::DebugContext &dc) {
  inPieces(tensor, [&](std::size_t begin, std::size_t end) {
    lockstep.read(buffer, tensor.slice(begin, end), rows.slice(begin, end), program, dc);
  });
}

void writeRemote(Lockstep &lockstep, const poplar::RemoteBuffer &buffer,
                 const poplar::Tensor &tensor, const poplar::Tensor &rows,
                 poplar::program::Sequence &program, const poplar::DebugContext &dc) {
  inPieces(tensor, [&](std::size_t begin, std::size_t end) {
    lockstep.write(buffer, tensor.slice(begin, end), rows.slice(begin, end), program, dc);
  });
}

} // namespace sparq
