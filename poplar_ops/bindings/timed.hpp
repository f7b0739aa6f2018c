// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core.hpp"
#include <chrono>
#include <poplar/CycleCount.hpp>

namespace sparq {

// An engine with one program, of which tile 0 counts the cycles.
class Timed : public EngineOwner {
public:
  poplar::Engine &engine() override { return *engine_; }
  double clock() const { return device_.getTarget().getTileClockFrequency(); }
  // Tile cycles of a run, and seconds that the host waited for it.
  std::pair<std::uint64_t, double> run() {
    std::uint32_t words[2]; // the low one first
    std::chrono::duration<double> seconds{};
    {
      const pybind11::gil_scoped_release release;
      const auto start = std::chrono::steady_clock::now();
      engine_->run(0);
      seconds = std::chrono::steady_clock::now() - start;
      engine_->readTensor("cycles", words, words + 2);
    }
    return {words[0] + (std::uint64_t(words[1]) << 32), seconds.count()};
  }

protected:
  explicit Timed(const DeviceOptions &options)
      : device_(openDevice(options)), graph_(device_.getTarget()) {
    addCodelets(graph_);
  }
  void load(poplar::program::Sequence body) {
    const poplar::Tensor cycles =
        poplar::cycleCount(graph_, body, 0, poplar::SyncType::EXTERNAL, {"cycles"});
    graph_.createHostRead("cycles", cycles);
    engine_ = std::make_unique<poplar::Engine>(graph_, body);
    engine_->load(device_);
  }

  poplar::Device device_;
  poplar::Graph graph_;
  std::unique_ptr<poplar::Engine> engine_;
};

} // namespace sparq
