// SPDX-License-Identifier: Apache-2.0
//
// How far ahead dense attention asks for rows that it reads in order: some KiB, or not at all where
// a processor is quicker without. The first long runs over rows take turns with both and are timed;
// the quicker way stays. So it costs no work of its own, and no result depends on it. The
// environment variable SPARQ_CPU_READ_AHEAD names the bytes instead; 0 is not at all.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace sparq {
namespace cpu {

class ReadAhead {
public:
  // Throws Error for a value of the variable that is no number in [0, 65536].
  ReadAhead();
  // Bytes, as far as is known now.
  std::size_t bytes() const { return distance.load(std::memory_order_relaxed); }

  // One run over rows of so many bytes, from here to the end of its life.
  class Run {
  public:
    Run(ReadAhead &ownerIn, std::size_t length);
    ~Run();
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;
    std::size_t bytes; // ahead

  private:
    ReadAhead &owner;
    const std::size_t length; // 0: not timed
    unsigned way = 0;
    std::chrono::steady_clock::time_point start;
  };

private:
  static constexpr unsigned tries = 8; // of each way
  std::atomic<std::size_t> distance;
  std::atomic<unsigned> begun, ended{0};
  std::atomic<std::uint64_t> quickest[2] = {{UINT64_MAX}, {UINT64_MAX}}; // ns a MiB: with, without
};

} // namespace cpu
} // namespace sparq
