// SPDX-License-Identifier: Apache-2.0
//
// Threads of an OpenMP runtime that the process has loaded anyway: PyTorch's. Its threads poll for
// milliseconds after each of PyTorch's operations. Threads of ours beside them would share their
// processors, and a call would take twice as long.
#pragma once

namespace sparq::cpu {

// From now on `runOnOpenmp` may do what it says. False where the process has no such runtime, or
// the environment has SPARQ_CPU_OPENMP=0. Not undone; but a child of fork() goes without from then
// on.
bool useOpenmp();

// Calls call(work, thread) on a team of exactly nThreads threads, of which the caller is thread 0,
// and returns true when all have returned; or calls nothing and returns false.
bool runOnOpenmp(unsigned nThreads, void (*call)(const void *, unsigned), const void *work);

} // namespace sparq::cpu
