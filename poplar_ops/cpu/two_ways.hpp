// SPDX-License-Identifier: Apache-2.0
//
// Of two ways to do the same, the one that is quicker on this processor. The first runs take turns
// with both and are timed; then the quicker way stays. So it costs no work of its own, and no
// result depends on it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sparq {
namespace cpu {

class TwoWays {
public:
  // shortest: bytes below which a run says little, and is not timed. tries: runs that are timed, of
  // each way.
  TwoWays(std::size_t shortestIn, unsigned triesIn)
      : shortest(shortestIn), tries(triesIn), paces(2 * triesIn) {}
  // This way from now on, and nothing is timed.
  void settle(unsigned wayIn);
  // 0 or 1, as far as is known now: 0, the usual one, until all is timed.
  unsigned now() const { return chosen.load(std::memory_order_relaxed); }

  // One run that moves so many bytes, from here to the end of its life.
  class Run {
  public:
    Run(TwoWays &ownerIn, std::size_t length);
    ~Run();
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;
    unsigned way; // 0 or 1

  private:
    TwoWays &owner;
    const std::size_t length; // 0: not timed
    unsigned number = 0;      // of those that are timed
    std::chrono::steady_clock::time_point start;
  };

private:
  // Of the runs of a way, the one in the middle.
  std::uint64_t median(unsigned way);

  const std::size_t shortest;
  const unsigned tries;
  std::atomic<unsigned> chosen{0}, begun{0}, ended{0};
  std::vector<std::uint64_t> paces; // of each run of the first way, then of the second, ns a MiB
};

// The number that an environment variable holds; nothing where it is not set or empty. Throws
// std::invalid_argument: `KVCache: <variable> must be in [<least>, <most>], got '<value>'`.
std::optional<unsigned long> numberOf(const char *variable, unsigned long least,
                                      unsigned long most);

} // namespace cpu
} // namespace sparq
