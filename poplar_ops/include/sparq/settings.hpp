// SPDX-License-Identifier: Apache-2.0
//
// What a cache and an attention call are described by, and what is thrown where a description is
// out of range. The only place in C++ that has these fields and checks them; in Python it is
// sparq_reference.settings, with the same names and the same words.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace sparq {

// What every function here throws for bad input: "<op>: <argument> must <rule>, got <value>".
struct Error : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A program or a cache does not fit the device. need and room are in units of the resource; 0 if
// the device does not report them.
struct DoesNotFit : Error {
  DoesNotFit(const std::string &message, std::string what, std::uint64_t needed,
             std::uint64_t available)
      : Error(message), resource(std::move(what)), need(needed), room(available) {}
  std::string resource;
  std::uint64_t need, room;
};

// Most positions of one batch element: a count up to here is exact in fp32 (docs/exactness.md E7).
constexpr unsigned maxCapacity = 1u << 24;

// A KV cache of one layer: what the caller chooses of it.
struct CacheSpec {
  unsigned batch = 1;
  unsigned nKvHeads = 1;
  unsigned headDim = 8;  // a multiple of 8
  unsigned capacity = 1; // most positions of one batch element
  // Bits of a number in the key index: 16 (the keys themselves), 8, 4 or 2 (docs/exactness.md E9).
  unsigned indexBits = 16;
  // Bits of a number in the rows of keys and values: 16 or 8 (docs/exactness.md E10).
  unsigned rowBits = 16;
  // Components in the key index, the first ones (docs/exactness.md E13). 0: all.
  unsigned indexComponents = 0;

  unsigned nIndexed() const { return indexComponents == 0 ? headDim : indexComponents; }

  // Independent problems: one KV head of one batch element. Task t is batch element t / nKvHeads,
  // KV head t % nKvHeads.
  unsigned nTasks() const { return batch * nKvHeads; }
};

// An attention layer: its cache, and the query heads that attend to it. Query head h belongs to KV
// head h / groupSize().
struct Shape : CacheSpec {
  Shape() = default;
  Shape(const CacheSpec &cache, unsigned heads) : CacheSpec(cache), nHeads(heads) {}

  unsigned nHeads = 1; // a multiple of nKvHeads

  unsigned groupSize() const { return nHeads / nKvHeads; }
};

// scale(d) = 1 / sqrt(d), computed in double and rounded once to fp32 (docs/exactness.md E4). The
// device program and the CPU kernels both take it from here.
inline float attentionScale(std::size_t headDim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(headDim)));
}

// SparQ's parameters (arXiv:2312.04985, Algorithm 1).
struct SparqSettings {
  unsigned rank = 32;    // components used to score positions (paper: r)
  unsigned topK = 128;   // positions attended to (paper: k)
  unsigned nLocal = 0;   // of these, the most recent ones that are always taken (paper: l)
  bool meanValue = true; // give the weight of the others to the mean of all values

  bool operator==(const SparqSettings &o) const {
    return rank == o.rank && topK == o.topK && nLocal == o.nLocal && meanValue == o.meanValue;
  }
};

// Of window attention, most steps times heads: the sums of their shares stay below 2^31
// (docs/exactness.md E11).
constexpr unsigned maxRecentHeads = (1u << 15) - 1;

// Window attention (arXiv:2403.17312, Algorithm 1).
struct WindowSettings {
  unsigned topK = 128;   // positions attended to (paper: 2 k)
  unsigned nLocal = 64;  // of these, the most recent ones
  unsigned nRecent = 32; // steps that choose the other positions; 0: every n-th position

  // Whether it selects by the attention of earlier steps.
  bool remembers() const { return nRecent > 0 && nLocal < topK; }
  bool operator==(const WindowSettings &o) const {
    return topK == o.topK && nLocal == o.nLocal && nRecent == o.nRecent;
  }
};

// Throw Error unless the argument is in range. `op` is the name that the message begins with; a
// check that passes allocates nothing.
void check(const char *op, const CacheSpec &spec);
void checkHeads(const char *op, const CacheSpec &spec, std::int64_t nHeads);
void check(const char *op, const Shape &shape);
void check(const char *op, const SparqSettings &settings, const CacheSpec &spec);
void check(const char *op, const WindowSettings &settings, std::int64_t nHeads);

// `value` as the descriptions above hold it. Throws Error where it is not in [0, most].
unsigned toUnsigned(const char *op, const char *argument, std::int64_t value,
                    std::uint32_t most = std::numeric_limits<std::uint32_t>::max());

} // namespace sparq
