// SPDX-License-Identifier: Apache-2.0
#include "worker_order.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "errors.hpp"

namespace poplar {
namespace core {

WorkerOrder::WorkerOrder() {
  const char *env = std::getenv("SPARQ_EMULATOR_WORKER_ORDER");
  if (!env || !*env)
    return;
  char *end = nullptr;
  errno = 0;
  seed_ = std::strtoull(env, &end, 10);
  if (*env < '0' || *env > '9' || *end || errno)
    throw errors::bad_environment(
        std::string("SPARQ_EMULATOR_WORKER_ORDER must be a number below 2^64, got '") + env + "'");
  isRandom_ = true;
}

WorkerList WorkerOrder::of(std::size_t number, unsigned calls) const {
  WorkerList order{};
  for (unsigned i = 0; i < calls; ++i)
    order[i] = i;
  if (!isRandom_)
    return order;
  std::uint64_t x = mixed(mixed(seed_ ^ mixed(computeSets_)) ^ number);
  for (unsigned left = calls; left > 1; --left) {
    x = mixed(x);
    std::swap(order[left - 1], order[x % left]);
  }
  return order;
}

} // namespace core
} // namespace poplar
