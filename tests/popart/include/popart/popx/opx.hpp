// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: an operator being lowered to Poplar.
#pragma once

#include "../ir.hpp"
#include <poplar/DebugContext.hpp>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

namespace popart {
namespace popx {

// The lowering of one model to one device: PopART's is opaque to operators too.
class Devicex {
public:
  explicit Devicex(poplar::Graph top) : top(std::move(top)) {}
  poplar::Graph top;
  std::map<VGraphId, poplar::Graph> virtualGraphs;
  std::map<TensorId, poplar::Tensor> tensors;
};

class Opx {
public:
  Opx(Op *op, Devicex *device) : op_p(op), dv_p(device) {}
  virtual ~Opx() = default;
  virtual void grow(poplar::program::Sequence &) const = 0;

  const Devicex *getDevicex() const { return dv_p; }
  std::int64_t getVirtualGraphId() const { return op_p->settings.vgraphId.value_or(0); }
  poplar::Graph &graph() const {
    return op_p->settings.vgraphId ? dv_p->virtualGraphs.at(*op_p->settings.vgraphId) : dv_p->top;
  }
  const poplar::Tensor &getInTensor(InIndex index) const {
    return dv_p->tensors.at(op_p->input->tensor(index)->id);
  }
  void setOutTensor(OutIndex index, const poplar::Tensor &tensor) const {
    if (!dv_p->tensors.emplace(op_p->output->tensor(index)->id, tensor).second)
      throw error("a tensor must be made once, got " + op_p->output->tensor(index)->id + " again");
  }
  poplar::DebugContext debugContext(const std::string name = "") const {
    return {op_p->settings.name + "/" + name};
  }
  template <class OP> OP &getOp() const {
    OP *const op = dynamic_cast<OP *>(op_p);
    if (op == nullptr)
      throw error("an operator must be of the type asked for, got " + op_p->opid.type);
    return *op;
  }
  template <class OP> void verifyOp(Op *op, std::vector<OperatorIdentifier> ids) {
    for (const OperatorIdentifier &id : ids)
      if (op->opid == id)
        return;
    throw error("an Opx must be made for its operator, got " + op->opid.type);
  }

  Op *op_p;

protected:
  Devicex *dv_p;
};

} // namespace popx
} // namespace popart
