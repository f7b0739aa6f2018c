// SPDX-License-Identifier: Apache-2.0
// Reports reads of memory that nothing has written.
#include "reads.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "engine_impl.hpp"

namespace poplar {
namespace core {

bool isAskedFor(const char *variable) {
  const char *value = std::getenv(variable);
  if (!value || !*value || std::string(value) == "0")
    return false;
  if (std::string(value) == "1")
    return true;
  throw errors::bad_environment(std::string(variable) + " must be 0 or 1, got '" + value + "'");
}

bool fillsWithZeros() {
  const char *value = std::getenv("SPARQ_EMULATOR_FILL");
  if (!value || !*value || std::string(value) == "poison")
    return false;
  if (std::string(value) == "zero")
    return true;
  throw errors::bad_environment(std::string("SPARQ_EMULATOR_FILL must be zero or poison, got '") +
                                value + "'");
}

ReadReport::ReadReport(const ExecutableImpl &exe) : exe_(exe), is_(exe.arenaBytes, 0) {
  for (const VariablePlan &v : exe.variables) {
    if (!v.data.empty())
      written(v.at, v.data.size());
    for (const InitialValues &i : v.initial)
      written(v.at + i.begin * typeSize(v.type), i.bytes.size() * i.times);
  }
}

void ReadReport::written(Address at, std::uint64_t bytes) { std::memset(&is_[at], 1, bytes); }
void ReadReport::undefined(Address at, std::uint64_t bytes) { std::memset(&is_[at], 0, bytes); }

void ReadReport::written(const std::vector<Run> &runs) {
  for (const Run &r : runs)
    for (std::uint64_t i = 0; i < r.count; ++i)
      written(r.dst + i * static_cast<std::uint64_t>(r.dstStep), r.bytes);
}

void ReadReport::copied(const std::vector<Run> &runs) {
  copyRuns(is_.data(), is_.data(), runs.data(), runs.data() + runs.size());
}

std::string ReadReport::place(Address at) const {
  for (const VariablePlan &v : exe_.variables)
    if (at >= v.at && at < v.at + v.bytes)
      return "element " + std::to_string((at - v.at) / typeSize(v.type)) + " of variable '" +
             v.name + "'";
  return "memory";
}

void ReadReport::read(Address at, std::uint64_t bytes, const std::string &who) {
  const auto *gap = static_cast<const std::uint8_t *>(std::memchr(&is_[at], 0, bytes));
  if (gap && reported_.insert(who).second)
    std::cerr << "emulator: " << who << " reads " << place(static_cast<Address>(gap - is_.data()))
              << ", which nothing has written\n";
}

void ReadReport::read(const std::vector<Run> &runs, const std::string &who) {
  for (const Run &r : runs)
    for (std::uint64_t i = 0; i < r.count; ++i)
      read(r.dst + i * static_cast<std::uint64_t>(r.dstStep), r.bytes, who);
}

void ReadReport::beforeVertices(const ComputeSetPlan &plan) {
  for (const EdgeUse &e : plan.edges)
    if (e.direction != codelet_abi::Direction::Output)
      read(e.runs, "field '" + e.field + "' of vertex " + e.vertex);
}

void ReadReport::afterVertices(const ComputeSetPlan &plan) {
  for (const EdgeUse &e : plan.edges)
    if (e.direction != codelet_abi::Direction::Input)
      written(e.runs);
}

} // namespace core
} // namespace poplar
