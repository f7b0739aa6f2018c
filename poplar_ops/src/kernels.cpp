// SPDX-License-Identifier: Apache-2.0
#include "sparq/kernels.hpp"
#include "context.hpp"

namespace sparq {

const char *nameOf(Memory memory) {
  switch (memory) {
  case Memory::sram:
    return "sram";
  case Memory::tiered:
    return "tiered";
  default:
    return "streaming";
  }
}

const char *nameOf(Takes takes) {
  switch (takes) {
  case Takes::sparq:
    return "sparq";
  case Takes::window:
    return "window";
  default:
    return "nothing";
  }
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
