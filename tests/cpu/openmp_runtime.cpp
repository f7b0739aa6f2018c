// SPDX-License-Identifier: Apache-2.0
//
// The part of an OpenMP runtime that the CPU kernels use, and counts of what they asked of it.
#include <atomic>
#include <thread>
#include <vector>

namespace {
thread_local int number = 0, size = 1;
std::atomic<int> most{1 << 30}, nRegions{0}, nMembers{0};
} // namespace

extern "C" {
int omp_get_thread_num() { return number; }
int omp_get_num_threads() { return size; }

// Teams have at most so many threads from now on.
void limit_teams(int threads) { most = threads; }
int regions() { return nRegions; }
int members() { return nMembers; } // of all teams

void GOMP_parallel(void (*body)(void *), void *data, unsigned nThreads, unsigned) {
  const int team = static_cast<int>(nThreads) < most ? static_cast<int>(nThreads) : most.load();
  ++nRegions;
  nMembers += team;
  const auto member = [=](int thread) {
    number = thread;
    size = team;
    body(data);
    number = 0;
    size = 1;
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < team; ++thread)
    others.emplace_back(member, thread);
  member(0);
  for (std::thread &other : others)
    other.join();
}
}
