// SPDX-License-Identifier: Apache-2.0
// Programs to steps; where everything lies in the block of device memory.
#include <sparq_emulator/Trace.hpp>

#include <cstring>

#include "compiler.hpp"
#include "links.hpp"
#include "reads.hpp"

namespace poplar {
namespace core {

namespace {
constexpr std::uint64_t variableAlign = 64;
// Between variables, so that AddressSanitizer sees overruns.
constexpr std::uint64_t redZone = 64;
} // namespace

void poison(void *p, const Type &type, std::uint64_t bytes) {
  auto *b = static_cast<unsigned char *>(p);
  auto fill = [&](const void *pattern, std::size_t n) {
    std::uint64_t i = 0;
    for (; i < bytes && i < n; ++i)
      b[i] = static_cast<const unsigned char *>(pattern)[i];
    while (i < bytes) { // doubling
      const std::uint64_t m = std::min(i - i % n, bytes - i);
      std::memcpy(b + i, b, m);
      i += m;
    }
  };
  const std::uint16_t halfNaN = 0x7cbd, shortWord = 0xbaad;
  const std::uint32_t floatNaN = 0x7fadbead, word = 0xbaadf00d;
  if (type == FLOAT)
    fill(&floatNaN, 4);
  else if (type == HALF)
    fill(&halfNaN, 2);
  else if (typeSize(type) == 1)
    std::memset(p, 0xa5, bytes);
  else if (typeSize(type) == 2)
    fill(&shortWord, 2);
  else
    fill(&word, 4);
}

Compiler::Compiler(const GraphImpl &graph, const OptionFlags &options)
    : g_(graph), exe_(std::make_shared<ExecutableImpl>()),
      guardEdges_(isAskedFor("SPARQ_EMULATOR_GUARD")),
      checkWorkers_(isAskedFor("SPARQ_EMULATOR_CHECK_WORKERS")),
      checkAlignment_(isAskedFor("SPARQ_EMULATOR_CHECK_ALIGNMENT")),
      recordsTiles_(!traceDirectory(options).empty() || sparq::emulator::recordsTiles()),
      code_(graph.target.getNumTiles()) {
  exe_->target = graph.device;
  exe_->replication = graph.replication;
  exe_->options = options;
  readJSONFromEnv("POPLAR_ENGINE_OPTIONS", exe_->options);
  exe_->zeros = fillsWithZeros();
  exe_->reportsReads = isAskedFor("SPARQ_EMULATOR_REPORT_READS");
  exe_->libraries = graph.libraries;
  exe_->streams = graph.streamList;
  exe_->remotes = graph.remoteList;
  exe_->remoteIPUs.assign(graph.remoteList.size(), 0);
  remoteClaimed_.assign(graph.remoteList.size(), false);
  const unsigned tiles = graph.target.getNumTiles();
  temporaries_.assign(tiles, 0);
  maxTemporaries_.assign(tiles, 0);
  placeByTile_.assign(tiles, 0);
  vertexStateBytes_.assign(tiles, 0);
}

Address Compiler::allocate(std::uint64_t bytes, std::uint64_t align) {
  const Address at = (exe_->arenaBytes + align - 1) / align * align;
  exe_->arenaBytes = at + bytes;
  return at;
}

Address Compiler::addressOf(VarId var, std::size_t element) const {
  const VariablePlan &v = exe_->variables[var];
  return v.at + element * typeSize(v.type);
}

void Compiler::layOutVariables() {
  for (const Variable &v : g_.variables) {
    VariablePlan p;
    p.controls = slice_ && slice_->needs(static_cast<VarId>(exe_->variables.size()));
    p.name = v.name;
    p.type = v.type;
    p.bytes = v.numElements * typeSize(v.type);
    p.at = allocate(p.bytes + redZone, variableAlign);
    p.data = v.data;
    if (!slice_ || p.controls)
      p.initial = v.initial;
    exe_->variables.push_back(std::move(p));
  }
}

void Compiler::throwUnmapped(const std::string &what, VarId var, std::size_t element) const {
  const Variable &v = g_.variables[var];
  throw errors::unmapped(what + ": every element must be mapped to a tile, got none for element " +
                         std::to_string(element) + " of " + std::to_string(v.numElements) + " of " +
                         (v.constant ? "constant '" : "variable '") + v.name + "'");
}

void Compiler::checkMapped(const Tensor &t, const std::string &what) const {
  VarId var = 0;
  std::size_t element = 0;
  if (findUnmapped(t, var, element))
    throwUnmapped(what, var, element);
}

// Poplar merges copies of streaming memory that follow one another: those of several IPUs then go
// on at once.
bool Compiler::startsBeside(const StepCount &copy) {
  if (copy.kind != sparq::emulator::StepKind::RemoteRead &&
      copy.kind != sparq::emulator::StepKind::RemoteWrite) {
    copiesAtOnce_.clear();
    return false;
  }
  bool beside = !copiesAtOnce_.empty();
  for (const auto &other : copiesAtOnce_)
    beside = beside && other.first == copy.kind && other.second != copy.ipus;
  if (!beside)
    copiesAtOnce_.clear();
  copiesAtOnce_.emplace_back(copy.kind, copy.ipus);
  return beside;
}

// All steps that take time on a tile come here, each once; but for branches, whose code is counted
// by itself.
unsigned Compiler::addCost(StepCount c) {
  code_.addStep();
  c.beside = startsBeside(c);
  exe_->costs.push_back(std::move(c));
  return static_cast<unsigned>(exe_->costs.size() - 1);
}

void Compiler::setPredicate(Step &s, const Tensor &t, const char *op) {
  checkMapped(t, op);
  const std::vector<Piece> p = regionsOf(t);
  s.hasPredicate = true;
  s.predicate = addressOf(p[0].var, p[0].begin);
  s.predicateBytes = static_cast<unsigned>(typeSize(t.elementType()));
}

// All tiles branch, so all are told.
void Compiler::branchOn(Step &s, const Tensor &t, const char *op, const std::string &name) {
  setPredicate(s, t, op);
  const unsigned nTiles = g_.target.getTilesPerIPU();
  StepCount cost;
  cost.name = name;
  cost.kind = sparq::emulator::StepKind::Branch;
  addIPUs(t, cost.ipus);
  if (nTiles > 1) {
    ExchangeCount &word = cost.before;
    cost.exchanges = cost.syncs = 1;
    word.maxBytesIn = word.maxBytesOut = word.maxBytes = word.bytesOut = word.busyBytes = 4;
    word.bytesIn = 4 * std::uint64_t(nTiles - 1);
    word.busyPieces = 1;
  }
  s.cost = static_cast<unsigned>(exe_->costs.size());
  exe_->costs.push_back(std::move(cost));
}

// Those that take part in any step of it.
void Compiler::addIPUs(const Step &s, std::vector<unsigned> &ipus) const {
  if (s.cost != ~0u)
    for (const unsigned ipu : exe_->costs[s.cost].ipus)
      insertIPU(ipu, ipus);
  for (const Step &child : s.children)
    addIPUs(child, ipus);
  if (s.op == StepOp::Call)
    addIPUs(exe_->functions[s.index], ipus);
}

// Of all IPUs that do what depends on it: the word crosses links.
void Compiler::tellIPUs(const Step &branch) {
  if (g_.target.getNumIPUs() == 1)
    return;
  StepCount &cost = exe_->costs[branch.cost];
  const unsigned from = cost.ipus.at(0);
  for (const Step &child : branch.children)
    addIPUs(child, cost.ipus);
  IpuFlows flows;
  for (const unsigned ipu : cost.ipus)
    if (ipu != from)
      flows[{from, ipu}] = 4;
  addLinkExchange(flows, g_.target.getNumIPUs(), cost.links);
}

Step Compiler::compileExecute(const ProgramImpl &p, const std::string &parent) {
  const unsigned id = p.computeSet.getId();
  if (id >= g_.computeSets.size())
    throw errors::unknown_program_object("Execute: compute set must be one of this graph's " +
                                         std::to_string(g_.computeSets.size()) + ", got id " +
                                         std::to_string(id));
  Step s;
  s.op = StepOp::Compute;
  s.index = computeSetPlans_.at(id);
  StepCount cost = computeSetCosts_.at(id);
  if (!p.name.empty())
    cost.name = p.name;
  else if (cost.name.empty())
    cost.name = parent;
  s.cost = addCost(std::move(cost));
  s.controls = slice_ && slice_->contains(id);
  if (p.predicate.valid())
    setPredicate(s, p.predicate, "Execute");
  return s;
}

Step Compiler::compileCall(const ProgramImpl &p, const std::string &name) {
  const unsigned id = p.function.getId();
  if (id >= g_.functions.size())
    throw errors::unknown_program_object("Call: function must be one of this graph's " +
                                         std::to_string(g_.functions.size()) + ", got id " +
                                         std::to_string(id));
  for (unsigned f : functionStack_)
    if (f == id)
      throw errors::function_calls_itself("Call: a function must not call itself, got function " +
                                          std::to_string(id));
  Step s;
  code_.addBranch(1);
  s.op = StepOp::Call;
  auto it = functionPlans_.find(id);
  if (it == functionPlans_.end()) {
    functionStack_.push_back(id);
    Step body = compileProgram(g_.functions[id], name);
    functionStack_.pop_back();
    it = functionPlans_.emplace(id, static_cast<unsigned>(exe_->functions.size())).first;
    exe_->functions.push_back(std::move(body));
    copiesAtOnce_.clear();
  }
  s.index = it->second;
  return s;
}

Step Compiler::compileWriteUndef(const ProgramImpl &p) {
  if (p.dst.containsConstant())
    throw errors::copy_destination("WriteUndef: tensor must not be constant, got " +
                                   tensorName(p.dst));
  Step s;
  s.op = StepOp::Poison;
  s.index = static_cast<unsigned>(exe_->poisons.size());
  s.controls = slice_ && slice_->writes(p.dst);
  std::vector<Span> spans;
  const std::size_t size = typeSize(p.dst.elementType());
  forEachRegion(Access::impl(p.dst), [&](VarId v, std::size_t b, std::size_t n) {
    spans.push_back({addressOf(v, b), n * size, p.dst.elementType()});
  });
  exe_->poisons.push_back(std::move(spans));
  return s;
}

Step Compiler::compileSync(const std::string &name) {
  Step s;
  s.op = StepOp::Sync;
  StepCount cost;
  cost.name = name;
  cost.kind = sparq::emulator::StepKind::Sync;
  cost.syncs = 1;
  for (unsigned ipu = 0; ipu != g_.target.getNumIPUs(); ++ipu)
    cost.ipus.push_back(ipu);
  s.cost = addCost(cost);
  return s;
}

Step Compiler::compilePrint(const ProgramImpl &p) {
  Step s;
  s.op = p.kind == ProgramKind::Print ? StepOp::Print : StepOp::Error;
  s.index = static_cast<unsigned>(exe_->prints.size());
  // A dry run knows that it gets to an error, but not what a condition may depend on.
  s.controls = slice_ && s.op == StepOp::Error && !p.flag;
  PrintPlan plan;
  plan.title = p.title;
  plan.format = p.format;
  plan.isError = p.kind == ProgramKind::Error;
  plan.hasTensor = p.src.valid();
  if (plan.hasTensor) {
    checkMapped(p.src, "PrintTensor");
    plan.type = p.src.elementType();
    plan.shape = p.src.shape();
    plan.runs = packRuns(p.src);
  }
  exe_->prints.push_back(std::move(plan));
  if (p.flag)
    setPredicate(s, p.predicate, "AbortOnCondition");
  return s;
}

Step Compiler::compileCycleStamp(const ProgramImpl &p) {
  Step s;
  s.op = StepOp::CycleStamp;
  s.controls = slice_ && slice_->writes(p.dst);
  const std::vector<Piece> at = regionsOf(p.dst);
  s.value = addressOf(at[0].var, at[0].begin);
  if (p.src.valid()) {
    const std::vector<Piece> since = regionsOf(p.src);
    s.hasPredicate = true;
    s.predicate = addressOf(since[0].var, since[0].begin);
  }
  return s;
}

Step Compiler::compileProgram(const program::Program &program, const std::string &parent) {
  Step s;
  const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
  if (!impl)
    return s;
  const ProgramImpl &p = *impl;
  const std::string &name = p.name.empty() ? parent : p.name;
  auto children = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      s.children.push_back(compileProgram(p.children[i], name));
      if (p.kind != ProgramKind::Sequence)
        copiesAtOnce_.clear();
    }
  };
  const bool copiesGoOn = p.kind == ProgramKind::Sequence || p.kind == ProgramKind::WriteUndef ||
                          p.kind == ProgramKind::CopyFromRemote ||
                          p.kind == ProgramKind::CopyToRemote;
  if (!copiesGoOn)
    copiesAtOnce_.clear();
  switch (p.kind) {
  case ProgramKind::Nothing:
    return s;
  case ProgramKind::Sequence:
    children(0, p.children.size());
    return s;
  case ProgramKind::Execute:
    return compileExecute(p, parent);
  case ProgramKind::Repeat:
    code_.addBranch(1);
    s.op = StepOp::Repeat;
    s.count = p.count;
    children(0, 1);
    return s;
  case ProgramKind::While:
    code_.addBranch(2);
    s.op = StepOp::While;
    s.flag = p.flag;
    branchOn(s, p.predicate, p.flag ? "RepeatWhileTrue" : "RepeatWhileFalse", name);
    children(0, 2);
    tellIPUs(s);
    return s;
  case ProgramKind::If:
    code_.addBranch(2);
    s.op = StepOp::If;
    branchOn(s, p.predicate, "If", name);
    children(0, 2);
    tellIPUs(s);
    return s;
  case ProgramKind::Switch:
    code_.addBranch(p.children.size());
    s.op = StepOp::Switch;
    s.cases = p.cases;
    s.checked = p.checked;
    branchOn(s, p.predicate, "Switch", name);
    children(0, p.children.size());
    tellIPUs(s);
    return s;
  case ProgramKind::CopyTensor:
    s = compileCopy(p, name);
    s.controls = slice_ && slice_->writes(p.dst);
    return s;
  case ProgramKind::CopyFromStream:
  case ProgramKind::CopyToStream:
    return compileStream(p, name);
  case ProgramKind::CopyFromRemote:
  case ProgramKind::CopyToRemote:
    return compileRemote(p, name);
  case ProgramKind::WriteUndef:
    return compileWriteUndef(p);
  case ProgramKind::Sync:
    return compileSync(name);
  case ProgramKind::Call:
    return compileCall(p, name);
  case ProgramKind::Print:
  case ProgramKind::Error:
    return compilePrint(p);
  case ProgramKind::CycleStamp:
    return compileCycleStamp(p);
  }
  throwUnknown("compile: class of program", p.kind);
}

void Compiler::compileHostTensors() {
  auto compile = [&](const std::map<std::string, Tensor> &from,
                     std::map<std::string, HostTensorPlan> &to, const char *op) {
    for (const auto &h : from) {
      checkMapped(h.second, std::string(op) + " '" + h.first + "'");
      HostTensorPlan p;
      p.type = h.second.elementType();
      p.bytes = h.second.numElements() * typeSize(p.type);
      p.runs = packRuns(h.second);
      p.controls = slice_ && slice_->writes(h.second);
      to.emplace(h.first, std::move(p));
    }
  };
  compile(g_.hostWrites, exe_->hostWrites, "createHostWrite");
  compile(g_.hostReads, exe_->hostReads, "createHostRead");
}

std::shared_ptr<ExecutableImpl> Compiler::compile(ArrayRef<program::Program> programs,
                                                  const ProgressFunc &progress) {
  auto report = [&](int step) {
    if (progress)
      progress(step, 4);
  };
  checkEngineOptions(exe_->options);
  report(0);
  exe_->dry = sparq::emulator::DryRun::active();
  if (exe_->dry)
    slice_.reset(new ControlSlice(g_, programs));
  layOutVariables();
  exe_->stateAt = allocate(0, variableAlign);
  for (unsigned id = 0; id < g_.computeSets.size(); ++id)
    compileComputeSet(id);
  // Vertex state goes after everything else: its size is known only now.
  exe_->stateAt = allocate(exe_->stateImage.size() + redZone, variableAlign);
  for (ComputeSetPlan &cs : exe_->computeSets) {
    for (VertexPlan &v : cs.vertices)
      v.state += exe_->stateAt;
    for (Written &w : cs.written)
      if (w.direction == codelet_abi::Direction::State)
        w.at += exe_->stateAt;
  }
  for (Relocation &r : exe_->relocations)
    if (r.target & relocationInState)
      r.target = (r.target & ~relocationInState) + exe_->stateAt;
  report(1);
  for (const program::Program &p : programs)
    exe_->programs.push_back(compileProgram(p, ""));
  checkStreamingMemory();
  report(2);
  compileHostTensors();
  report(3);
  accountMemory(programs);
  report(4);
  return exe_;
}

} // namespace core

Executable compileGraph(const Graph &graph, ArrayRef<program::Program> progs,
                        const OptionFlags &opt, ProgressFunc progressCallBack,
                        const DebugContext &) {
  core::Compiler compiler(core::Access::impl(graph), opt);
  return core::Access::makeExecutable(compiler.compile(progs, progressCallBack));
}

} // namespace poplar
