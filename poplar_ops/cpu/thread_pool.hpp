// SPDX-License-Identifier: Apache-2.0
//
// Threads that work on one call together, and the scratch memory they need.
//
// A call leases a pool for its duration: an idle one, or a new one if callers are more than ever
// before. So calls from several threads never wait for each other, and in the steady state nothing
// is created or allocated. Idle workers sleep after a short spin. After fork() the child starts
// with no pools. Where openmp.cpp has other threads for a call, a pool's own go on sleeping.
#pragma once

#include "buffer.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace sparq::cpu {

class ThreadPool {
public:
  // Threads count from 0; thread 0 is the caller. Where the system refuses a thread, the pool has
  // fewer: results do not depend on their number.
  explicit ThreadPool(unsigned nThreads);

  unsigned nRequested() const { return requested; }
  unsigned nThreads() const { return threads; }

  // Calls work(thread) on every thread; returns when all have. `work` must not throw.
  template <class Work> void run(const Work &work) {
    runErased([](const void *w, unsigned thread) { (*static_cast<const Work *>(w))(thread); },
              &work);
  }

  // Inside `run`, on all threads: none goes on before all have arrived.
  void barrier();

  // At least `bytes` of scratch, with any content; kept from call to call. Throws std::bad_alloc.
  char *scratch(std::size_t bytes);

private:
  using Erased = void (*)(const void *, unsigned);
  void runErased(Erased call, const void *work);
  void workerLoop(unsigned thread);
  void leaveCallerAlone();

  const unsigned requested;
  unsigned threads;
  const unsigned spins; // polls before a waiting thread sleeps or yields
  Buffer memory;

  struct Placement; // of workers on processors, where the system lets us choose
  std::unique_ptr<Placement> placement;

  Erased call = nullptr;
  const void *work = nullptr;
  alignas(64) std::atomic<std::uint64_t> round{0}; // calls so far
  alignas(64) std::atomic<unsigned> working{0};
  alignas(64) std::atomic<unsigned> arrived{0};
  alignas(64) std::atomic<unsigned> phase{0};
  std::mutex mutex;
  std::condition_variable wake;
};

// The part of n things, numbered from 0, that is a thread's.
struct Share {
  std::size_t begin, end;
  Share(std::size_t n, unsigned thread, std::size_t team)
      : begin(n * thread / team), end(n * (thread + 1) / team) {}
};

class PoolLease {
public:
  explicit PoolLease(unsigned nThreads);
  ~PoolLease();
  PoolLease(const PoolLease &) = delete;
  PoolLease &operator=(const PoolLease &) = delete;
  ThreadPool *operator->() const { return pool; }
  ThreadPool &operator*() const { return *pool; }

private:
  ThreadPool *pool;
};

// Threads of an OpenMP runtime that the process has loaded anyway: PyTorch's. Its threads poll for
// milliseconds after each of PyTorch's operations. Threads of ours beside them would share their
// processors, and a call would take twice as long.
//
// From now on `runOnOpenmp` may do what it says. False where the process has no such runtime, or
// the environment has SPARQ_CPU_OPENMP=0. Not undone; but a child of fork() goes without from then
// on.
bool useOpenmp();
// Calls call(work, thread) on a team of exactly nThreads threads, of which the caller is thread 0,
// and returns true when all have returned; or calls nothing and returns false.
bool runOnOpenmp(unsigned nThreads, void (*call)(const void *, unsigned), const void *work);

// Most threads of a call.
constexpr unsigned maxThreads = 1024;

// The number of threads of a call that names none: OMP_NUM_THREADS, the first of several, else the
// processors this process may run on. Throws std::invalid_argument for what is no number from 1.
unsigned defaultThreads();

// A thread count as callers give it: in [1, maxThreads], or 0 for `defaultThreads`. Throws
// std::invalid_argument.
unsigned checkedThreads(const char *op, std::int64_t nThreads);

} // namespace sparq::cpu
