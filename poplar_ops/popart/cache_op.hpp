// SPDX-License-Identifier: Apache-2.0
//
// The base of all operators on a KV cache. Operators of one cache_name share a cache, which is no
// tensor of the model, so PopART must not drop them and must keep their order. Each returns the
// positions held after it and takes those of the operator before as `held`. The values are not
// read, but they order the operators by data, also across graphs.
#pragma once

#include "popart_headers.hpp"
#include "rules.hpp"
#include "sparq/kernels.hpp"
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace sparq_popart {

using namespace poplar;
using namespace poplar::program;

// The options of a cache that attributes give, beside its name. Operators of one cache agree on
// them. python/sparq_ipu/poptorch/contract.py has the same table with the same messages.

struct CacheOptions {
  sparq::CacheSpec spec; // batch, nKvHeads and headDim come with the inputs
  sparq::Memory memory = sparq::Memory::streaming; // or tiered
  sparq::TierOptions tiers;                        // for tiered memory

  CacheOptions() = default;
  // Throws sparq::Error where a value is out of range.
  explicit CacheOptions(const popart::OpCreatorInfo &info);

  // Throws sparq::Error unless a cache can have them together; and, in three tiers, unless programs
  // can attend to that many positions.
  void check(const char *op) const;
  void checkTopK(const char *op, unsigned wanted) const;
  // Every option by name, in one order, with its value as messages show it.
  std::vector<std::pair<std::string, std::string>> shown() const;

  bool operator==(const CacheOptions &other) const { return shown() == other.shown(); }
};

constexpr const char *domain = "ai.sparq"; // version 1 of every operator, as in Python's contract

// The cache attributes of an operator's definition, and `more`. Python's contract uses the same
// names.
popart::OpDefinition::Attributes cacheAttributes(std::initializer_list<const char *> more = {});

class CacheOp : public popart::Op {
public:
  // Reads the attributes of the cache. Throws sparq::Error where one is out of range.
  explicit CacheOp(const popart::OpCreatorInfo &info);

  const std::string &cacheName() const { return cacheName_; }
  const CacheOptions &options() const { return options_; }
  // Known after setup(); batch is 0 before. nHeads is 0 for operators without queries.
  const sparq::Shape &shape() const { return shape_; }
  // Adds the attention program that this operator needs of the cache.
  virtual void require(sparq::Programs &programs) const = 0;

  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  bool hasSideEffect() const final { return true; }
  // Outlining merges operators only where all of these agree: the cache's name with the rest.
  void appendOutlineAttributes(popart::OpSerialiserBase &os) const override;
  // Also the codelets' contents, so that no executable of older codelets is taken from a cache.
  void appendAttributes(popart::OpSerialiserBase &os) const override;

  // The operators of this one's cache, itself included, in all graphs of the model.
  std::vector<const CacheOp *> ofCache() const;
  // The operators of all caches.
  std::vector<const CacheOp *> ofModel() const;

protected:
  // For setup(): takes the shape from the inputs' axes and the attributes, and puts the operator
  // behind those of its cache that were in the graph before. Throws sparq::Error where the shape is
  // out of range or not that of the others.
  void join(const Sizes &sizes);

private:
  void checkSession() const;
  void checkAgreement(const CacheOp &other) const;
  void orderBehindOthers();

  std::string cacheName_;
  CacheOptions options_;
  sparq::Shape shape_;
};

} // namespace sparq_popart
