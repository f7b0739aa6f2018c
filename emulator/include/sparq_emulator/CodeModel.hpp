// SPDX-License-Identifier: Apache-2.0
// Sizes from which code memory is estimated. This project measured none of them;
// emulator/reference.md gives the source of each.
#pragma once

#include <cstdint>

namespace sparq {
namespace emulator {

/// Bytes on every tile that takes part. An instruction has 4 bytes.
struct CodeModel {
  // Vertex code: a codelet counts once on each tile that has vertices of it.
  std::uint64_t perToken = 2; // of a codelet's source, what it calls included
  std::uint64_t compilerRuntime =
      256; // division, stores of halves and the like, on a tile with any
  // Stacks.
  std::uint64_t perWorkerStack = 512;
  std::uint64_t supervisorStack = 96;
  // Control code, on every tile: the program is one for all.
  std::uint64_t controlBase = 512;
  std::uint64_t perStep = 16;   // Execute, a copy, Sync and the like
  std::uint64_t perBranch = 32; // If, While, Repeat, Switch, Call; of Switch also `perStep` a case
  std::uint64_t perVertex = 12; // to start it, on its tile
  // Exchange code, on the tiles that take part.
  std::uint64_t perExchange = 16;
  std::uint64_t perPieceSent = 8; // and as much again for each full `bytesPerSend`
  std::uint64_t bytesPerSend = 256;
  std::uint64_t perPieceReceived = 16; // from another sender, or to another place
  std::uint64_t perPieceCopied = 8;    // within a tile: its pointer and length
  // Host exchange code: streams and remote buffers.
  std::uint64_t hostExchangeBase = 288; // on every tile
  std::uint64_t perTransfer = 32;
  std::uint64_t perPacket = 8;  // the code that sends it
  std::uint64_t perHeader = 12; // its header: data, which may lie anywhere
  // Where code may lie: a tile's memory begins at 0x4c000, and from 0x80000 on it is interleaved.
  std::uint64_t room = 0x80000 - 0x4c000;
};

} // namespace emulator
} // namespace sparq
