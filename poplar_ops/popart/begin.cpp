// SPDX-License-Identifier: Apache-2.0
//
// Begin returns its input. PopART learns of a domain only from operators in the main graph, so one
// Begin there makes it accept the operators in branches and loop bodies.
//   held {batch} INT32 -> lengths_out {batch} INT32, the same values
#include "cache_op.hpp"
#include "rules.hpp"

namespace sparq_popart {
namespace {

const popart::OperatorIdentifier begin(domain, "Begin", 1);

const std::vector<TensorRule> rules{{"held", popart::DataType::INT32, {"batch"}}};

class BeginOp : public popart::Op {
public:
  explicit BeginOp(const popart::OpCreatorInfo &info) : popart::Op(info.opid, info.settings) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<BeginOp>(*this); }

  void setup() override {
    checkInputs(*this, rules, 0);
    outInfo(0) = inInfo(0);
  }

  float getSubgraphValue() const override { return getLowSubgraphValue(); }
};

class BeginOpx : public popart::popx::Opx {
public:
  BeginOpx(popart::Op *op, popart::popx::Devicex *device) : popart::popx::Opx(op, device) {
    verifyOp<BeginOp>(op, {begin});
  }

  void grow(Sequence &program) const override {
    const Tensor held = getInTensor(0);
    const DebugContext dc = debugContext("begin");
    const Tensor given = graph().clone(held, dc);
    program.add(Copy(held, given, false, dc));
    setOutTensor(0, given);
  }
};

const popart::OpDefinition::DataTypes integer{popart::DataType::INT32};
const popart::OpDefinition definition(popart::OpDefinition::Inputs({{"held", integer}}),
                                      popart::OpDefinition::Outputs({{"lengths_out", integer}}),
                                      popart::OpDefinition::Attributes());

const auto opCreator = creator<BeginOp>(begin, definition);
const popart::popx::OpxCreator<BeginOpx> opxCreator(begin);

} // namespace
} // namespace sparq_popart
