// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: how lowerings are registered and made.
#pragma once

#include "opx.hpp"

namespace popart {
namespace popx {

class OpxManager {
public:
  using OpxFactoryFunc = std::function<std::unique_ptr<Opx>(Op *, Devicex *)>;
  static std::map<OperatorIdentifier, OpxFactoryFunc, OperatorIdentifierLess> &all() {
    static std::map<OperatorIdentifier, OpxFactoryFunc, OperatorIdentifierLess> registered;
    return registered;
  }
};

template <class OPX> class OpxCreator {
public:
  OpxCreator(const OperatorIdentifier &id) : OpxCreator(std::vector<OperatorIdentifier>{id}) {}
  OpxCreator(const std::vector<OperatorIdentifier> &ids) {
    for (const OperatorIdentifier &id : ids)
      OpxManager::all().emplace(
          id, [](Op *op, Devicex *device) { return std::make_unique<OPX>(op, device); });
  }
};

} // namespace popx
} // namespace popart
