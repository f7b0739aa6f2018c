// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: what an operator says of itself, to the outliner
// and to the hash of executables.
#pragma once

#include "op.hpp"
#include <sstream>
#include <utility>

namespace popart {

class OpSerialiserBase {
public:
  virtual ~OpSerialiserBase() = default;
  template <class T> void appendAttribute(const std::string &name, const T &value) {
    std::ostringstream text;
    text << value;
    appendStrAttr(name, text.str());
  }

private:
  virtual void appendStrAttr(const std::string &name, const std::string &value) = 0;
};

inline void Op::appendOutlineAttributes(OpSerialiserBase &os) const {
  os.appendAttribute("virtual_graph", settings.vgraphId.value_or(-1));
}

// Keeps what it is told.
class OpAttributeList : public OpSerialiserBase {
public:
  std::vector<std::pair<std::string, std::string>> all;

private:
  void appendStrAttr(const std::string &name, const std::string &value) override {
    all.emplace_back(name, value);
  }
};

} // namespace popart
