// SPDX-License-Identifier: Apache-2.0
//
// DenseDecode, SparqDecode: where active[b] is not 0 and there is room, append key[b], value[b] to
// row b of the cache; then attend to what every row holds.
// query {batch, n_heads, head_dim}, key and value {batch, n_kv_heads, head_dim} FLOAT16, active
// {batch} INT32; held {batch} INT32 may be missing -> output, as query, and, where the model takes
// it, lengths_out {batch} INT32: positions held afterwards.
#include "layer_cache.hpp"
#include "rules.hpp"
#include "sparq/cache.hpp"
#include "sparq/kernels.hpp"
#include <algorithm>

namespace sparq_popart {
namespace {

enum Input : popart::InIndex { queryIndex, keyIndex, valueIndex, activeIndex };
enum Output : popart::OutIndex { outputIndex, lengthsIndex };

const popart::OperatorIdentifier denseDecode(domain, "DenseDecode", 1);
const popart::OperatorIdentifier sparqDecode(domain, "SparqDecode", 1);

const std::vector<TensorRule> rules{
    {"query", popart::DataType::FLOAT16, {"batch", "n_heads", "head_dim"}},
    {"key", popart::DataType::FLOAT16, {"batch", "n_kv_heads", "head_dim"}},
    {"value", popart::DataType::FLOAT16, {"batch", "n_kv_heads", "head_dim"}},
    {"active", popart::DataType::INT32, {"batch"}},
    {"held", popart::DataType::INT32, {"batch"}}};

class DecodeOp : public CacheOp {
public:
  explicit DecodeOp(const popart::OpCreatorInfo &info) : CacheOp(info) {
    const auto attribute = [&](const char *name) {
      return info.attributes.getAttribute<popart::Attributes::Int>(name);
    };
    const char *const op = opid.type.c_str();
    nKvHeads_ = attribute("n_kv_heads");
    const bool tiered = options().memory == sparq::Memory::tiered;
    if (info.opid == denseDecode) {
      if (tiered)
        throw sparq::Error(opid.type + ": memory must be 'streaming', got 'tiered'");
      attention_.kernel = &sparq::denseStreaming;
      return;
    }
    attention_.kernel = tiered ? &sparq::sparqTiered : &sparq::sparqStreaming;
    sparq::SparqSettings &settings = attention_.settings;
    settings.rank = sparq::toUnsigned(op, "rank", attribute("rank"));
    settings.topK = sparq::toUnsigned(op, "top_k", attribute("top_k"));
    settings.nLocal = sparq::toUnsigned(op, "n_local", attribute("n_local"));
    const std::int64_t meanValue = attribute("mean_value");
    if (meanValue != 0 && meanValue != 1)
      throw sparq::Error(opid.type + ": mean_value must be 0 or 1, got " +
                         std::to_string(meanValue));
    settings.meanValue = meanValue == 1;
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<DecodeOp>(*this); }

  void setup() override {
    const Sizes sizes = checkInputs(*this, rules, 1);
    if (sizes.at("n_kv_heads") != nKvHeads_)
      throw sparq::Error(
          opid.type + ": n_kv_heads must be that of key=" + std::to_string(sizes.at("n_kv_heads")) +
          ", got " + std::to_string(nKvHeads_));
    if (isSparq()) {
      sparq::CacheSpec spec = options().spec;
      spec.headDim = sparq::toUnsigned(opid.type.c_str(), "head_dim", sizes.at("head_dim"));
      sparq::check(opid.type.c_str(), attention_.settings, spec);
    }
    options().checkTopK(opid.type.c_str(), attention_.topK());
    join(sizes);
    outInfo(outputIndex) = inInfo(queryIndex);
    if (output->hasIndex(lengthsIndex))
      outInfo(lengthsIndex) = inInfo(activeIndex);
  }

  void appendOutlineAttributes(popart::OpSerialiserBase &os) const override {
    CacheOp::appendOutlineAttributes(os);
    os.appendAttribute("n_kv_heads", nKvHeads_);
    if (!isSparq())
      return;
    const sparq::SparqSettings &settings = attention_.settings;
    os.appendAttribute("rank", settings.rank);
    os.appendAttribute("top_k", settings.topK);
    os.appendAttribute("n_local", settings.nLocal);
    os.appendAttribute("mean_value", settings.meanValue);
  }

  // The program that this operator runs.
  const sparq::Attention &attention() const { return attention_; }

  void require(sparq::Programs &programs) const override {
    std::vector<sparq::Attention> &all = programs.attention;
    if (std::find(all.begin(), all.end(), attention_) == all.end())
      all.push_back(attention_);
  }

private:
  bool isSparq() const { return attention_.kernel->takes == sparq::Takes::sparq; }

  std::int64_t nKvHeads_;
  sparq::Attention attention_;
};

class DecodeOpx : public CacheOpx {
public:
  DecodeOpx(popart::Op *op, popart::popx::Devicex *device) : CacheOpx(op, device) {
    verifyOp<DecodeOp>(op, {denseDecode, sparqDecode});
  }

  void growPrograms(Sequence &program) const override {
    const DecodeOp &op = getOp<DecodeOp>();
    CacheGroup &mine = group();
    const sparq::Cache &held = mine.cache();
    const std::size_t which = mine.index(op.attention());
    const Body body = [&](const std::vector<Tensor> &inputs,
                          Sequence &steps) -> std::vector<Tensor> {
      const Tensor active =
          sparq::activeTokens(graph(), held, inputs[activeIndex], steps, debugContext("active"));
      sparq::append(graph(), held, inputs[keyIndex], inputs[valueIndex], active, steps,
                    debugContext("append"));
      return {sparq::attend(graph(), held, which, inputs[queryIndex], steps,
                            debugContext("attention"))};
    };
    const std::vector<Tensor> made =
        mine.add(graph(), op.cacheName(), "decode" + std::to_string(which), body,
                 {getInTensor(queryIndex), getInTensor(keyIndex), getInTensor(valueIndex),
                  getInTensor(activeIndex)},
                 program, debugContext("decode"));
    setOutTensor(outputIndex, made[0]);
    if (op.output->hasIndex(lengthsIndex)) // the layer is still the one that was loaded
      setOutTensor(lengthsIndex,
                   sparq::heldPositions(graph(), held, program, debugContext("held")));
  }
};

// ---- what loading the library registers

const popart::OpDefinition::DataTypes half{popart::DataType::FLOAT16};
const popart::OpDefinition::DataTypes integer{popart::DataType::INT32};
const popart::OpDefinition::Inputs inputs{
    {"query", half}, {"key", half}, {"value", half}, {"active", integer}, {"held", integer}};
const popart::OpDefinition::Outputs outputs{{"output", half}, {"lengths_out", integer}};

const auto denseCreator = creator<DecodeOp>(
    denseDecode, popart::OpDefinition(inputs, outputs, cacheAttributes({"n_kv_heads"})));
const auto sparqCreator = creator<DecodeOp>(
    sparqDecode, popart::OpDefinition(
                     inputs, outputs,
                     cacheAttributes({"n_kv_heads", "rank", "top_k", "n_local", "mean_value"})));
const popart::popx::OpxCreator<DecodeOpx> opxCreator(std::vector<popart::OperatorIdentifier>{
    denseDecode, sparqDecode});

} // namespace
} // namespace sparq_popart
