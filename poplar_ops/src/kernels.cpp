// SPDX-License-Identifier: Apache-2.0
#include "sparq/kernels.hpp"
#include "context.hpp"

namespace sparq {

const char *nameOf(Memory memory) {
  return memory == Memory::sram ? "sram" : memory == Memory::tiered ? "tiered" : "streaming";
}

const char *nameOf(Takes takes) {
  return takes == Takes::sparq ? "sparq" : takes == Takes::window ? "window" : "nothing";
}

const std::vector<const Kernel *> &kernels() {
  static const std::vector<const Kernel *> all{&denseSram,   &denseStreaming,  &sparqStreaming,
                                               &sparqTiered, &windowStreaming, &windowTiered};
  return all;
}

const Kernel &kernelNamed(const std::string &op, const std::string &name) {
  std::string names;
  for (const Kernel *const kernel : kernels()) {
    if (name == kernel->name)
      return *kernel;
    names += (names.empty() ? "" : ", ") + std::string(kernel->name);
  }
  throw Error(op + ": kernel must be one of " + names + ", got '" + name + "'");
}

poplar::Tensor attend(poplar::Graph &graph, const Cache &cache, std::size_t index,
                      const poplar::Tensor &query, poplar::program::Sequence &program,
                      const poplar::DebugContext &dc) {
  const Plan &plan = cache.plan;
  if (index >= plan.attention.size())
    throw Error("attention: index must be in [0, " + std::to_string(plan.attention.size()) +
                "), the programs that the cache was planned for, got " + std::to_string(index));
  const PlannedAttention &attention = plan.attention[index];
  checkTensor(attention.kernel->op, "query", query, poplar::HALF,
              {plan.shape.batch, plan.shape.nHeads, plan.shape.headDim});
  return attention.kernel->build(graph, cache, attention, query, program, dc);
}

} // namespace sparq
