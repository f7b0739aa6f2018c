// SPDX-License-Identifier: Apache-2.0
//
// The KV caches of a model while it is lowered to Poplar. Operators of one cache_name share a
// cache.
// Caches with the same shape and settings on one IPU are layers of one sparq::Cache and share its
// programs.
#pragma once

#include "cache_op.hpp"
#include "sparq/cache.hpp"
#include <functional>
#include <map>
#include <memory>

namespace sparq_popart {

// Adds what an operator does to the program: inputs to outputs, on the layer that is loaded.
using Body =
    std::function<std::vector<Tensor>(const std::vector<Tensor> &inputs, Sequence &program)>;

// The caches of one kind: the same shape, settings of all their operators, and IPU.
class CacheGroup {
public:
  // Allocated for what the operators on these caches need. The first name is in all handles.
  CacheGroup(Graph &graph, const CacheOp &op, const std::vector<std::string> &names);

  const sparq::Cache &cache() const { return cache_; }
  // The index of this program among those that the cache was planned for.
  std::size_t index(const sparq::Attention &attention) const;
  // Adds `body`, which `what` names, on a layer. With several layers it is one function for all of
  // them: inputs are copied to the function's, outputs from there.
  std::vector<Tensor> add(Graph &graph, const std::string &name, const std::string &what,
                          const Body &body, const std::vector<Tensor> &inputs, Sequence &program,
                          const DebugContext &dc);

private:
  struct Shared {
    Function function;
    std::vector<Tensor> inputs, outputs;
  };
  Shared makeShared(Graph &graph, const Body &body, const std::vector<Tensor> &inputs,
                    const std::string &what) const;

  std::vector<std::string> names_; // of the layers
  sparq::Programs programs_;
  sparq::Cache cache_;
  std::map<std::string, Shared> shared_;
};

// An operator's lowering: adds the codelets before any vertex is.
class CacheOpx : public popart::popx::Opx {
public:
  CacheOpx(popart::Op *op, popart::popx::Devicex *device);

  // With the session's enableFloatingPointChecks, exceptions are off meanwhile: kernels also
  // compute with what rows hold that nobody has written, and use nothing of it.
  void grow(Sequence &program) const final;

protected:
  virtual void growPrograms(Sequence &program) const = 0;
  // Its caches, allocated when they are first asked for. The last operator that has asked destroys
  // them, so the next model starts from nothing. Throws sparq::Error where the operators of its
  // cache are not all on one IPU.
  CacheGroup &group() const;

private:
  const popart::popx::Devicex *device_;
  mutable std::shared_ptr<CacheGroup> group_;
};

} // namespace sparq_popart
