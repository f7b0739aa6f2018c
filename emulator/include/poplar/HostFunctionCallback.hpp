// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "ArrayRef.hpp"
#include "Type.hpp"

namespace poplar {

/// Element type and number of elements of what a host function takes or gives.
struct HostFunctionArgument {
  Type elementType;
  std::size_t numElements;
};

/// A function of the host that a program calls: not implemented in the emulator.
class HostCallback {
public:
  virtual ~HostCallback() = default;
  virtual void operator()(ArrayRef<const void *> inputs, ArrayRef<void *> outputs) = 0;
};

class HostCallbackHandle {
public:
  template <class C> HostCallbackHandle(std::unique_ptr<C> p) : callback_(std::move(p)) {}

private:
  std::unique_ptr<HostCallback> callback_;
};

} // namespace poplar
