// SPDX-License-Identifier: Apache-2.0
// The public classes Engine and Executable: loading, and access from the host.
#include <poplar/Engine.hpp>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "compiler.hpp"
#include "engine_impl.hpp"

#ifdef SPARQ_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace poplar {

using core::Access;
using core::EngineImpl;
using core::ExecutableImpl;

namespace core {

void FreeDeleter::operator()(void *p) const { std::free(p); }

Block allocateBlock(std::uint64_t bytes) {
  const std::uint64_t rounded = (std::max<std::uint64_t>(bytes, 1) + 4095) / 4096 * 4096;
  Block b(static_cast<std::uint8_t *>(std::aligned_alloc(4096, rounded)));
  if (!b)
    throw std::bad_alloc();
  return b;
}

static unsigned threadCount() {
  const char *env = std::getenv("SPARQ_EMULATOR_THREADS");
  if (env && *env) {
    char *end = nullptr;
    const unsigned long n = std::strtoul(env, &end, 10);
    if (*end || n == 0 || n > 1024)
      throw errors::bad_environment(
          std::string("SPARQ_EMULATOR_THREADS must be in [1, 1024], got '") + env + "'");
    return static_cast<unsigned>(n);
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

EngineImpl::EngineImpl(std::shared_ptr<const ExecutableImpl> e, OptionFlags o)
    : exe(std::move(e)), options(std::move(o)), pool(new ThreadPool(threadCount())),
      remote(exe->remotes.size()), written(exe->remotes.size()), executions(exe->costs.size(), 0),
      profiled(executions) {}

void EngineImpl::checkLoaded(const char *op) const {
  if (!loaded)
    throw errors::engine_not_loaded(std::string(op) +
                                    ": the engine must be loaded on a device first");
}

void EngineImpl::fill(void *p, const Type &type, std::uint64_t bytes) const {
  if (exe->zeros)
    std::memset(p, 0, bytes);
  else
    poison(p, type, bytes);
}

void EngineImpl::load(const Device &device) {
  const Target &t = device.getTarget();
  if (t != exe->target)
    throw errors::wrong_device("load: the device must be the target of the graph (" +
                               std::to_string(exe->target.getNumTiles()) + " tiles, " +
                               toString(exe->target.getTargetType()) + "), got " +
                               std::to_string(t.getNumTiles()) + " tiles, " +
                               toString(t.getTargetType()));
  if (!device.isAttached())
    throw errors::wrong_device("load: the device must be attached, got device " +
                               std::to_string(device.getId()) + ", which is not");
  if (exe->replication != 1)
    throw errors::replicas_do_not_run("load: a graph must have 1 replica to run here, got " +
                                      std::to_string(exe->replication) +
                                      ": replicated graphs are compiled and checked, but not run");
  arena = allocateBlock(exe->arenaBytes); // pages never touched take no memory
  if (!exe->dry)
    std::memset(arena.get(), 0, exe->arenaBytes);
  for (const VariablePlan &v : exe->variables) {
    if (!exe->dry || v.controls)
      fill(at(v.at), v.type, v.bytes);
    if (!v.data.empty())
      std::memcpy(at(v.at), v.data.data(), v.data.size());
    for (const InitialValues &i : v.initial)
      for (std::uint64_t n = 0; n != i.times; ++n)
        std::memcpy(at(v.at) + i.begin * typeSize(v.type) + n * i.bytes.size(), i.bytes.data(),
                    i.bytes.size());
    ASAN_POISON_MEMORY_REGION(at(v.at) + (v.bytes + 7) / 8 * 8, 48);
  }
  for (const ComputeSetPlan &cs : exe->computeSets) {
    for (std::size_t number = 0; number < cs.guards.size(); ++number) {
      const Guard &g = cs.guards[number];
      if (g.isInput())
        continue;
      for (std::uint64_t i = 0; i < g.bytes; ++i)
        *at(g.at + i) = guardByte(number, i);
      ASAN_POISON_MEMORY_REGION(at(g.at), g.bytes);
    }
  }
  if (!exe->stateImage.empty())
    std::memcpy(at(exe->stateAt), exe->stateImage.data(), exe->stateImage.size());
  for (const Relocation &r : exe->relocations) {
    const std::uint8_t *p = at(r.target);
    std::memcpy(at(exe->stateAt) + r.at, &p, sizeof p);
  }
  for (std::size_t i = 0; !exe->dry && i < remote.size(); ++i) {
    const RemoteBufferInfo &b = *exe->remotes[i];
    const std::uint64_t bytes = std::uint64_t(b.repeats) * b.numElements * typeSize(b.type);
    remote[i] = allocateBlock(bytes);
    fill(remote[i].get(), b.type, bytes);
  }
  floatingPoint.load(options, exe->target.getNumTiles());
  if (exe->reportsReads && !exe->dry)
    reads.reset(new ReadReport(*exe));
  loaded = true;
}

const RemoteBufferInfo &EngineImpl::remoteInfo(const std::string &handle, const char *op) const {
  for (const auto &b : exe->remotes)
    if (b->handle == handle)
      return *b;
  throw errors::unknown_handle(std::string(op) +
                               ": remote buffer must be one of the graph's, got '" + handle + "'");
}

std::uint8_t *EngineImpl::remoteRow(const std::string &handle, std::uint64_t row, const char *op) {
  const RemoteBufferInfo &b = remoteInfo(handle, op);
  checkLoaded(op);
  if (exe->dry)
    throw errors::engine_not_loaded(std::string(op) + ": the engine must not be dry");
  if (row >= b.repeats)
    throw errors::index_out_of_range(std::string(op) + ": row of remote buffer '" + handle +
                                     "' must be below " + std::to_string(b.repeats) + ", got " +
                                     std::to_string(row));
  return remote[b.index].get() + row * b.numElements * typeSize(b.type);
}

Executable Access::makeExecutable(std::shared_ptr<ExecutableImpl> e) {
  Executable x;
  x.impl = std::move(e);
  return x;
}

} // namespace core

Executable::Executable() = default;
Executable::Executable(Executable &&) noexcept = default;
Executable &Executable::operator=(Executable &&) noexcept = default;
Executable::~Executable() = default;

Engine::Engine(const Graph &graph, ArrayRef<program::Program> progs, const OptionFlags &opt,
               ProgressFunc progress, const DebugContext &dc)
    : Engine(compileGraph(graph, progs, opt, std::move(progress), dc)) {}
Engine::Engine(const Graph &graph, program::Program prog, const OptionFlags &opt,
               ProgressFunc progress, const DebugContext &dc)
    : Engine(graph, ArrayRef<program::Program>(&prog, 1), opt, std::move(progress), dc) {}
Engine::Engine(Executable &&exe, const OptionFlags &opt)
    : Engine(static_cast<const Executable &>(exe), opt) {}
Engine::Engine(const Executable &exe, const OptionFlags &opt) {
  core::checkEngineOptions(opt);
  OptionFlags all = Access::impl(exe)->options;
  for (const auto &o : opt)
    all.set(o.first, o.second);
  readJSONFromEnv("POPLAR_ENGINE_OPTIONS", all);
  core::checkFloatingPointOptions(all);
  impl.reset(new EngineImpl(Access::impl(exe), std::move(all)));
}
Engine::Engine(Engine &&) noexcept = default;
Engine &Engine::operator=(Engine &&) noexcept = default;
Engine::~Engine() = default;

void Engine::prepare(const Device &device) { impl->load(device); }
void Engine::prepare(const Device &device, const RuntimeOptions &) { impl->load(device); }
void Engine::deploy() { impl->checkLoaded("deploy"); }
void Engine::load(const Device &device) { impl->load(device); }
void Engine::run(unsigned prog, const std::string &) { impl->run(prog); }
void Engine::run(unsigned prog, const std::string &, const RuntimeOptions &) { impl->run(prog); }
void Engine::loadAndRun(const Device &device, unsigned prog) {
  impl->load(device);
  impl->run(prog);
}
void Engine::stop() {}

Engine::TimerTimePoint Engine::getTimeStamp() { return std::chrono::steady_clock::now(); }
std::string Engine::reportTiming(const TimerTimePoint &start, const TimerTimePoint &end) {
  std::ostringstream s;
  s << std::chrono::duration<double>(end - start).count() << " s";
  return s.str();
}
void Engine::resetExecutionProfile() {
  std::fill(impl->executions.begin(), impl->executions.end(), 0);
  std::fill(impl->profiled.begin(), impl->profiled.end(), 0);
  impl->profiledRuns = 0;
}
void Engine::disableExecutionProfiling() { impl->profiles = false; }
void Engine::enableExecutionProfiling() { impl->profiles = true; }

static const core::HostTensorPlan &
hostTensor(const std::map<std::string, core::HostTensorPlan> &map, const std::string &handle,
           std::uint64_t bytes, const char *op, bool mayBeLarger) {
  const auto it = map.find(handle);
  if (it == map.end())
    throw errors::unknown_handle(std::string(op) + ": handle must be one of the graph's, got '" +
                                 handle + "'");
  if (bytes < it->second.bytes || (bytes != it->second.bytes && !mayBeLarger))
    throw errors::host_array_size(std::string(op) + ": the host array of '" + handle +
                                  "' must have " + (mayBeLarger ? "at least " : "") +
                                  std::to_string(it->second.bytes) + " bytes, got " +
                                  std::to_string(bytes));
  return it->second;
}

void Engine::readTensor(StringRef handle, void *buf, void *bufEnd) {
  const auto bytes =
      static_cast<std::uint64_t>(static_cast<char *>(bufEnd) - static_cast<char *>(buf));
  const core::HostTensorPlan &t =
      hostTensor(impl->exe->hostReads, handle.str(), bytes, "readTensor", true);
  impl->checkLoaded("readTensor");
  ++impl->hostCalls.tensorReads;
  if (impl->reads)
    impl->reads->read(t.runs, "readTensor of '" + handle.str() + "'");
  std::vector<core::Run> back = t.runs;
  for (core::Run &r : back) {
    std::swap(r.dst, r.src);
    std::swap(r.dstStep, r.srcStep);
  }
  core::copyRuns(static_cast<std::uint8_t *>(buf), impl->arena.get(), back.data(),
                 back.data() + back.size());
}

void Engine::writeTensor(StringRef handle, const void *buf, const void *bufEnd) {
  const auto bytes = static_cast<std::uint64_t>(static_cast<const char *>(bufEnd) -
                                                static_cast<const char *>(buf));
  const core::HostTensorPlan &t =
      hostTensor(impl->exe->hostWrites, handle.str(), bytes, "writeTensor", false);
  impl->checkLoaded("writeTensor");
  ++impl->hostCalls.tensorWrites;
  if (impl->exe->dry && !t.controls)
    return;
  core::copyRuns(impl->arena.get(), static_cast<const std::uint8_t *>(buf), t.runs.data(),
                 t.runs.data() + t.runs.size());
  if (impl->reads)
    impl->reads->written(t.runs);
}

static const core::StreamInfo &findStream(const EngineImpl &e, const std::string &handle,
                                          const char *op) {
  for (const auto &s : e.exe->streams)
    if (s->handle == handle)
      return *s;
  throw errors::unknown_handle(std::string(op) + ": stream must be one of the graph's, got '" +
                               handle + "'");
}

void Engine::connectStream(StringRef handle, void *begin, void *end) {
  const core::StreamInfo &s = findStream(*impl, handle.str(), "connectStream");
  const auto bytes =
      static_cast<std::uint64_t>(static_cast<char *>(end) - static_cast<char *>(begin));
  const std::uint64_t transfer = s.numElements * core::typeSize(s.type);
  if (bytes == 0 || bytes % transfer)
    throw errors::host_array_size("connectStream: the buffer of '" + s.handle +
                                  "' must be a multiple of its " + std::to_string(transfer) +
                                  " bytes a transfer, got " + std::to_string(bytes));
  core::StreamState state;
  state.begin = state.at = static_cast<std::uint8_t *>(begin);
  state.end = static_cast<std::uint8_t *>(end);
  impl->streams[s.handle] = std::move(state);
}

void Engine::connectStream(StringRef handle, void *p) {
  const core::StreamInfo &s = findStream(*impl, handle.str(), "connectStream");
  core::StreamState state;
  state.begin = state.at = static_cast<std::uint8_t *>(p);
  impl->streams[s.handle] = std::move(state);
}

void Engine::connectStreamToCallback(StringRef handle, StreamCallbackHandle f) {
  const core::StreamInfo &s = findStream(*impl, handle.str(), "connectStreamToCallback");
  core::StreamState state;
  state.callback.reset(new StreamCallbackHandle(std::move(f)));
  core::StreamState &old = impl->streams[s.handle];
  if (old.callback && !old.prefetched.empty())
    (*old.callback)->invalidatePrefetched();
  old = std::move(state);
}

void Engine::connectStreamToCallback(StringRef handle, unsigned index, StreamCallbackHandle f) {
  if (index != 0)
    throw errors::unknown_handle("connectStreamToCallback: replica of '" + handle.str() +
                                 "' must be 0, got " + std::to_string(index));
  connectStreamToCallback(handle, std::move(f));
}

static void checkReplica(const char *op, unsigned replica) {
  if (replica != 0)
    throw errors::index_out_of_range(std::string(op) + ": replica must be 0, got " +
                                     std::to_string(replica));
}

void Engine::copyFromRemoteBuffer(StringRef handle, void *w, uint64_t repeatIndex,
                                  unsigned replicationIndex) {
  checkReplica("copyFromRemoteBuffer", replicationIndex);
  const std::uint8_t *row = impl->remoteRow(handle.str(), repeatIndex, "copyFromRemoteBuffer");
  const core::RemoteBufferInfo &b = impl->remoteInfo(handle.str(), "copyFromRemoteBuffer");
  ++impl->hostCalls.rowReads;
  std::memcpy(w, row, b.numElements * core::typeSize(b.type));
}

void Engine::copyToRemoteBuffer(void *w, StringRef handle, uint64_t repeatIndex,
                                unsigned replicationIndex) {
  checkReplica("copyToRemoteBuffer", replicationIndex);
  std::uint8_t *row = impl->remoteRow(handle.str(), repeatIndex, "copyToRemoteBuffer");
  const core::RemoteBufferInfo &b = impl->remoteInfo(handle.str(), "copyToRemoteBuffer");
  ++impl->hostCalls.rowWrites;
  std::memcpy(row, w, b.numElements * core::typeSize(b.type));
}

void Engine::checkRemoteRow(StringRef handle, std::size_t bytes) const {
  const core::RemoteBufferInfo &b = impl->remoteInfo(handle.str(), "copy of a remote row");
  const std::size_t row = b.numElements * core::typeSize(b.type);
  if (bytes != row)
    throw errors::host_array_size("copy of a remote row: the host array for '" + b.handle +
                                  "' must have " + std::to_string(row) + " bytes, got " +
                                  std::to_string(bytes));
}

std::vector<std::string> Engine::listStreams() const {
  std::vector<std::string> r;
  for (const auto &s : impl->exe->streams)
    r.push_back(s->handle);
  return r;
}

OptionFlags Engine::getEngineOptions() const { return impl->exe->options; }

} // namespace poplar
