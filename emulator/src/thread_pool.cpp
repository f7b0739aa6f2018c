// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.hpp"

#include <algorithm>

namespace poplar {
namespace core {

ThreadPool::ThreadPool(unsigned threads) {
  for (unsigned i = 1; i < threads; ++i)
    workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread &t : workers_)
    t.join();
}

void ThreadPool::takePieces() {
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

void ThreadPool::work() {
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

void ThreadPool::run(std::size_t n, std::size_t grain,
                     const std::function<void(std::size_t, std::size_t)> &f) {
  if (n == 0)
    return;
  if (workers_.empty() || n <= grain) {
    f(0, n);
    return;
  }
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

} // namespace core
} // namespace poplar
