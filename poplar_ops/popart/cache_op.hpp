// SPDX-License-Identifier: Apache-2.0
//
// What all operators on a KV cache have in common. Operators of one cache_name share one cache,
// which no tensor of the model stands for: PopART must not drop them, and must keep their order.
#pragma once

#include "popart_headers.hpp"
#include "sparq/plan.hpp"
#include <string>
#include <vector>

namespace sparq_popart {

constexpr const char *domain = "ai.sparq"; // version 1 of every operator, as in Python's contract

class CacheOp : public popart::Op {
public:
  CacheOp(const popart::OperatorIdentifier &opid, const popart::Op::Settings &settings,
          std::string cacheName, std::int64_t capacity);

  const std::string &cacheName() const { return cacheName_; }
  // Known after setup(): batch is 0 before. nHeads is 0 where the operator does not say.
  const sparq::Shape &shape() const { return shape_; }
  // Adds the attention program that this operator needs of the cache.
  virtual void require(sparq::Programs &programs) const = 0;

  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  bool hasSideEffect() const final { return true; }
  // Outlining merges operators only where all of these agree: the cache's name with the rest.
  void appendOutlineAttributes(popart::OpSerialiserBase &os) const override;
  // Also the codelets' contents, so that no executable of older ones is taken from a cache.
  void appendAttributes(popart::OpSerialiserBase &os) const override;

  // The operators of this one's cache, itself included, in all graphs of the model.
  std::vector<const CacheOp *> ofCache() const;

protected:
  // For setup(): sets the shape, and puts the operator behind those of its cache that were in the
  // graph before. Throws sparq::Error where the shape is out of range or not that of the others.
  void join(const sparq::Shape &shape);
  std::int64_t capacity() const { return capacity_; }

private:
  void checkAgreement(const CacheOp &other) const;
  void orderBehindOthers();

  std::string cacheName_;
  std::int64_t capacity_;
  sparq::Shape shape_;
};

} // namespace sparq_popart
