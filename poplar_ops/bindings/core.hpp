// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"
#include "sparq/device_options.hpp"
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

// Arrays and their bit patterns (core.cpp): fp16 has no type of its own in pybind11. They throw
// Error where an array has another dtype or shape.
std::uint16_t *halves(const pybind11::array &array, const std::string &op, const char *argument,
                      bool writeable = false);
void expectShape(const pybind11::array &array, const std::vector<pybind11::ssize_t> &shape,
                 const std::string &op, const char *argument);
pybind11::array newHalves(const std::vector<pybind11::ssize_t> &shape);

// For signatures that say what is in a container.
using NamedValues = pybind11::typing::Dict<pybind11::str, pybind11::object>;
using NamedArrays = pybind11::typing::Dict<pybind11::str, pybind11::array>;
using KeyAndValue = pybind11::typing::Tuple<pybind11::array, pybind11::array>;

// What counts of a run are asked of.
class EngineOwner {
public:
  virtual ~EngineOwner() = default;
  virtual poplar::Engine &engine() = 0;
};

// Session with NumPy arrays; the GIL is released while the device works. Calls from several threads
// take turns.
class PySession : public EngineOwner {
public:
  // Of a step of window attention, by position; and of each batch element those that are
  // remembered.
  using Shares =
      pybind11::array_t<std::uint32_t, pybind11::array::c_style | pybind11::array::forcecast>;
  PySession(const Shape &shape, const Programs &programs, const DeviceOptions &options, bool timed,
            bool stacked);
  void write(const pybind11::array &key, const pybind11::array &value,
             const std::vector<std::uint32_t> &counts, unsigned layer);
  void append(const pybind11::array &key, const pybind11::array &value,
              const std::vector<std::uint32_t> &active, unsigned layer);
  KeyAndValue read(unsigned nTokens, unsigned layer);
  pybind11::array attention(std::int64_t index, const pybind11::array &query, unsigned layer);
  pybind11::array attendAll(std::int64_t index, const pybind11::array &query);
  std::vector<std::vector<pybind11::array>> history(unsigned layer);
  void setHistory(const std::vector<std::vector<Shares>> &steps, unsigned layer);
  Session &session() { return *session_; }
  poplar::Engine &engine() override { return session_->engine(); }
  // What `call` returns, which is given the session, alone and without the GIL.
  template <class Call> auto locked(const Call &call) {
    const pybind11::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return call(*session_);
  }

private:
  // Runs `call` on the session with keys and values {batch, nKvHeads, nTokens, headDim}; nTokens
  // below 0: any number. It gets that too.
  template <class Call>
  void withTokens(const char *op, const pybind11::array &key, const pybind11::array &value,
                  pybind11::ssize_t nTokens, const Call &call);
  // The same with the query of an attention program, and what is to be its output.
  template <class Call>
  pybind11::array withQuery(std::int64_t index, const pybind11::array &query, const Call &call);

  std::mutex mutex_; // taken without the GIL only, which its holder may wait for
  Shape shape_;
  std::unique_ptr<Session> session_;
};

// Adds what only the emulator can tell: counters, modelled times. Does nothing in a build against
// the SDK.
void bindEmulator(pybind11::module_ &module);

void bindVertices(pybind11::module_ &module);
void bindProbes(pybind11::module_ &module); // bench/day/probes.cpp

} // namespace sparq
