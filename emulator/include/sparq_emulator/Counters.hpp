// SPDX-License-Identifier: Apache-2.0
// What a run did, in counts: bytes, packets, cycles, syncs and tile memory.
// Only the emulator has this header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poplar {
class Engine;
}

namespace sparq {
namespace emulator {

enum class StepKind { Compute, Copy, RemoteRead, RemoteWrite, StreamIn, StreamOut, Sync, Branch };
const char *toString(StepKind kind);

/// Bytes moved between tiles in one execution of a step. Elements that stay on their tile are free.
/// A broadcast counts once at its sender and once at every receiving tile.
struct ExchangeCount {
  std::uint64_t bytesIn = 0;     // over all tiles
  std::uint64_t bytesOut = 0;    // over all tiles
  std::uint64_t maxBytesIn = 0;  // of the busiest receiver
  std::uint64_t maxBytesOut = 0; // of the busiest sender
  std::uint64_t maxBytes = 0;    // largest max(in, out) of a tile
  // For the tile and direction that take longest by the default DeviceModel. A piece is sent or
  // received in one go: neighbours of one variable, from one tile.
  std::uint64_t busyBytes = 0, busyPieces = 0;
};

/// Data copied within a tile because it must lie in another order or elsewhere, for the tile that
/// takes longest by the default DeviceModel. At most `LocalCopy::longPiece` elements of a piece
/// count as elements.
struct LocalCopy {
  static constexpr std::uint64_t longPiece = 16;
  std::uint64_t elements = 0, bytes = 0;
};

/// Bytes that one execution of a step sends from IPU to IPU.
struct LinkCount {
  std::uint64_t bytes = 0;    // over all IPUs
  std::uint64_t maxBytes = 0; // over the busiest link
  unsigned exchanges = 0;     // that cross links; each needs all IPUs to meet
  unsigned syncHops = 0;      // how far the message that they have met goes
};

/// One step of a program (one Execute or Copy in the source): its cost each time it runs, and how
/// often it ran.
struct StepCount {
  std::string name; // debug path of the step, or of its compute set, or of the enclosing sequence
  StepKind kind = StepKind::Compute;
  std::uint64_t executions = 0;

  // Compute: the busiest tile.
  // A Vertex takes one worker. Its estimate is in issue slots of that worker, which has every sixth
  // tile cycle. Vertices go, in order, to the least loaded of the tile's workers.
  // The estimate of a MultiVertex or SupervisorVertex is in tile cycles. They run one after
  // another.
  std::uint64_t tileCycles = 0;
  std::vector<unsigned> cyclesOfTiles; // where they are recorded, see Trace.hpp
  std::uint64_t flops = 0;             // over all tiles
  unsigned vertices = 0;
  unsigned verticesWithoutEstimate = 0;
  std::string vertexWithoutEstimate; // type of the first
  unsigned exchanges = 0; // exchange phases: inputs before, outputs after, or the copy itself
  ExchangeCount
      before; // Compute: off-tile inputs. Copy: the copy. Branch: its predicate, to all tiles
  ExchangeCount after; // Compute: off-tile outputs
  LocalCopy localCopy; // within tiles, before and after
  unsigned syncs = 0;
  LinkCount links;
  std::vector<unsigned> ipus; // that take part, ascending

  // Remote and stream steps.
  std::string buffer; // handle
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;
  std::uint64_t packets = 0; // of at most 1 KiB; none spans two rows or two tiles
  // A remote copy directly behind one of another IPU in the same direction: both go on at once.
  bool beside = false;
};

struct MemoryUse {
  std::string name; // debug name of a variable, or what else takes the memory
  std::uint64_t bytes = 0;
  unsigned ipu = 0; // the only IPU whose copies may name this remote buffer
};

/// SRAM of the fullest tile: an upper bound, and what no overlaying gets below.
/// Variables are all taken to be live together; Poplar overlays those that are not. The lower
/// figure counts, at each step, the elements that are live: from a write to the last read that may
/// follow, over all programs in any order. What is read, or changed as an InOut, before anything
/// has written it is live from the start, and so always; program::WriteUndef ends that. Temporaries
/// are those of the compute set or copy that needs most: landing and rearrangement buffers of edges
/// that are off-tile, fragmented or misaligned, and of copies of streams and remote buffers. The
/// lower figure has only those of compute sets.
struct MemoryCount {
  unsigned tile = 0;
  std::uint64_t bytes = 0; // total on that tile
  std::uint64_t limit = 0; // of the target
  std::uint64_t variables = 0;
  std::uint64_t vertexState = 0;
  std::uint64_t temporaries = 0;
  std::uint64_t codeAndStacks = 0; // estimated, see CodeModel.hpp: the sum of the next five
  // Host exchange code with the headers of packets.
  std::uint64_t vertexCode = 0, stacks = 0, controlCode = 0, exchangeCode = 0, hostExchangeCode = 0;
  std::vector<MemoryUse> largest;                       // of that tile, largest first
  std::vector<std::uint64_t> bytesPerTile, codePerTile; // all; code and stacks alone

  std::uint64_t vertices = 0; // of the graph, on all tiles
  std::uint64_t liveBytes =
      0;                 // the most that a tile needs at one step, with state, code and stacks
  unsigned liveTile = 0; // that tile
  std::string liveStep;  // that step
  /// Variables with elements that are live between programs, so always; largest first. Constants
  /// are not among them. Bytes are of the live elements on all tiles.
  std::vector<MemoryUse> alwaysLive;
};

/// While one lives, engines made on this thread are dry.
/// Engine::run() counts every step, but carries out only those that decide how often others run.
/// load() allocates no streaming memory and touches no tile memory that these do not need.
/// Tensors that are read back hold nothing of meaning.
/// ErrorProgram and Abort throw when they are reached, without the values of their tensor.
/// AbortOnCondition and PrintTensor do nothing.
class DryRun {
public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun &) = delete;
  DryRun &operator=(const DryRun &) = delete;
  static bool active();
};

/// What the host has asked of an engine since it was made. On an IPU each is a round trip of some
/// microseconds or more, whatever it moves.
struct HostCalls {
  std::uint64_t runs = 0;
  std::uint64_t tensorWrites = 0, tensorReads = 0; // Engine::writeTensor, readTensor
  std::uint64_t rowWrites = 0, rowReads = 0; // Engine::copyToRemoteBuffer, copyFromRemoteBuffer
};
HostCalls hostCalls(const poplar::Engine &engine);

/// Steps that ran at least once in the last Engine::run(), in program order.
std::vector<StepCount> lastRun(const poplar::Engine &engine);
/// The same of all runs since the engine was made, or since resetExecutionProfile(), but for those
/// while profiling was disabled.
std::vector<StepCount> allRuns(const poplar::Engine &engine);
/// Throws poplar::missing_perf_estimate, naming the vertex, when a step's cycles lack an estimate.
void requireEstimates(const std::vector<StepCount> &steps);
/// Tile memory of the loaded graph.
MemoryCount memory(const poplar::Engine &engine);
/// Streaming memory of the loaded graph, by remote buffer.
std::vector<MemoryUse> streamingMemory(const poplar::Engine &engine);

} // namespace emulator
} // namespace sparq
