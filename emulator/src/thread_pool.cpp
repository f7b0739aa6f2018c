// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace poplar {
namespace core {

namespace {

std::atomic<unsigned> forks{0};

unsigned forksSoFar() {
  static const int counts = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return counts == 0 ? forks.load() : 0;
}

} // namespace

// The threads, but for the caller's.
class ThreadPool::Crew {
public:
  explicit Crew(unsigned workers) {
    for (unsigned i = 0; i < workers; ++i)
      workers_.emplace_back([this] { work(); });
  }
  ~Crew() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread &t : workers_)
      t.join();
  }
  Crew(const Crew &) = delete;

  void run(std::size_t n, std::size_t grain,
           const std::function<void(std::size_t, std::size_t)> &f) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &f;
      n_ = n;
      grain_ = grain;
      next_ = 0;
      busy_ = static_cast<unsigned>(workers_.size());
      ++generation_;
    }
    start_.notify_all();
    takePieces();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
    job_ = nullptr;
    if (error_) {
      std::exception_ptr e = error_;
      error_ = nullptr;
      std::rethrow_exception(e);
    }
  }

private:
  void work() {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        start_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_)
          return;
        seen = generation_;
      }
      takePieces();
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0)
        done_.notify_one();
    }
  }

  void takePieces() {
    for (;;) {
      const std::size_t begin = next_.fetch_add(grain_);
      if (begin >= n_)
        return;
      try {
        (*job_)(begin, std::min(n_, begin + grain_));
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!error_)
          error_ = std::current_exception();
        next_ = n_;
      }
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::uint64_t generation_ = 0;
  unsigned busy_ = 0;
  bool stop_ = false;
  const std::function<void(std::size_t, std::size_t)> *job_ = nullptr;
  std::atomic<std::size_t> next_{0};
  std::size_t n_ = 0, grain_ = 1;
  std::exception_ptr error_;
};

ThreadPool::ThreadPool(unsigned threads)
    : threads_(threads), forks_(forksSoFar()),
      crew_(threads > 1 ? new Crew(threads - 1) : nullptr) {}

ThreadPool::~ThreadPool() { leaveToTheParent(); }

// In a child of fork() the crew's threads are not there: nothing may wait for them, and what they
// waited for can not be destroyed.
void ThreadPool::leaveToTheParent() {
  if (forks_ != forksSoFar())
    (void)crew_.release();
}

void ThreadPool::run(std::size_t n, std::size_t grain,
                     const std::function<void(std::size_t, std::size_t)> &f) {
  if (n == 0)
    return;
  if (!crew_ || n <= grain) {
    f(0, n);
    return;
  }
  if (forks_ != forksSoFar()) {
    leaveToTheParent();
    crew_.reset(new Crew(threads_ - 1));
    forks_ = forksSoFar();
  }
  crew_->run(n, grain, f);
}

} // namespace core
} // namespace poplar
