// SPDX-License-Identifier: Apache-2.0
#include "sparq/settings.hpp"

namespace sparq {
namespace {

[[noreturn]] void fail(const char *op, const char *argument, const std::string &rule,
                       std::int64_t got) {
  throw Error(std::string(op) + ": " + argument + " must " + rule + ", got " + std::to_string(got));
}

// `name` is what the upper limit is called in the message, "head_dim=" for example.
void checkRange(const char *op, const char *argument, unsigned value, unsigned low, unsigned high,
                const char *name = "") {
  if (value < low || value > high)
    fail(op, argument, "be in [" + std::to_string(low) + ", " + name + std::to_string(high) + "]",
         value);
}

} // namespace

void check(const char *op, const CacheSpec &spec) {
  checkRange(op, "batch", spec.batch, 1, maxCapacity);
  checkRange(op, "n_kv_heads", spec.nKvHeads, 1, maxCapacity);
  checkRange(op, "head_dim", spec.headDim, 1, maxCapacity);
  if (spec.headDim % 8 != 0)
    fail(op, "head_dim", "be a multiple of 8", spec.headDim);
  checkRange(op, "capacity", spec.capacity, 1, maxCapacity);
  const std::uint64_t nTasks = std::uint64_t(spec.batch) * spec.nKvHeads;
  if (nTasks > maxCapacity)
    fail(op, "batch * n_kv_heads", "be at most " + std::to_string(maxCapacity),
         static_cast<std::int64_t>(nTasks));
  if (spec.indexBits != 16 && spec.indexBits != 8 && spec.indexBits != 4 && spec.indexBits != 2)
    fail(op, "index_bits", "be one of 16, 8, 4, 2", spec.indexBits);
  if (spec.rowBits != 16 && spec.rowBits != 8)
    fail(op, "row_bits", "be one of 16, 8", spec.rowBits);
  // so that a coefficient is at least 1 (contract E9)
  if (spec.indexBits != 16 && spec.headDim > 1u << 16)
    fail(op, "head_dim", "be at most 65536 with index_bits=" + std::to_string(spec.indexBits),
         spec.headDim);
  checkRange(op, "index_components", spec.indexComponents, 0, spec.headDim, "head_dim=");
  if (spec.indexComponents % 8 != 0)
    fail(op, "index_components", "be a multiple of 8", spec.indexComponents);
}

void checkHeads(const char *op, const CacheSpec &spec, std::int64_t nHeads) {
  if (nHeads < 1 || nHeads % spec.nKvHeads != 0)
    fail(op, "n_heads", "be a multiple of n_kv_heads=" + std::to_string(spec.nKvHeads), nHeads);
}

void check(const char *op, const Shape &shape) {
  check(op, static_cast<const CacheSpec &>(shape));
  checkHeads(op, shape, shape.nHeads);
}

void check(const char *op, const SparqSettings &settings, const CacheSpec &spec) {
  checkRange(op, "rank", settings.rank, 1, spec.nIndexed(),
             spec.indexComponents == 0 ? "head_dim=" : "index_components=");
  checkRange(op, "top_k", settings.topK, 1, maxCapacity);
  checkRange(op, "n_local", settings.nLocal, 0, settings.topK, "top_k=");
}

void check(const char *op, const WindowSettings &settings, std::int64_t nHeads) {
  checkRange(op, "top_k", settings.topK, 1, maxCapacity);
  checkRange(op, "n_local", settings.nLocal, 0, settings.topK, "top_k=");
  checkRange(op, "n_recent", settings.nRecent, 0, maxRecentHeads);
  const std::int64_t most = maxRecentHeads / nHeads;
  if (settings.remembers() && settings.nRecent > most)
    fail(op, "n_recent",
         "be in [0, " + std::to_string(most) + "] for n_heads=" + std::to_string(nHeads),
         settings.nRecent);
}

unsigned toUnsigned(const char *op, const char *argument, std::int64_t value, std::uint32_t most) {
  if (value < 0 || value > std::int64_t(most))
    fail(op, argument, "be in [0, " + std::to_string(most) + "]", value);
  return static_cast<unsigned>(value);
}

} // namespace sparq
