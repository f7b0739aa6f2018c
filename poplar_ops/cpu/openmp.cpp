// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include <dlfcn.h>
#include <pthread.h>

namespace sparq::cpu {
namespace {

// What GCC calls for `#pragma omp parallel`. LLVM's and Intel's runtimes have it too.
struct Runtime {
  void (*parallel)(void (*body)(void *), void *data, unsigned nThreads, unsigned flags);
  int (*teamSize)();
  int (*threadNumber)();
};
Runtime runtime;
std::atomic<bool> inUse{false};
std::atomic<bool> forked{false};

template <class Function> bool lookUp(const char *name, Function &function) {
  void *const symbol = dlsym(RTLD_DEFAULT, name);
  std::memcpy(&function, &symbol, sizeof(symbol));
  return symbol != nullptr;
}

bool findRuntime() {
  const char *const variable = std::getenv("SPARQ_CPU_OPENMP");
  const std::string wanted = variable ? variable : "";
  if (wanted == "0")
    return false;
  if (!wanted.empty() && wanted != "1")
    throw std::invalid_argument("use_openmp: SPARQ_CPU_OPENMP must be 0 or 1, got '" + wanted +
                                "'");
  // After fork() a runtime waits for threads that the child does not have.
  static const bool once = pthread_atfork(nullptr, nullptr, [] {
                             inUse.store(false, std::memory_order_relaxed);
                             forked.store(true, std::memory_order_relaxed);
                           }) == 0;
  return once && !forked.load(std::memory_order_relaxed) &&
         lookUp("GOMP_parallel", runtime.parallel) &&
         lookUp("omp_get_num_threads", runtime.teamSize) &&
         lookUp("omp_get_thread_num", runtime.threadNumber);
}

struct Region {
  unsigned nThreads;
  void (*call)(const void *, unsigned);
  const void *work;
  bool complete; // the team has the size that was asked for
};

// A team may be smaller: inside another region, or with a limit. Then no thread does anything.
void body(void *data) {
  Region &region = *static_cast<Region *>(data);
  const bool complete = static_cast<unsigned>(runtime.teamSize()) == region.nThreads;
  const unsigned thread = static_cast<unsigned>(runtime.threadNumber());
  if (thread == 0)
    region.complete = complete;
  if (complete)
    region.call(region.work, thread);
}

} // namespace

bool useOpenmp() {
  if (!inUse.load(std::memory_order_acquire))
    inUse.store(findRuntime(), std::memory_order_release);
  return inUse.load(std::memory_order_acquire);
}

bool runOnOpenmp(unsigned nThreads, void (*call)(const void *, unsigned), const void *work) {
  if (!inUse.load(std::memory_order_acquire))
    return false;
  Region region{nThreads, call, work, false};
  runtime.parallel(&body, &region, nThreads, 0);
  return region.complete;
}

} // namespace sparq::cpu
