// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ArrayRef.hpp"
#include "DebugContext.hpp"
#include "Device.hpp"
#include "Executable.hpp"
#include "Graph.hpp"
#include "HostFunctionCallback.hpp"
#include "OptionFlags.hpp"
#include "Program.hpp"
#include "Quarter.hpp"
#include "StreamCallback.hpp"
#include "StringRef.hpp"
#include "exceptions.hpp"

// The namespace of the library that reads the SDK's profiles. Programs name it; the emulator lacks
// the library.
namespace pva {
class Report;
}

namespace poplar {

namespace core {
struct EngineImpl;
struct Access;
} // namespace core

using ProgressFunc = std::function<void(int, int)>;

class RuntimeOptions {
public:
  RuntimeOptions() = default;
  explicit RuntimeOptions(const OptionFlags &) {}
  RuntimeOptions(const RuntimeOptions &) = default;
};

/// Compiles and checks a graph with its programs; every defect of the graph is refused here.
Executable compileGraph(const Graph &graph, ArrayRef<program::Program> progs,
                        const OptionFlags &opt = {}, ProgressFunc progressCallBack = ProgressFunc(),
                        const DebugContext &debugContext = {});

/// A part of a program compiled alone, and memory set aside for it: not implemented in the
/// emulator, functions that give or take them throw.
class Module;
class Preallocations;
Module compileModule(const Graph &graph, program::Program prog, const OptionFlags &opt = {},
                     ProgressFunc progressCallBack = ProgressFunc(),
                     const DebugContext &debugContext = {});
Module compileModule(const Graph &graph, program::Program prog, const Preallocations &preallocs,
                     const OptionFlags &opt = {}, ProgressFunc progressCallBack = ProgressFunc(),
                     const DebugContext &debugContext = {});
Executable compileGraph(const Graph &graph, ArrayRef<program::Program> progs,
                        const Preallocations &preallocs, const OptionFlags &opt = {},
                        ProgressFunc progressCallBack = ProgressFunc(),
                        const DebugContext &debugContext = {});
Executable compileGraph(const Graph &graph, ArrayRef<program::Program> progs, bool,
                        const OptionFlags &opt, ProgressFunc progressCallBack,
                        const DebugContext &debugContext);
Executable compileGraph(const Graph &graph, ArrayRef<program::Program> progs,
                        const Preallocations &preallocs, bool, const OptionFlags &opt,
                        ProgressFunc progressCallBack, const DebugContext &debugContext);

/// Loads a compiled graph on a device and runs its programs. Move-only.
class Engine {
public:
  using TimerTimePoint = std::chrono::steady_clock::time_point;

  Engine(const Graph &graph, ArrayRef<program::Program> progs, const OptionFlags &opt = {},
         ProgressFunc progressCallBack = ProgressFunc(), const DebugContext &debugContext = {});
  Engine(const Graph &graph, program::Program prog, const OptionFlags &opt = {},
         ProgressFunc progressCallBack = ProgressFunc(), const DebugContext &debugContext = {});
  Engine(Executable &&exe, const OptionFlags &opt = {});
  Engine(const Executable &exe, const OptionFlags &opt = {});
  Engine(Engine &&) noexcept;
  Engine &operator=(Engine &&) noexcept;
  ~Engine();

  /// As Executable::serialize does.
  void serializeExecutable(std::ostream &out) const;
  void prepare(const Device &device);
  void prepare(const Device &device, const RuntimeOptions &opts);
  void deploy();
  void load(const Device &device);
  void run(unsigned prog = 0, const std::string &debugName = "");
  void run(unsigned prog, const std::string &debugName, const RuntimeOptions &opts);
  void loadAndRun(const Device &device, unsigned prog = 0);
  void stop();

  static TimerTimePoint getTimeStamp();
  static std::string reportTiming(const TimerTimePoint &start, const TimerTimePoint &end);
  void resetExecutionProfile();
  void disableExecutionProfiling();
  void enableExecutionProfiling();
  void printProfileSummary(std::ostream &os, const OptionFlags &opts = {});

  void readTensor(StringRef handle, void *buf, void *bufEnd);
  template <typename T> void readTensor(StringRef handle, gccs::ArrayRef<T> buf) {
    readTensor(handle, const_cast<T *>(buf.begin()), const_cast<T *>(buf.end()));
  }
  void writeTensor(StringRef handle, const void *buf, const void *bufEnd);
  template <typename T> void writeTensor(StringRef handle, ArrayRef<T> buf) {
    writeTensor(handle, static_cast<const void *>(buf.begin()),
                static_cast<const void *>(buf.end()));
  }

  /// Of tensors of QUARTER, which are not implemented.
  void readTensor(StringRef handle, QuarterMetadata &metadata, void *buf, void *bufEnd);
  void writeTensor(StringRef handle, const QuarterMetadata &metadata, const void *buf,
                   const void *bufEnd);

  /// A circular buffer of whole transfers.
  void connectStream(StringRef handle, void *begin, void *end);
  template <typename T> void connectStream(StringRef handle, const gccs::ArrayRef<T> &a) {
    connectStream(handle, const_cast<T *>(a.begin()), const_cast<T *>(a.end()));
  }
  /// A buffer of one transfer.
  void connectStream(StringRef handle, void *p);
  void connectStreamToCallback(StringRef handle, StreamCallbackHandle f);
  void connectStreamToCallback(StringRef handle, unsigned index, StreamCallbackHandle f);

  /// One row; `repeatIndex` is the row.
  void copyFromRemoteBuffer(StringRef handle, void *w, uint64_t repeatIndex,
                            unsigned replicationIndex = 0);
  template <typename T>
  void copyFromRemoteBuffer(StringRef handle, gccs::ArrayRef<T> w, uint64_t repeatIndex,
                            unsigned replicationIndex = 0) {
    checkRemoteRow(handle, w.size() * sizeof(T));
    copyFromRemoteBuffer(handle, const_cast<T *>(w.data()), repeatIndex, replicationIndex);
  }
  void copyToRemoteBuffer(void *w, StringRef handle, uint64_t repeatIndex,
                          unsigned replicationIndex = 0);
  template <typename T>
  void copyToRemoteBuffer(ArrayRef<T> w, StringRef handle, uint64_t repeatIndex,
                          unsigned replicationIndex = 0) {
    checkRemoteRow(handle, w.size() * sizeof(T));
    copyToRemoteBuffer(const_cast<T *>(w.data()), handle, repeatIndex, replicationIndex);
  }

  // Not implemented in the emulator: these throw.
  void insertSimulatedError(ErrorCode code, const ErrorLocation &location);
  void eraseSimulatedError(const ErrorLocation &location);
  void clearSimulatedErrors();
  std::vector<ErrorLocation> getSimulatedErrorLocations(unsigned prog, unsigned numRuns = 1) const;
  std::vector<ErrorLocation> getSimulatedErrorLocations(StringRef name, unsigned numRuns = 1) const;
  void connectHostFunction(StringRef name, unsigned index, HostCallbackHandle f);

  std::vector<std::string> listStreams() const;
  OptionFlags getEngineOptions() const;

private:
  friend struct core::Access;
  void checkRemoteRow(StringRef handle, std::size_t bytes) const;
  std::unique_ptr<core::EngineImpl> impl;
};

// For a profile in a file. The emulator writes none, so these throw.
void printGraphSummary(std::ostream &os, const std::string &profilePath, const OptionFlags &opts);
void printProfileSummary(std::ostream &os, const std::string &profilePath, const OptionFlags &opts);

} // namespace poplar
