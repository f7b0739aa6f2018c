// SPDX-License-Identifier: Apache-2.0
#include "tensor_rules.hpp"
#include "sparq/settings.hpp"

namespace sparq_popart {
namespace {

std::string typeName(popart::DataType type) {
  return popart::TensorInfo(type, {}).data_type_lcase();
}

// Formats a shape as Python writes a tuple.
std::string tuple(const popart::Shape &shape) {
  std::string text = "(";
  for (std::size_t i = 0; i != shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

// Whether the shape has these axes; sizes not known before are from now on.
bool matches(const TensorRule &rule, const popart::Shape &shape, Sizes &sizes) {
  if (shape.size() != rule.axes.size())
    return false;
  for (std::size_t i = 0; i != shape.size(); ++i)
    if (sizes.emplace(rule.axes[i], shape[i]).first->second != shape[i])
      return false;
  return true;
}

} // namespace

Sizes checkInputs(const popart::Op &op, const std::vector<TensorRule> &rules, unsigned nOptional) {
  const std::string &name = op.opid.type;
  Sizes sizes;
  for (std::size_t i = 0; i != rules.size(); ++i) {
    const TensorRule &rule = rules[i];
    const popart::InIndex index = static_cast<popart::InIndex>(i);
    if (!op.hasInput(index) && i + nOptional >= rules.size())
      continue;
    if (!op.hasInput(index))
      throw sparq::Error(name + ": " + rule.name + " must be given, got nothing");
    const popart::TensorInfo &info = op.inInfo(index);
    if (info.dataType() != rule.type)
      throw sparq::Error(name + ": " + rule.name + " must be " + typeName(rule.type) + ", got " +
                         info.data_type_lcase());
    if (matches(rule, info.shape(), sizes))
      continue;
    std::string axes;
    for (const char *const axis : rule.axes) {
      const auto known = sizes.find(axis);
      axes += (axes.empty() ? "" : ", ") + std::string(axis) +
              (known != sizes.end() ? "=" + std::to_string(known->second) : "");
    }
    throw sparq::Error(name + ": " + rule.name + " must have shape (" + axes + "), got " +
                       tuple(info.shape()));
  }
  return sizes;
}

} // namespace sparq_popart
