// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>

#ifdef __linux__
#include <sched.h>
#endif

namespace sparq::cpu {
namespace {

inline void pause() {
#ifdef SPARQ_X86
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

unsigned processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    return static_cast<unsigned>(CPU_COUNT(&set));
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? n : 1;
}

// About 30 microseconds: longer than the gap between two phases of a call, shorter than what waking
// a thread costs twice. None where threads outnumber processors: the one waited for may need the
// processor.
unsigned spinsFor(unsigned nThreads) { return nThreads <= processors() ? 1000 : 0; }

struct Registry {
  std::mutex mutex;
  std::vector<ThreadPool *> idle;
  std::size_t total = 0;
};

// Never destroyed, nor are the pools: their workers may outlive static destructors, and after
// fork() they are not there to be joined.
Registry *registry = nullptr;

void newRegistry() { registry = new Registry; }

Registry &theRegistry() {
  static const bool once = [] {
    newRegistry();
    pthread_atfork(nullptr, nullptr, newRegistry);
    return true;
  }();
  (void)once;
  return *registry;
}

} // namespace

// A scheduler may wake a worker on the processor of the caller that wakes it, and notice only after
// some milliseconds, longer than a call, that another one is idle: then two threads take turns and
// the call takes twice as long (seen on virtual machines, in most calls). So workers are kept off
// the processor that the caller is on.
struct ThreadPool::Placement {
#ifdef __linux__
  // More workers than this are left to the scheduler: moving them costs a system call each.
  static constexpr unsigned most = 16;
  cpu_set_t allowed;
  int avoided = -1;
  std::vector<pthread_t> workers;
#endif
};

void ThreadPool::leaveCallerAlone() {
#ifdef __linux__
  if (!placement)
    return;
  const int processor = sched_getcpu();
  if (processor == placement->avoided || processor < 0 || processor >= CPU_SETSIZE ||
      !CPU_ISSET(processor, &placement->allowed))
    return;
  cpu_set_t others = placement->allowed;
  CPU_CLR(processor, &others);
  for (pthread_t worker : placement->workers)
    pthread_setaffinity_np(worker, sizeof(others),
                           &others); // may fail: it is a matter of speed only
  placement->avoided = processor;
#endif
}

ThreadPool::ThreadPool(unsigned nThreads)
    : requested(nThreads), threads(1), spins(spinsFor(nThreads)) {
  std::vector<std::thread> workers;
  workers.reserve(requested);
  try {
    for (; threads < requested; ++threads)
      workers.emplace_back([this, thread = threads] { workerLoop(thread); });
  } catch (const std::system_error &) {
    // The threads there are will do.
  }
#ifdef __linux__
  cpu_set_t allowed;
  if (threads > 1 && threads <= Placement::most &&
      sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
      static_cast<unsigned>(CPU_COUNT(&allowed)) >= threads) {
    placement.reset(new Placement);
    placement->allowed = allowed;
    for (std::thread &worker : workers)
      placement->workers.push_back(worker.native_handle());
  }
#endif
  for (std::thread &worker : workers)
    worker.detach();
}

void ThreadPool::workerLoop(unsigned thread) {
  for (std::uint64_t done = 0;; ++done) {
    for (unsigned spin = 0; spin < spins && round.load(std::memory_order_acquire) == done; ++spin)
      pause();
    if (round.load(std::memory_order_acquire) == done) {
      std::unique_lock<std::mutex> lock(mutex);
      wake.wait(lock, [&] { return round.load(std::memory_order_acquire) != done; });
    }
    call(work, thread);
    working.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::runErased(Erased function, const void *argument) {
  if (threads == 1) {
    function(argument, 0);
    return;
  }
  if (runOnOpenmp(threads, function, argument))
    return;
  leaveCallerAlone();
  call = function;
  work = argument;
  working.store(threads - 1, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(
        mutex); // or a worker could miss the notice between its test and its sleep
    round.fetch_add(1, std::memory_order_release);
  }
  wake.notify_all();
  function(argument, 0);
  for (unsigned spin = 0; working.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < spins)
      pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::barrier() {
  if (threads == 1)
    return;
  const unsigned current = phase.load(std::memory_order_relaxed);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
    arrived.store(0, std::memory_order_relaxed);
    phase.store(current + 1, std::memory_order_release);
    return;
  }
  for (unsigned spin = 0; phase.load(std::memory_order_acquire) == current; ++spin) {
    if (spin < spins)
      pause();
    else
      std::this_thread::yield();
  }
}

char *ThreadPool::scratch(std::size_t bytes) {
  if (bytes > memory.size())
    memory = Buffer(bytes);
  return memory.as<char>();
}

PoolLease::PoolLease(unsigned nThreads) : pool(nullptr) {
  Registry &r = theRegistry();
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    for (auto at = r.idle.rbegin(); at != r.idle.rend(); ++at)
      if ((*at)->nRequested() == nThreads) {
        pool = *at;
        *at = r.idle.back();
        r.idle.pop_back();
        return;
      }
  }
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    r.idle.reserve(++r.total); // so that giving the pool back can not fail
  }
  pool = new ThreadPool(nThreads);
}

PoolLease::~PoolLease() {
  Registry &r = theRegistry();
  std::lock_guard<std::mutex> lock(r.mutex);
  r.idle.push_back(pool);
}

unsigned defaultThreads() {
  if (const char *text = std::getenv("OMP_NUM_THREADS")) {
    char *end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (n < 1 || (*end && *end != ','))
      throw std::invalid_argument(
          "n_threads: OMP_NUM_THREADS must begin with a number from 1, got '" + std::string(text) +
          "'");
    return n < long(maxThreads) ? static_cast<unsigned>(n) : maxThreads;
  }
  const unsigned n = processors();
  return n < maxThreads ? n : maxThreads;
}

unsigned checkedThreads(const char *op, std::int64_t nThreads) {
  if (nThreads < 0 || nThreads > maxThreads)
    throw std::invalid_argument(std::string(op) + ": n_threads must be in [1, " +
                                std::to_string(maxThreads) + "], got " + std::to_string(nThreads));
  return nThreads ? static_cast<unsigned>(nThreads) : defaultThreads();
}

} // namespace sparq::cpu
