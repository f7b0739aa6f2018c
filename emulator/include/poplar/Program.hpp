// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ArrayRef.hpp"
#include "DataStream.hpp"
#include "DebugContext.hpp"
#include "GraphElements.hpp"
#include "PrintTensor.hpp"
#include "SyncType.hpp"
#include "Tensor.hpp"

namespace poplar {

class Graph;

namespace core {
struct ProgramImpl;
struct Access;
} // namespace core

namespace program {

/// A step of control. Copies are independent values.
class Program {
public:
  Program();
  Program(const Program &) = default;
  Program(Program &&) noexcept = default;
  Program &operator=(const Program &) = default;
  Program &operator=(Program &&) noexcept = default;
  ~Program();
  bool isEmpty() const;

protected:
  friend struct core::Access;
  std::shared_ptr<core::ProgramImpl> impl;
};

/// Runs every vertex of a compute set; `outPredicate` receives the AND of what compute() returned.
class Execute : public Program {
public:
  Execute(ComputeSet cs, const DebugContext &dc = {});
  Execute(ComputeSet cs, Tensor outPredicate, const DebugContext &dc = {});
};

class Sequence : public Program {
public:
  Sequence();
  Sequence(const DebugContext &dc);
  Sequence(std::initializer_list<Program> programs, const DebugContext &dc = {});
  void add(const Program &p);
};

class Repeat : public Program {
public:
  Repeat(unsigned count, const Program &prog, const DebugContext &dc = {});
};

class RepeatWhileFalse : public Program {
public:
  RepeatWhileFalse(const Program &cond, Tensor predicate, const Program &body,
                   const DebugContext &dc = {});
};

class RepeatWhileTrue : public Program {
public:
  RepeatWhileTrue(const Program &cond, Tensor predicate, const Program &body,
                  const DebugContext &dc = {});
};

/// Not implemented in the emulator: throws.
class Loop : public Program {
public:
  Loop(const Program &body, const DebugContext &dc = {});
};

class If : public Program {
public:
  If(Tensor predicate, const Program &trueBody, const Program &falseBody,
     const DebugContext &dc = {});
};

class Switch : public Program {
public:
  Switch(Tensor control, const std::vector<std::pair<std::int32_t, Program>> &cases,
         const DebugContext &dc = {});
  Switch(Tensor control, const std::vector<std::pair<std::int32_t, Program>> &cases,
         const Program &defaultCaseBody, const DebugContext &dc = {});
  Switch(Tensor control, const DebugContext &dc = {});
  Switch(Tensor control, const Program &defaultCaseBody, const DebugContext &dc = {});
  Switch &add(std::int32_t caseNumber, const Program &body);
  static Switch switchWithBoundsChecking(Tensor control,
                                         const std::vector<std::pair<std::int32_t, Program>> &cases,
                                         const DebugContext &dc = {});
  static Switch switchWithUnreachableDefault(Tensor control, const DebugContext &dc = {});
};

/// Moves data. A string after two tensors, or after a tensor and a stream, would be taken for the
/// bool: write `Copy(src, dst, false, "name")`.
class Copy : public Program {
public:
  Copy(Tensor src, Tensor dst, bool dontOutline = false, const DebugContext &dc = {});
  Copy(const DataStream &stream, Tensor dst, bool optimiseMemory = false,
       const DebugContext &dc = {});
  Copy(Tensor src, const DataStream &stream, bool optimiseMemory = false,
       const DebugContext &dc = {});
  Copy(const RemoteBuffer &buffer, Tensor dst, const DebugContext &dc = {});
  Copy(const RemoteBuffer &buffer, Tensor dst, Tensor offset, const DebugContext &dc = {});
  Copy(Tensor src, const RemoteBuffer &buffer, const DebugContext &dc = {});
  Copy(Tensor src, const RemoteBuffer &buffer, Tensor offset, const DebugContext &dc = {});
  /// Not implemented in the emulator: throws.
  Copy(const FunctionBuffer &buffer, const Function &f, const DebugContext &dc = {});
};

class CrossReplicaCopy : public Program {
public:
  CrossReplicaCopy(Tensor src, Tensor dst, std::map<unsigned, unsigned> replicaMap,
                   const DebugContext &dc = {});
};

/// The tensor's contents are undefined from here on (poisoned).
class WriteUndef : public Program {
public:
  WriteUndef(Tensor t, const DebugContext &dc = {});
};

class AssumeEqualAcrossReplicas : public Program {
public:
  AssumeEqualAcrossReplicas(Tensor t, const DebugContext &dc = {});
};

class Block : public Program {
public:
  Block(const Program &p, const DebugContext &dc = {});
};

class Sync : public Program {
public:
  Sync(SyncType type, const DebugContext &dc = {});
};

class Call : public Program {
public:
  Call(Function f, const DebugContext &dc = {});
  /// Not implemented in the emulator: throws.
  Call(HostFunction f, ArrayRef<Tensor> inputs, ArrayRef<Tensor> outputs,
       const DebugContext &dc = {});
};

class PrintTensor : public Program {
public:
  PrintTensor(Tensor t, const PrintTensorFmt &fmt, const DebugContext &dc = {});
  PrintTensor(StringRef title, Tensor t, const PrintTensorFmt &fmt, const DebugContext &dc = {});
  PrintTensor(Tensor t, const DebugContext &dc = {});
  PrintTensor(StringRef title, Tensor t, const DebugContext &dc = {});
};

/// Prints the tensor and stops with application_runtime_error.
class ErrorProgram : public Program {
public:
  ErrorProgram(StringRef message, Tensor debugTensor, const DebugContext &dc = {});
};

class Abort : public Program {
public:
  explicit Abort(const DebugContext &dc);
  Abort(const std::string &message, const DebugContext &dc = {});
};

class AbortOnCondition : public Program {
public:
  AbortOnCondition(Tensor predicate, const DebugContext &dc = {});
  AbortOnCondition(Tensor predicate, const std::string &message, const DebugContext &dc = {});
};

/// Not implemented: the SDK's own description of a program, in JSON.
void dumpProgram(const Graph &graph, const Program &program, std::ostream &os);

} // namespace program
} // namespace poplar
