// SPDX-License-Identifier: Apache-2.0
#include "sparq/settings.hpp"
#include <cstdint>

namespace sparq {
namespace {

constexpr unsigned most = 1u << 24; // a count of positions stays exact in fp32

void checkInteger(const std::string &op, const char *argument, unsigned value, unsigned low,
                  unsigned high, const std::string &interval) {
  if (value < low || value > high)
    throw Error(op + ": " + argument + " must be in " + interval + ", got " +
                std::to_string(value));
}

} // namespace

void check(const std::string &op, const Shape &shape) {
  checkInteger(op, "batch", shape.batch, 1, most, "[1, 16777216]");
  checkInteger(op, "n_kv_heads", shape.nKvHeads, 1, most, "[1, 16777216]");
  checkInteger(op, "capacity", shape.capacity, 1, most, "[1, 16777216]");
  checkInteger(op, "head_dim", shape.headDim, 1, most, "[1, 16777216]");
  if (shape.headDim % 8 != 0)
    throw Error(op + ": head_dim must be a multiple of 8, got " + std::to_string(shape.headDim));
  const std::uint64_t nTasks = std::uint64_t(shape.batch) * shape.nKvHeads;
  if (nTasks > most)
    throw Error(op + ": batch * n_kv_heads must be at most 16777216, got " +
                std::to_string(nTasks));
  if (shape.nHeads == 0 || shape.nHeads % shape.nKvHeads != 0)
    throw Error(op + ": n_heads must be a multiple of n_kv_heads=" +
                std::to_string(shape.nKvHeads) + ", got " + std::to_string(shape.nHeads));
}

void check(const std::string &op, const SparqSettings &settings, const Shape &shape) {
  checkInteger(op, "rank", settings.rank, 1, shape.headDim,
               "[1, head_dim=" + std::to_string(shape.headDim) + "]");
  checkInteger(op, "top_k", settings.topK, 1, most, "[1, 16777216]");
  checkInteger(op, "n_local", settings.nLocal, 0, settings.topK,
               "[0, top_k=" + std::to_string(settings.topK) + "]");
}

} // namespace sparq
