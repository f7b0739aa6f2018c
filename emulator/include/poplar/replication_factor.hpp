// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poplar {
/// Number of copies of a replicated graph.
struct replication_factor {
  explicit replication_factor(unsigned v) : val(v) {}
  operator unsigned() const { return val; }

private:
  unsigned val;
};
} // namespace poplar
