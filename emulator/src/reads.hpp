// SPDX-License-Identifier: Apache-2.0
// Which bytes of device memory have been written, for SPARQ_EMULATOR_REPORT_READS=1.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "plan.hpp"

namespace poplar {
namespace core {

/// Whether a variable of the environment asks for something that is off by default.
bool isAskedFor(const char *variable);
/// Whether memory that nothing has written holds zeros, not poison: SPARQ_EMULATOR_FILL=zero.
bool fillsWithZeros();

/// Follows writes and copies, and reports what is read before anything has written it: on stderr,
/// once for each place that reads. Of edges all elements count, whether or not the vertex looks at
/// them. What remote buffers hold counts as written.
class ReadReport {
public:
  explicit ReadReport(const ExecutableImpl &exe);

  void written(Address at, std::uint64_t bytes);
  void undefined(Address at, std::uint64_t bytes);
  /// Runs whose `dst` is in device memory.
  void written(const std::vector<Run> &runs);
  void read(const std::vector<Run> &runs, const std::string &who);
  void read(Address at, std::uint64_t bytes, const std::string &who);
  void copied(const std::vector<Run> &runs);
  void beforeVertices(const ComputeSetPlan &plan);
  void afterVertices(const ComputeSetPlan &plan);

private:
  std::string place(Address at) const;

  const ExecutableImpl &exe_;
  std::vector<std::uint8_t> is_; // by byte of the arena
  std::set<std::string> reported_;
};

} // namespace core
} // namespace poplar
