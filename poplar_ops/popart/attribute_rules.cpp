// SPDX-License-Identifier: Apache-2.0
#include "attribute_rules.hpp"
#include "sparq/settings.hpp"
#include <sstream>

namespace sparq_popart {
namespace {

using popart::Attributes;

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
