// SPDX-License-Identifier: Apache-2.0
// Overloads that take the metadata of FP8 types. There are no such types here; for others the
// metadata is none.
#include <poplar/Graph.hpp>

#include "core.hpp"
#include "not_implemented.hpp"

namespace poplar {

bool Tensor::hasMetadata() const { return false; }
Tensor Tensor::getMetadata() const { return Tensor(); }

void Graph::checkMetadata(const Type &type, const Tensor &metadata, const char *op) const {
  if (type.requiresMetadata())
    core::notImplemented(std::string("Graph::") + op + " of " + type.toString().str());
  if (metadata.valid())
    throw errors::quarter_metadata(std::string(op) + ": elements of type " + type.toString().str() +
                                   " must have no metadata, got tensor " +
                                   core::tensorName(metadata));
}

Tensor Graph::addVariable(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                          const DebugContext &dc) {
  checkMetadata(type, metadata, "addVariable");
  return addVariable(type, shape, dc);
}
Tensor Graph::addVariable(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                          VariableMappingMethod mappingMethod, const DebugContext &dc) {
  checkMetadata(type, metadata, "addVariable");
  return addVariable(type, shape, mappingMethod, dc);
}
Tensor Graph::addConstant(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                          const void *values, const TypeTraits &traits, bool broadcast,
                          const DebugContext &dc) {
  checkMetadata(type, metadata, "addConstant");
  return addConstant(type, shape, values, traits, broadcast, dc);
}
Tensor Graph::clone(const Type &type, const Tensor &metadata, const Tensor &t,
                    const DebugContext &dc, TensorCloneMethod method) {
  checkMetadata(type, metadata, "clone");
  return clone(type, t, dc, method);
}
Tensor Graph::clone(const Tensor &metadata, const Tensor &t, const DebugContext &dc,
                    TensorCloneMethod method) {
  return clone(t.elementType(), metadata, t, dc, method);
}
Tensor Graph::cloneN(const Type &type, const Tensor &metadata, const Tensor &t, std::size_t N,
                     const DebugContext &dc, TensorCloneMethod method,
                     TensorCloneDuplicationMethod duplicationMethod) {
  checkMetadata(type, metadata, "cloneN");
  return cloneN(type, t, N, dc, method, duplicationMethod);
}
Tensor Graph::cloneN(const Tensor &metadata, const Tensor &t, std::size_t N, const DebugContext &dc,
                     TensorCloneMethod method, TensorCloneDuplicationMethod duplicationMethod) {
  return cloneN(t.elementType(), metadata, t, N, dc, method, duplicationMethod);
}

} // namespace poplar
