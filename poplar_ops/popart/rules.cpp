// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"
#include "sparq/settings.hpp"
#include <sstream>

namespace sparq_popart {
namespace {

using popart::Attributes;

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

bool isText(const std::string &name) { return name == "cache_name" || name == "memory"; }

// The value as messages show it if it has another type; else nothing.
std::string otherThan(bool text, const Attributes &given, const std::string &name) {
  std::ostringstream shown;
  if (const float number = given.getAttribute<Attributes::Float>(name, 0.0f))
    shown << number;
  else if (!given.getAttribute<Attributes::Ints>(name, {}).empty())
    shown << "a list";
  else if (const Attributes::Int whole = text ? given.getAttribute<Attributes::Int>(name, 0) : 0)
    shown << whole;
  else if (!text && !given.getAttribute<Attributes::String>(name, "").empty())
    shown << "'" << given.getAttribute<Attributes::String>(name, "") << "'";
  return shown.str();
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

void checkAttributes(const popart::OpCreatorInfo &info,
                     const popart::OpDefinition::Attributes &known) {
  for (const std::string &name : info.attributes.getNames()) {
    if (name.compare(0, 2, "__") == 0)
      continue;
    if (known.count(name) == 0) {
      std::string names;
      for (const auto &each : known)
        names += (names.empty() ? "" : ", ") + each.first;
      throw sparq::Error(info.opid.type + ": attributes must be " +
                         (names.empty() ? "none" : "among " + names) + ", got " + name);
    }
    const std::string got = otherThan(isText(name), info.attributes, name);
    if (!got.empty())
      throw sparq::Error(info.opid.type + ": " + name + " must be of type " +
                         (isText(name) ? "string" : "int") + ", got " + got);
  }
}

} // namespace sparq_popart
