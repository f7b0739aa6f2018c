// SPDX-License-Identifier: Apache-2.0
// Program trees as the user built them.
#pragma once

#include <poplar/Program.hpp>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace poplar {
namespace core {

enum class ProgramKind {
  Sequence,
  Execute,
  Repeat,
  While,
  If,
  Switch,
  CopyTensor,
  CopyFromStream,
  CopyToStream,
  CopyFromRemote,
  CopyToRemote,
  WriteUndef,
  Sync,
  Call,
  Print,
  Error, // unconditional, or where `predicate` is true
  CycleStamp,
  Nothing
};

struct ProgramImpl {
  ProgramKind kind = ProgramKind::Nothing;
  std::string name; // debug path
  // Sequence: in order. Repeat: the body. While: the condition, the body. If: true, false.
  // Switch: the default, then one for each of `cases`.
  std::vector<program::Program> children;
  std::vector<std::int32_t> cases;
  ComputeSet computeSet;
  Function function;
  unsigned count = 0;
  bool flag = false;    // While: loops while the predicate is this. Error: is conditional
  bool checked = false; // Switch: a control value without a case is an error
  std::map<unsigned, unsigned> replicaMap; // such a copy's
  Tensor src, dst, offset, predicate;
  DataStream stream;
  RemoteBuffer remote;
  std::string title;
  PrintTensorFmt format;
};

} // namespace core
} // namespace poplar
