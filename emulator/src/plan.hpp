// SPDX-License-Identifier: Apache-2.0
// A compiled graph: flat lists that an engine runs without looking anything up.
#pragma once

#include <sparq_emulator/Counters.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core.hpp"
#include "program_impl.hpp"

namespace poplar {
namespace core {

// Device memory is one block of host memory; places in it are offsets from its start.
using Address = std::uint64_t;

// `count` pieces of `bytes` each, at regular steps.
struct Run {
  Address dst;
  Address src;
  std::uint64_t bytes;
  std::uint64_t count;
  std::int64_t dstStep;
  std::int64_t srcStep;
};

struct Span {
  Address at;
  std::uint64_t bytes;
  Type type;
};

struct VariablePlan {
  std::string name;
  Type type;
  Address at;
  std::uint64_t bytes;
  std::vector<std::uint8_t> data; // of a constant
  std::vector<InitialValues> initial;
  bool controls = false; // dry run: control flow depends on it
};

struct VertexPlan {
  bool (*run)(void *, unsigned);
  Address state;
  unsigned calls; // compute(0) .. compute(calls - 1)
  // Ends in the compute set's lists; begins are the previous vertex's ends.
  unsigned gathersEnd, scattersEnd, poisonsEnd, guardsEnd, writtenEnd;
  const char *name;
  unsigned tile;
  bool showsEvents; // its object is made so that the host's flags tell them
};

// Bytes beside an edge's buffer that no vertex may touch, filled with guardByte; or an Input's
// buffer, which must be left as these gathers filled it.
struct Guard {
  Address at;
  std::uint64_t bytes;
  const char *field;
  unsigned gathers = 0, gathersEnd = 0;
  bool isInput() const { return gathers != gathersEnd; }
};
constexpr std::uint64_t guardBytes = 64;
// Byte `i` of guard `number` of a compute set. It differs from those of neighbouring guards and
// from its own neighbours: so a byte of a guard that is copied to another place shows.
inline std::uint8_t guardByte(std::size_t number, std::uint64_t i) {
  return static_cast<std::uint8_t>(0xc5 + 101 * number + i);
}

// What the workers of a MultiVertex may write: an Output, an InOut or state.
struct Written {
  Address at;
  std::uint64_t bytes;
  Type type;
  codelet_abi::Direction direction;
  std::string field; // as an error names it
};

// What an edge takes of device memory, for SPARQ_EMULATOR_REPORT_READS=1.
struct EdgeUse {
  std::string vertex;
  std::string field;
  codelet_abi::Direction direction;
  std::vector<Run> runs; // `dst` is an address
};

struct ComputeSetPlan {
  std::string name;
  std::vector<VertexPlan> vertices; // by tile
  bool asksWorker = false;      // a vertex of it takes random numbers or the like: see random.hpp
  std::vector<Run> gathers;     // inputs that are not contiguous or not aligned
  std::vector<Run> scatters;    // such outputs
  std::vector<Span> poisons;    // Outputs, before the vertex runs
  std::vector<Guard> guards;    // with SPARQ_EMULATOR_GUARD=1
  std::vector<Written> written; // with SPARQ_EMULATOR_CHECK_WORKERS=1
  std::vector<EdgeUse> edges;   // with SPARQ_EMULATOR_REPORT_READS=1
};

struct CopyPlan {
  std::vector<Run> runs;
  Address staging = 0; // when source and destination overlap: everything goes through here first
  std::uint64_t stagingBytes = 0;
};

// Device side of a transfer with the outside. Of its runs `src` is an offset in the transfer and
// `dst` an address.
struct TransferPlan {
  unsigned index = 0; // of the stream or remote buffer
  bool toDevice = false;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
  std::uint64_t rowBytes = 0;
  std::vector<Run> runs; // for a remote buffer none crosses a row
  // Where rows are in pieces: the end of each row in `runs`. Empty where every row is one run.
  std::vector<std::uint64_t> rowEnd;
  bool hasOffsets = false;
  std::vector<Run> offsetRuns; // gathers the offsets to a 32-bit array
  bool offsetsSigned = false;
  std::string name;
};

enum class StepOp {
  Sequence,
  Compute,
  Copy,
  StreamIn,
  StreamOut,
  RemoteRead,
  RemoteWrite,
  Repeat,
  While,
  If,
  Switch,
  Call,
  Sync,
  Poison,
  Print,
  Error,
  CycleStamp
};

struct Step {
  StepOp op = StepOp::Sequence;
  unsigned index = 0; // in the list of its kind
  unsigned cost = ~0u;
  unsigned count = 0;
  bool flag = false;
  bool checked = false;
  bool hasPredicate = false;
  bool controls = false; // dry run: control flow depends on what it writes
  Address predicate = 0;
  unsigned predicateBytes = 0;
  Address value = 0; // CycleStamp: where it is stored; `predicate` is the stamp it counts from
  std::vector<std::int32_t> cases;
  std::vector<Step> children;
};

struct PrintPlan {
  std::string title;
  Type type;
  std::vector<std::size_t> shape;
  PrintTensorFmt format;
  std::vector<Run> runs; // to a packed array
  bool isError = false;
  bool hasTensor = false;
};

struct HostTensorPlan {
  Type type;
  std::uint64_t bytes = 0;
  std::vector<Run> runs; // `src` is an offset in the host array, `dst` an address
  bool controls = false; // as a step
};

struct Relocation {
  std::uint64_t at; // in the state image: an 8-byte pointer
  Address target;
};

struct ExecutableImpl {
  Target target; // the device's: of all replicas
  unsigned replication = 1;
  OptionFlags options;
  bool dry = false;   // compiled for a dry run, see Counters.hpp
  bool zeros = false; // what nothing has written holds zeros, and an Output keeps what it holds
  bool reportsReads = false; // of what nothing has written
  std::vector<std::shared_ptr<CodeletLibrary>> libraries;
  std::set<std::string> names; // of fields, where it was read from a stream
  std::vector<VariablePlan> variables;
  Address stateAt = 0;
  std::vector<std::uint8_t> stateImage;
  std::vector<Relocation> relocations;
  Address arenaBytes = 0;
  std::vector<ComputeSetPlan> computeSets;
  std::vector<CopyPlan> copies;
  std::vector<TransferPlan> transfers;
  std::vector<std::vector<Span>> poisons;
  std::vector<PrintPlan> prints;
  std::vector<Step> functions;
  std::vector<Step> programs;
  std::vector<std::shared_ptr<const StreamInfo>> streams;
  std::vector<std::shared_ptr<const RemoteBufferInfo>> remotes;
  std::vector<unsigned> remoteIPUs; // by remote buffer: whose it is
  std::map<std::string, HostTensorPlan> hostWrites;
  std::map<std::string, HostTensorPlan> hostReads;
  std::vector<sparq::emulator::StepCount> costs; // executions left 0
  sparq::emulator::MemoryCount memory;
};

/// The bit pattern of undefined elements: a NaN, a large integer, a bool that is neither.
void poison(void *p, const Type &type, std::uint64_t bytes);

} // namespace core
} // namespace poplar
