// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"
#include "sparq/session.hpp"
#include <memory>
#include <mutex>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <string>
#include <vector>

namespace sparq {

// Session with NumPy arrays; the GIL is released while the device works. Calls from several threads
// take turns.
class PySession {
public:
  PySession(const Shape &shape, const Programs &programs, const DeviceOptions &device,
            unsigned repeats);
  void write(const pybind11::array &key, const pybind11::array &value,
             const std::vector<std::uint32_t> &counts);
  void append(const pybind11::array &key, const pybind11::array &value,
              const std::vector<std::uint32_t> &active);
  void fill(const pybind11::array &key, const pybind11::array &value,
            const std::vector<std::int32_t> &lengths);
  pybind11::tuple read(unsigned nTokens);
  pybind11::array attention(std::int64_t index, const pybind11::array &query, bool repeated);
  void reset();
  std::vector<std::uint32_t> lengths();
  Session &session() { return *session_; }

private:
  std::mutex mutex_; // taken without the GIL only, which its holder may wait for
  Shape shape_;
  unsigned fillTokens_;
  std::unique_ptr<Session> session_;
};

// Adds what only the emulator can tell: counters, modelled times. Does nothing in a build against
// the SDK.
void bindEmulator(pybind11::module_ &module);

void bindRunVertex(pybind11::module_ &module);

// Objects with `kernel` (a name) and `settings` (SparqSettings, or None), as
// sparq_ipu.kernels.Attention has them.
std::vector<Attention> attentionFrom(const pybind11::sequence &attention);

} // namespace sparq
