// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core.hpp"
#include "sparq/pod_session.hpp"

namespace sparq {

// PodSession with NumPy arrays, as PySession.
class PyPodSession : public EngineOwner {
public:
  PyPodSession(const Shape &shape, const Programs &programs, const DeviceOptions &options,
               bool stacked);
  void write(const pybind11::array &key, const pybind11::array &value,
             const std::vector<std::uint32_t> &counts, unsigned layer);
  void append(const pybind11::array &key, const pybind11::array &value,
              const std::vector<std::uint32_t> &active, unsigned layer);
  KeyAndValue read(unsigned nTokens, unsigned layer);
  // Of one layer; null: of all, see PodSession::attendAll.
  pybind11::array run(std::int64_t index, const pybind11::array &query, const unsigned *layer);
  void reset(unsigned layer);
  std::vector<std::uint32_t> lengths(unsigned layer);
  PodSession &session() { return *session_; }
  poplar::Engine &engine() override { return session_->engine(); }

private:
  std::mutex mutex_; // taken without the GIL only, which its holder may wait for
  Shape shape_;
  std::unique_ptr<PodSession> session_;
};

} // namespace sparq
