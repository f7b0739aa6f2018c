// SPDX-License-Identifier: Apache-2.0
//
// Shapes and settings of the attention ops, and the one place in C++ that checks them.
#pragma once

#include <stdexcept>
#include <string>

namespace sparq {

// What every function here throws for bad input: "<op>: <argument> must <rule>, got <value>", the
// same text as Python's.
struct Error : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// The shape of one attention layer. Query head h belongs to KV head h / groupSize().
struct Shape {
  unsigned batch = 1;
  unsigned nHeads = 1; // query heads, a multiple of nKvHeads
  unsigned nKvHeads = 1;
  unsigned headDim = 8;  // a multiple of 8
  unsigned capacity = 1; // most positions of one batch element

  unsigned groupSize() const { return nHeads / nKvHeads; }
  // Independent problems: one KV head of one batch element. Task t is batch element t / nKvHeads,
  // KV head t % nKvHeads.
  unsigned nTasks() const { return batch * nKvHeads; }
};

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

// Throw Error unless the argument is in range. `op` is the name that the message begins with.
void check(const std::string &op, const Shape &shape);
void check(const std::string &op, const SparqSettings &settings, const Shape &shape);

} // namespace sparq
