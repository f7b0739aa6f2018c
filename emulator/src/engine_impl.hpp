// SPDX-License-Identifier: Apache-2.0
// A plan being run: device memory, streaming memory, streams, and the interpreter of steps.
#pragma once

#include <poplar/Engine.hpp>

#include <map>
#include <memory>
#include <vector>

#include <sparq_emulator/Counters.hpp>

#include "floating_point.hpp"
#include "plan.hpp"
#include "random.hpp"
#include "reads.hpp"
#include "thread_pool.hpp"
#include "worker_order.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define SPARQ_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPARQ_ADDRESS_SANITIZER
#endif
#endif

namespace poplar {
namespace core {

struct FreeDeleter {
  void operator()(void *p) const;
};
using Block = std::unique_ptr<std::uint8_t, FreeDeleter>;
Block allocateBlock(std::uint64_t bytes);

struct StreamState {
  std::uint8_t *begin = nullptr, *end = nullptr, *at = nullptr;
  std::unique_ptr<StreamCallbackHandle> callback;
  std::vector<std::uint8_t>
      prefetched; // the next transfer, where the callback has given it already
};

struct EngineImpl {
  EngineImpl(std::shared_ptr<const ExecutableImpl> e, OptionFlags o);
  ~EngineImpl(); // writes a trace where an option asks for it

  void load(const Device &device);
  void run(unsigned program);
  std::uint8_t *remoteRow(const std::string &handle, std::uint64_t row, const char *op);
  const RemoteBufferInfo &remoteInfo(const std::string &handle, const char *op) const;
  void checkLoaded(const char *op) const;

  std::shared_ptr<const ExecutableImpl> exe;
  OptionFlags options; // the executable's, in their place the engine's, then the environment's
  std::unique_ptr<ThreadPool> pool;
  bool loaded = false;
  Block arena;
  std::vector<Block> remote; // by buffer
  // By buffer and row: the last store that wrote the row.
  std::vector<std::vector<std::uint32_t>> written;
  std::uint32_t storeId = 0;
  std::map<std::string, StreamState> streams;
  std::vector<std::uint64_t> executions; // by cost, in the last run
  std::vector<std::uint64_t> profiled;   // the same, in all runs while profiling was on
  std::uint64_t profiledRuns = 0;
  bool profiles = true;
  sparq::emulator::HostCalls hostCalls;
  std::vector<std::uint8_t> transferBuffer;
  std::vector<std::uint32_t> offsets;
  Generators generators;
  WorkerOrder workerOrder;
  FloatingPoint floatingPoint;
  std::unique_ptr<ReadReport> reads; // with SPARQ_EMULATOR_REPORT_READS=1

  void fill(void *p, const Type &type, std::uint64_t bytes) const; // as what nothing has written

  std::uint8_t *at(Address a) { return arena.get() + a; }

private:
  void execute(const Step &s);
  void count(const Step &s);
  bool runComputeSet(const ComputeSetPlan &plan);
  bool runVertex(const ComputeSetPlan &plan, const VertexPlan &v, unsigned firstWorker,
                 const WorkerList &order);
  void stopAtEvents(const ComputeSetPlan &plan, const VertexPlan &v, unsigned worker) const;
  void runCopy(const CopyPlan &plan);
  void runStream(const TransferPlan &plan);
  void prefetch(StreamState &s, std::uint64_t bytes);
  void runRemote(const TransferPlan &plan);
  void readOffsets(const TransferPlan &plan);
  void print(const PrintPlan &plan);
  std::int64_t readPredicate(const Step &s);
  std::uint64_t cyclesSoFar() const;
};

/// Copies runs between two blocks, each address relative to its base.
void copyRuns(std::uint8_t *dst, const std::uint8_t *src, const Run *begin, const Run *end);

/// The text PrintTensor writes for packed elements.
std::string formatTensor(const std::uint8_t *data, const Type &type,
                         const std::vector<std::size_t> &shape, const PrintTensorFmt &format);

} // namespace core
} // namespace poplar
