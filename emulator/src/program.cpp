// SPDX-License-Identifier: Apache-2.0
// Construction of programs; what they mean is checked when the graph is compiled.
#include <poplar/Program.hpp>

#include <poplar/CSRFunctions.hpp>
#include <poplar/CycleCount.hpp>

#include "core.hpp"
#include "program_impl.hpp"

namespace poplar {
namespace program {

using core::Access;
using core::ProgramImpl;
using core::ProgramKind;

Program::Program() = default;
Program::~Program() = default;

bool Program::isEmpty() const {
  if (!impl || impl->kind == ProgramKind::Nothing)
    return true;
  if (impl->kind != ProgramKind::Sequence)
    return false;
  for (const Program &p : impl->children)
    if (!p.isEmpty())
      return false;
  return true;
}

namespace {

std::shared_ptr<ProgramImpl> make(ProgramKind kind, const DebugContext &dc) {
  auto p = std::make_shared<ProgramImpl>();
  p->kind = kind;
  p->name = dc.getPathName();
  return p;
}

// Programs are values: a node that other programs hold too is copied before it changes.
ProgramImpl &unshare(std::shared_ptr<ProgramImpl> &p) {
  if (p.use_count() > 1)
    p = std::make_shared<ProgramImpl>(*p);
  return *p;
}

void checkScalar(const char *op, const char *what, const Tensor &t) {
  if (t.rank() != 0)
    throw errors::bad_control(std::string(op) + ": " + what +
                              " must be a scalar (shape {}), got shape " + t.shapeToString() +
                              " of tensor " + core::tensorName(t));
}

void checkPredicate(const char *op, const Tensor &t) {
  checkScalar(op, "predicate", t);
  const Type type = t.elementType();
  if (type != BOOL && type != INT && type != UNSIGNED_INT && type != SHORT &&
      type != UNSIGNED_SHORT && type != CHAR && type != UNSIGNED_CHAR && type != SIGNED_CHAR)
    throw errors::bad_control(std::string(op) + ": predicate must be bool or an integer, got " +
                              type.toString().str());
}

void checkControl(const Tensor &t) {
  checkScalar("Switch", "control", t);
  if (t.elementType() != INT && t.elementType() != UNSIGNED_INT)
    throw errors::bad_control("Switch: control must be int or unsigned int, got " +
                              t.elementType().toString().str());
}

} // namespace

Execute::Execute(ComputeSet cs, const DebugContext &dc) {
  impl = make(ProgramKind::Execute, dc);
  impl->computeSet = cs;
}

Execute::Execute(ComputeSet cs, Tensor outPredicate, const DebugContext &dc) : Execute(cs, dc) {
  checkScalar("Execute", "outPredicate", outPredicate);
  if (outPredicate.elementType() != BOOL)
    throw errors::bad_control("Execute: outPredicate must be bool, got " +
                              outPredicate.elementType().toString().str());
  impl->predicate = std::move(outPredicate);
}

Sequence::Sequence() : Sequence(DebugContext()) {}
Sequence::Sequence(const DebugContext &dc) { impl = make(ProgramKind::Sequence, dc); }
Sequence::Sequence(std::initializer_list<Program> programs, const DebugContext &dc) : Sequence(dc) {
  for (const Program &p : programs)
    add(p);
}

void Sequence::add(const Program &p) {
  const Program held = p; // p may be this sequence
  unshare(impl).children.push_back(held);
}

Repeat::Repeat(unsigned count, const Program &prog, const DebugContext &dc) {
  impl = make(ProgramKind::Repeat, dc);
  impl->count = count;
  impl->children = {prog};
}

RepeatWhileFalse::RepeatWhileFalse(const Program &cond, Tensor predicate, const Program &body,
                                   const DebugContext &dc) {
  checkPredicate("RepeatWhileFalse", predicate);
  impl = make(ProgramKind::While, dc);
  impl->predicate = std::move(predicate);
  impl->children = {cond, body};
  impl->flag = false;
}

RepeatWhileTrue::RepeatWhileTrue(const Program &cond, Tensor predicate, const Program &body,
                                 const DebugContext &dc) {
  checkPredicate("RepeatWhileTrue", predicate);
  impl = make(ProgramKind::While, dc);
  impl->predicate = std::move(predicate);
  impl->children = {cond, body};
  impl->flag = true;
}

If::If(Tensor predicate, const Program &trueBody, const Program &falseBody,
       const DebugContext &dc) {
  checkPredicate("If", predicate);
  impl = make(ProgramKind::If, dc);
  impl->predicate = std::move(predicate);
  impl->children = {trueBody, falseBody};
}

Switch::Switch(Tensor control, const std::vector<std::pair<std::int32_t, Program>> &cases,
               const DebugContext &dc)
    : Switch(std::move(control), cases, Sequence(), dc) {}

Switch::Switch(Tensor control, const std::vector<std::pair<std::int32_t, Program>> &cases,
               const Program &defaultCaseBody, const DebugContext &dc) {
  checkControl(control);
  impl = make(ProgramKind::Switch, dc);
  impl->predicate = std::move(control);
  impl->children = {defaultCaseBody};
  for (const auto &c : cases)
    add(c.first, c.second);
}

Switch::Switch(Tensor control, const DebugContext &dc)
    : Switch(std::move(control), std::vector<std::pair<std::int32_t, Program>>(), dc) {}
Switch::Switch(Tensor control, const Program &defaultCaseBody, const DebugContext &dc)
    : Switch(std::move(control), std::vector<std::pair<std::int32_t, Program>>(), defaultCaseBody,
             dc) {}

Switch &Switch::add(std::int32_t caseNumber, const Program &body) {
  ProgramImpl &p = unshare(impl);
  for (std::int32_t c : p.cases)
    if (c == caseNumber)
      throw errors::bad_control("Switch: case values must be unique, got " +
                                std::to_string(caseNumber) + " again");
  p.cases.push_back(caseNumber);
  p.children.push_back(body); // children[0] is the default
  return *this;
}

Switch Switch::switchWithBoundsChecking(Tensor control,
                                        const std::vector<std::pair<std::int32_t, Program>> &cases,
                                        const DebugContext &dc) {
  Switch s(std::move(control), cases, dc);
  s.impl->checked = true;
  return s;
}

Switch Switch::switchWithUnreachableDefault(Tensor control, const DebugContext &dc) {
  Switch s(std::move(control), dc);
  s.impl->checked = true; // unreachable on the device: here it is seen
  return s;
}

Copy::Copy(Tensor src, Tensor dst, bool, const DebugContext &dc) {
  impl = make(ProgramKind::CopyTensor, dc);
  impl->src = std::move(src);
  impl->dst = std::move(dst);
}

Copy::Copy(const DataStream &stream, Tensor dst, bool, const DebugContext &dc) {
  impl = make(ProgramKind::CopyFromStream, dc);
  impl->stream = stream;
  impl->dst = std::move(dst);
}

Copy::Copy(Tensor src, const DataStream &stream, bool, const DebugContext &dc) {
  impl = make(ProgramKind::CopyToStream, dc);
  impl->stream = stream;
  impl->src = std::move(src);
}

Copy::Copy(const RemoteBuffer &buffer, Tensor dst, const DebugContext &dc)
    : Copy(buffer, std::move(dst), Tensor(), dc) {}
Copy::Copy(const RemoteBuffer &buffer, Tensor dst, Tensor offset, const DebugContext &dc) {
  impl = make(ProgramKind::CopyFromRemote, dc);
  impl->remote = buffer;
  impl->dst = std::move(dst);
  impl->offset = std::move(offset);
}

Copy::Copy(Tensor src, const RemoteBuffer &buffer, const DebugContext &dc)
    : Copy(std::move(src), buffer, Tensor(), dc) {}
Copy::Copy(Tensor src, const RemoteBuffer &buffer, Tensor offset, const DebugContext &dc) {
  impl = make(ProgramKind::CopyToRemote, dc);
  impl->remote = buffer;
  impl->src = std::move(src);
  impl->offset = std::move(offset);
}

CrossReplicaCopy::CrossReplicaCopy(Tensor src, Tensor dst, std::map<unsigned, unsigned> replicaMap,
                                   const DebugContext &dc) {
  impl = make(ProgramKind::CopyTensor, dc); // which it is where there is one replica
  impl->replicaMap = std::move(replicaMap);
  impl->src = std::move(src);
  impl->dst = std::move(dst);
}

WriteUndef::WriteUndef(Tensor t, const DebugContext &dc) {
  impl = make(ProgramKind::WriteUndef, dc);
  impl->dst = std::move(t);
}

AssumeEqualAcrossReplicas::AssumeEqualAcrossReplicas(Tensor, const DebugContext &dc) {
  impl = make(ProgramKind::Nothing, dc);
}

Block::Block(const Program &p, const DebugContext &dc) {
  impl = make(ProgramKind::Sequence, dc);
  impl->children = {p};
}

Sync::Sync(SyncType, const DebugContext &dc) { impl = make(ProgramKind::Sync, dc); }

Call::Call(Function f, const DebugContext &dc) {
  impl = make(ProgramKind::Call, dc);
  impl->function = f;
}

PrintTensor::PrintTensor(Tensor t, const PrintTensorFmt &fmt, const DebugContext &dc)
    : PrintTensor(StringRef(dc.getPathName()), t, fmt, dc) {}
PrintTensor::PrintTensor(StringRef title, Tensor t, const PrintTensorFmt &fmt,
                         const DebugContext &dc) {
  impl = make(ProgramKind::Print, dc);
  impl->title = title.str();
  impl->src = std::move(t);
  impl->format = fmt;
}
PrintTensor::PrintTensor(Tensor t, const DebugContext &dc)
    : PrintTensor(std::move(t), PrintTensorFmt(1000), dc) {}
PrintTensor::PrintTensor(StringRef title, Tensor t, const DebugContext &dc)
    : PrintTensor(title, std::move(t), PrintTensorFmt(1000), dc) {}

ErrorProgram::ErrorProgram(StringRef message, Tensor debugTensor, const DebugContext &dc) {
  impl = make(ProgramKind::Error, dc);
  impl->title = message.str();
  impl->src = std::move(debugTensor);
}

Abort::Abort(const DebugContext &dc) : Abort("Abort program executed", dc) {}
Abort::Abort(const std::string &message, const DebugContext &dc) {
  impl = make(ProgramKind::Error, dc);
  impl->title = message;
}

AbortOnCondition::AbortOnCondition(Tensor predicate, const DebugContext &dc)
    : AbortOnCondition(std::move(predicate), "AbortOnCondition program executed", dc) {}
AbortOnCondition::AbortOnCondition(Tensor predicate, const std::string &message,
                                   const DebugContext &dc) {
  checkPredicate("AbortOnCondition", predicate);
  impl = make(ProgramKind::Error, dc);
  impl->title = message;
  impl->predicate = std::move(predicate);
  impl->flag = true;
}

} // namespace program

namespace {

// A step that writes the modelled cycles so far; minus those in `since` when given.
program::Program stamp(const Tensor &dst, const Tensor &since, const DebugContext &dc) {
  program::Program p;
  auto impl = std::make_shared<core::ProgramImpl>();
  impl->kind = core::ProgramKind::CycleStamp;
  impl->name = dc.getPathName();
  impl->dst = dst;
  impl->src = since;
  core::Access::setImpl(p, std::move(impl));
  return p;
}

} // namespace

Tensor cycleStamp(Graph &graph, program::Sequence &prog, unsigned tile, SyncType,
                  const DebugContext &dc) {
  Tensor t = graph.addVariable(UNSIGNED_INT, {2}, {dc, "cycleStamp"});
  graph.setTileMapping(t, tile);
  prog.add(stamp(t, Tensor(), dc));
  return t;
}

std::vector<Tensor> cycleStamp(Graph &graph, program::Sequence &prog,
                               const std::vector<unsigned> &tiles, SyncType syncType,
                               const DebugContext &dc) {
  std::vector<Tensor> r;
  for (unsigned tile : tiles)
    r.push_back(cycleStamp(graph, prog, tile, syncType, dc));
  return r;
}

Tensor cycleCount(Graph &graph, program::Sequence &prog, unsigned tile, SyncType,
                  const DebugContext &dc) {
  Tensor start = graph.addVariable(UNSIGNED_INT, {2}, {dc, "cycleCountStart"});
  Tensor count = graph.addVariable(UNSIGNED_INT, {2}, {dc, "cycleCount"});
  graph.setTileMapping(start, tile);
  graph.setTileMapping(count, tile);
  program::Sequence timed;
  timed.add(stamp(start, Tensor(), dc));
  timed.add(prog);
  timed.add(stamp(count, start, dc));
  prog = timed;
  return count;
}

} // namespace poplar
