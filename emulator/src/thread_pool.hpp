// SPDX-License-Identifier: Apache-2.0
// Threads that run the pieces of one job at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace poplar {
namespace core {

class ThreadPool {
public:
  /// `threads` counts the caller's own.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  /// Calls f(begin, end) over pieces of [0, n) of about `grain` items, on any of the threads.
  /// Returns when all are done; rethrows the first exception.
  void run(std::size_t n, std::size_t grain,
           const std::function<void(std::size_t, std::size_t)> &f);

private:
  void work();
  void takePieces();

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

} // namespace core
} // namespace poplar
