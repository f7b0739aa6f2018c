// SPDX-License-Identifier: Apache-2.0
// Threads that run the pieces of one job at a time. After fork() the child has threads of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace poplar {
namespace core {

class ThreadPool {
public:
  /// `threads` counts the caller's own.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  unsigned threads() const { return threads_; }

  /// Calls f(begin, end) over pieces of [0, n) of about `grain` items, on any of the threads.
  /// Returns when all are done; rethrows the first exception.
  void run(std::size_t n, std::size_t grain,
           const std::function<void(std::size_t, std::size_t)> &f);

private:
  class Crew;
  void leaveToTheParent();

  const unsigned threads_;
  unsigned forks_; // of this process and those it comes from, when the crew was made
  std::unique_ptr<Crew> crew_;
};

} // namespace core
} // namespace poplar
