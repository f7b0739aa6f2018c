// SPDX-License-Identifier: Apache-2.0
// From a graph and its programs to a plan, with every check on the way.
#pragma once

#include "code_memory.hpp"
#include "control_slice.hpp"
#include "liveness.hpp"
#include "plan.hpp"
#include "regions.hpp"

namespace poplar {
namespace core {

// Marks a relocation's target as an offset in the state image, whose address is not known yet.
constexpr Address relocationInState = Address(1) << 63;

// Builds runs from pairs of pieces in order, merging what is contiguous or regular.
class RunBuilder {
public:
  explicit RunBuilder(std::vector<Run> &out) : out_(out), first_(out.size()) {}
  void add(Address dst, Address src, std::uint64_t bytes);

private:
  std::vector<Run> &out_;
  std::size_t first_; // runs before it were there already
};

class Compiler {
public:
  Compiler(const GraphImpl &graph, const OptionFlags &options);
  std::shared_ptr<ExecutableImpl> compile(ArrayRef<program::Program> programs,
                                          const ProgressFunc &progress);

private:
  using StepCount = sparq::emulator::StepCount;
  using ExchangeCount = sparq::emulator::ExchangeCount;
  using LocalCopy = sparq::emulator::LocalCopy;

  // compile.cpp
  void layOutVariables();
  Step compileProgram(const program::Program &p, const std::string &parent);
  Step compileExecute(const ProgramImpl &p, const std::string &parent);
  Step compileCall(const ProgramImpl &p, const std::string &name);
  Step compileWriteUndef(const ProgramImpl &p);
  Step compileSync(const std::string &name);
  Step compilePrint(const ProgramImpl &p);
  Step compileCycleStamp(const ProgramImpl &p);
  void setPredicate(Step &s, const Tensor &t, const char *op);
  static void insertIPU(unsigned ipu, std::vector<unsigned> &ipus);
  void branchOn(Step &s, const Tensor &t, const char *op, const std::string &name);
  void addIPUs(const Step &s, std::vector<unsigned> &ipus) const;
  void tellIPUs(const Step &branch);
  bool startsBeside(const StepCount &copy);
  unsigned addCost(StepCount c);
  void checkMapped(const Tensor &t, const std::string &what) const;
  [[noreturn]] void throwUnmapped(const std::string &what, VarId var, std::size_t element) const;
  Address allocate(std::uint64_t bytes, std::uint64_t align);
  Address addressOf(VarId var, std::size_t element) const;
  void compileHostTensors();

  // compile_copies.cpp
  Step compileCopy(const ProgramImpl &p, const std::string &name);
  Step compileStream(const ProgramImpl &p, const std::string &name);
  Step compileRemote(const ProgramImpl &p, const std::string &name);
  std::vector<Run> packRuns(const Tensor &t) const;
  void claimRemote(const RemoteBufferInfo &buffer, const Tensor &t, const std::string &what);
  void checkStreamingMemory() const;
  std::uint64_t accountTransfer(const Tensor &t, std::size_t rowElements, const Tensor &offsets);

  // compile_vertices.cpp
  void compileComputeSet(unsigned id);
  void checkVertex(const VertexRecord &v, const ComputeSetRecord &cs) const;
  ComputeSetUse checkConflicts(const ComputeSetRecord &cs);
  struct EdgePlace {
    Address at;
    std::size_t count;
    bool buffered; // in a buffer of the vertex, not in the variable
  };
  EdgePlace placeEdge(const VertexRecord &v, const FieldRecord &f, const Tensor &t,
                      ComputeSetPlan &plan);
  EdgePlace placeEdge(const VertexRecord &v, const FieldRecord &f, std::size_t element,
                      ComputeSetPlan &plan);
  Address allocateEdge(std::uint64_t bytes, std::uint64_t align);
  void addWritten(const VertexRecord &v, const FieldRecord &f, const std::string &name, Address at,
                  std::uint64_t bytes, ComputeSetPlan &plan) const;
  void writePointer(std::uint64_t at, Address target);
  void writeCount(std::uint64_t at, std::size_t count);

  // accounting.cpp
  unsigned ipuOf(unsigned tile) const { return tile / g_.target.getTilesPerIPU(); }
  std::string nameOfTile(unsigned tile) const;
  void addIPUs(const Tensor &t, std::vector<unsigned> &ipus) const;
  void addLinks(const std::vector<Move> &moves, StepCount &cost) const;
  std::vector<MovedOfTile> byTile(std::vector<Move> &moves);
  void land(const std::vector<MovedOfTile> &moved);
  ExchangeCount exchange(const std::vector<MovedOfTile> &moved);
  void addLocal(unsigned tile, std::uint64_t elements, std::uint64_t bytes);
  LocalCopy takeLocal();
  void addComputeCost(const ComputeSetRecord &cs, StepCount &cost);
  void accountTemporaries();
  void checkCodeFits() const;
  void accountMemory(ArrayRef<program::Program> programs);

  const GraphImpl &g_;
  std::shared_ptr<ExecutableImpl> exe_;
  std::map<unsigned, unsigned> computeSetPlans_;  // id -> index of plan
  std::map<unsigned, StepCount> computeSetCosts_; // by id
  std::vector<ComputeSetUse> computeSetUses_;     // by id
  std::set<const VertexRecord *> inPlace_;        // with elements that are Output and Input
  std::map<unsigned, unsigned> functionPlans_;
  std::unique_ptr<ControlSlice> slice_; // of a dry run
  std::vector<unsigned> functionStack_;
  // The last remote copies, with nothing in between, that go on at once: direction and IPUs of
  // each.
  std::vector<std::pair<sparq::emulator::StepKind, std::vector<unsigned>>> copiesAtOnce_;
  std::vector<bool> remoteClaimed_; // by remote buffer: a copy has said whose it is
  const bool guardEdges_, checkWorkers_, checkAlignment_;
  const bool recordsTiles_; // cycles of each tile, for a trace
  // Temporaries of the compute set or copy being compiled, and the most any one needed, per tile.
  std::vector<std::uint64_t> temporaries_, maxTemporaries_;
  std::map<unsigned, LocalCopy> local_; // of the step being compiled, by tile
  std::vector<std::uint64_t> vertexStateBytes_;
  CodeMemory code_;
  std::vector<std::size_t> placeByTile_; // used in `byTile` alone
};

void checkEngineOptions(const OptionFlags &options);

// trace.cpp
constexpr const char *traceOption = "autoReport.directory";
// Made where the option or the environment says; empty: no trace is written.
std::string traceDirectory(const OptionFlags &options);

} // namespace core
} // namespace poplar
