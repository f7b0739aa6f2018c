// SPDX-License-Identifier: Apache-2.0
#include <sparq_emulator/Counters.hpp>

#include "engine_impl.hpp"

namespace sparq {
namespace emulator {

using poplar::core::Access;

const char *toString(StepKind kind) {
  switch (kind) {
  case StepKind::Compute:
    return "compute";
  case StepKind::Copy:
    return "copy";
  case StepKind::RemoteRead:
    return "remote-read";
  case StepKind::RemoteWrite:
    return "remote-write";
  case StepKind::StreamIn:
    return "stream-in";
  case StepKind::StreamOut:
    return "stream-out";
  case StepKind::Sync:
    return "sync";
  case StepKind::Branch:
    return "branch";
  }
  poplar::core::throwUnknown("toString: kind of step", kind);
}

static std::vector<StepCount> stepsThatRan(const std::vector<StepCount> &costs,
                                           const std::vector<std::uint64_t> &executions) {
  std::vector<StepCount> r;
  for (std::size_t i = 0; i < executions.size(); ++i) {
    if (!executions[i])
      continue;
    r.push_back(costs[i]);
    r.back().executions = executions[i];
  }
  return r;
}

std::vector<StepCount> lastRun(const poplar::Engine &engine) {
  const poplar::core::EngineImpl &e = Access::impl(engine);
  return stepsThatRan(e.exe->costs, e.executions);
}

std::vector<StepCount> allRuns(const poplar::Engine &engine) {
  const poplar::core::EngineImpl &e = Access::impl(engine);
  return stepsThatRan(e.exe->costs, e.profiled);
}

HostCalls hostCalls(const poplar::Engine &engine) { return Access::impl(engine).hostCalls; }

void requireEstimates(const std::vector<StepCount> &steps) {
  for (const StepCount &s : steps)
    if (s.verticesWithoutEstimate)
      throw poplar::errors::no_cycle_estimate(
          "every vertex must have a performance estimate, got none for " +
          std::to_string(s.verticesWithoutEstimate) + " of " + std::to_string(s.vertices) +
          " vertices of step '" + s.name + "' (" + s.vertexWithoutEstimate + ")");
}

MemoryCount memory(const poplar::Engine &engine) { return Access::impl(engine).exe->memory; }

std::vector<MemoryUse> streamingMemory(const poplar::Engine &engine) {
  std::vector<MemoryUse> r;
  const poplar::core::ExecutableImpl &exe = *Access::impl(engine).exe;
  for (const auto &b : exe.remotes)
    r.push_back({b->handle,
                 std::uint64_t(b->repeats) * b->numElements * poplar::core::typeSize(b->type),
                 exe.remoteIPUs[b->index]});
  return r;
}

static thread_local unsigned dryRuns = 0;
DryRun::DryRun() { ++dryRuns; }
DryRun::~DryRun() { --dryRuns; }
bool DryRun::active() { return dryRuns != 0; }

} // namespace emulator
} // namespace sparq
