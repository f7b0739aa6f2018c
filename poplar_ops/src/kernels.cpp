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

Tensor attend(Graph &graph, const Cache &cache, std::size_t index, const Tensor &query,
              Sequence &program, const DebugContext &dc) {
  const PlannedAttention &attention = cache.plan.attention.at(index);
  return attention.kernel->build({graph, cache, program, dc}, attention, query);
}

} // namespace sparq
