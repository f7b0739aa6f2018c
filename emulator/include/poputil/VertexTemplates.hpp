// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poplar/Type.hpp>

#include <initializer_list>
#include <string>
#include <utility>

namespace poputil {

template <class T> std::string templateParameter(const T &x) { return std::to_string(x); }
inline std::string templateParameter(bool b) { return b ? "true" : "false"; }
inline std::string templateParameter(const char *s) { return s; }
inline std::string templateParameter(const std::string &s) { return s; }
inline std::string templateParameter(const poplar::Type &t) { return t.toString(); }

/// The name of an instance of a vertex template: templateVertex("Sum", FLOAT, true) is
/// "Sum<float,true>".
inline std::string templateVertex(const std::string &name) { return name; }
template <class First, class... Others>
std::string templateVertex(const std::string &name, const First &first, const Others &...others) {
  std::string text = name + "<" + templateParameter(first);
  for (const std::string &other : std::initializer_list<std::string>{templateParameter(others)...})
    text += "," + other;
  return text + ">";
}

} // namespace poputil
