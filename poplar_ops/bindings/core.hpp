// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  // sparq: tuples (rank, top_k, n_local, mean_value).
  PySession(const Shape &shape, bool denseSram, bool denseStreaming,
            const std::vector<pybind11::tuple> &sparq, bool append, const std::string &device,
            unsigned nTiles, unsigned repeats, unsigned fillTokens);
  void write(const pybind11::array &key, const pybind11::array &value,
             const std::vector<std::uint32_t> &counts);
  void append(const pybind11::array &key, const pybind11::array &value,
              const std::vector<std::uint32_t> &active);
  void fill(const pybind11::array &key, const pybind11::array &value,
            const std::vector<std::int32_t> &lengths);
  pybind11::tuple read(unsigned nTokens);
  // index < 0: dense.
  pybind11::array attention(const pybind11::array &query, const char *op, long index,
                            bool repeated);
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

} // namespace sparq
