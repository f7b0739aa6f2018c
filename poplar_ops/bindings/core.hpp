// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"
#include "sparq/session.hpp"
#include <memory>
#include <mutex>
#include <optional>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <string>
#include <vector>

namespace pybind11::detail {

// An object with `kernel` (a name) and `settings` (SparqSettings, or None), as
// sparq_ipu.kernels.Attention has them.
template <> struct type_caster<sparq::Attention> {
  PYBIND11_TYPE_CASTER(sparq::Attention, const_name("sparq_ipu.kernels.Attention"));
  bool load(handle source, bool);
};

// sparq_ipu.device_options.DeviceOptions. Where a cache is, which it says too, follows from the
// kernels; the device has its own name.
template <> struct type_caster<sparq::DeviceOptions> {
  PYBIND11_TYPE_CASTER(sparq::DeviceOptions, const_name("sparq_ipu.device_options.DeviceOptions"));
  bool load(handle source, bool);
};

} // namespace pybind11::detail

namespace sparq {

// For signatures that say what is in a container.
using NamedValues = pybind11::typing::Dict<pybind11::str, pybind11::object>;
using NamedArrays = pybind11::typing::Dict<pybind11::str, pybind11::array>;

// What counts of a run are asked of.
class EngineOwner {
public:
  virtual ~EngineOwner() = default;
  virtual poplar::Engine &engine() = 0;
};

// Adds what only the emulator can tell: counters, modelled times. Does nothing in a build against
// the SDK.
void bindEmulator(pybind11::module_ &module);

void bindVertices(pybind11::module_ &module);
void bindProbes(pybind11::module_ &module); // bench/day/probes.cpp

} // namespace sparq
