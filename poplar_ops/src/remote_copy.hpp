// SPDX-License-Identifier: Apache-2.0
//
// Copies between a remote buffer and tiles, in as many pieces as it takes: a remote buffer is made
// of data streams, and a stream holds at most 128 MiB.
#pragma once

#include "sparq/lockstep.hpp"

namespace sparq {

constexpr std::size_t maxCopyBytes = 128 * 1024 * 1024;

// tensor {n, row} HALF; rows {n}: row i of the tensor is row rows[i] of the buffer.
void readRemote(Lockstep &lockstep, const poplar::RemoteBuffer &buffer,
                const poplar::Tensor &tensor, const poplar::Tensor &rows,
                poplar::program::Sequence &program, const poplar::DebugContext &dc);
void writeRemote(Lockstep &lockstep, const poplar::RemoteBuffer &buffer,
                 const poplar::Tensor &tensor, const poplar::Tensor &rows,
                 poplar::program::Sequence &program, const poplar::DebugContext &dc);

} // namespace sparq
