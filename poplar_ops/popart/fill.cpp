// SPDX-License-Identifier: Apache-2.0
//
// CacheFill, prefill: row b of the cache then holds the first lengths[b] tokens of key[b], value[b]
// and nothing else; -1 leaves it as it is.
//   key, value {batch, n_kv_heads, n_tokens, head_dim} FLOAT16, lengths {batch} INT32; held {batch}
//   INT32 may be missing
//   -> lengths_out {batch} INT32: positions held afterwards
#include "layer_cache.hpp"
#include "rules.hpp"
#include "sparq/cache.hpp"

namespace sparq_popart {
namespace {

enum Input : popart::InIndex { keyIndex, valueIndex, lengthsIndex };

const popart::OperatorIdentifier cacheFill(domain, "CacheFill", 1);

const std::vector<TensorRule> rules{
    {"key", popart::DataType::FLOAT16, {"batch", "n_kv_heads", "n_tokens", "head_dim"}},
    {"value", popart::DataType::FLOAT16, {"batch", "n_kv_heads", "n_tokens", "head_dim"}},
    {"lengths", popart::DataType::INT32, {"batch"}},
    {"held", popart::DataType::INT32, {"batch"}}};

class CacheFillOp : public CacheOp {
public:
  using CacheOp::CacheOp;

  std::unique_ptr<popart::Op> clone() const override {
    return std::make_unique<CacheFillOp>(*this);
  }

  void setup() override {
    const Sizes sizes = checkInputs(*this, rules, 1);
    const std::int64_t nTokens = sizes.at("n_tokens"), capacity = options().spec.capacity;
    if (nTokens < 1 || nTokens > capacity)
      throw sparq::Error(opid.type + ": n_tokens must be in [1, capacity=" +
                         std::to_string(capacity) + "], got " + std::to_string(nTokens));
    join(sizes);
    outInfo(0) = inInfo(lengthsIndex);
  }

  void require(sparq::Programs &) const override {} // rows as append wants them, which is default
};

class CacheFillOpx : public CacheOpx {
public:
  CacheFillOpx(popart::Op *op, popart::popx::Devicex *device) : CacheOpx(op, device) {
    verifyOp<CacheFillOp>(op, {cacheFill});
  }

  void growPrograms(Sequence &program) const override {
    const CacheFillOp &op = getOp<CacheFillOp>();
    CacheGroup &mine = group();
    const sparq::Cache &held = mine.cache();
    const Tensor key = getInTensor(keyIndex);
    const Body body = [&](const std::vector<Tensor> &inputs,
                          Sequence &steps) -> std::vector<Tensor> {
      sparq::fillCache(graph(), held, inputs[keyIndex], inputs[valueIndex], inputs[lengthsIndex],
                       steps, debugContext("fill"));
      return {};
    };
    mine.add(graph(), op.cacheName(), "fill" + std::to_string(key.dim(2)), body,
             {key, getInTensor(valueIndex), getInTensor(lengthsIndex)}, program,
             debugContext("fill"));
    setOutTensor(0, sparq::heldPositions(graph(), held, program, debugContext("held")));
  }
};

const popart::OpDefinition::DataTypes half{popart::DataType::FLOAT16};
const popart::OpDefinition::DataTypes integer{popart::DataType::INT32};
const popart::OpDefinition
    definition(popart::OpDefinition::Inputs(
                   {{"key", half}, {"value", half}, {"lengths", integer}, {"held", integer}}),
               popart::OpDefinition::Outputs({{"lengths_out", integer}}), cacheAttributes());

const auto opCreator = creator<CacheFillOp>(cacheFill, definition);
const popart::popx::OpxCreator<CacheFillOpx> opxCreator(cacheFill);

} // namespace
} // namespace sparq_popart
