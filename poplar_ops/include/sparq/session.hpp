// SPDX-License-Identifier: Apache-2.0
//
// A compiled graph with a cache and attention programs, loaded on a device: what the Python package
// and the benchmarks drive.
#pragma once

#include "sparq/attention.hpp"
#include <cstdint>
#include <memory>
#include <poplar/Device.hpp>
#include <poplar/Engine.hpp>
#include <string>
#include <vector>

namespace sparq {

struct DeviceOptions {
  std::string device = "emulator"; // or "ipu"
  unsigned nTiles = 0;             // of the emulated IPU; 0: all of a real one
};

// Attaches to one IPU, or opens an emulated one. Throws Error where there is none (or, on the
// emulator's side, where this build's Poplar can not emulate streaming memory: only the bundled
// emulator can).
poplar::Device openDevice(const DeviceOptions &options);

// Why openDevice would fail; empty if it would not.
std::string deviceUnavailable(const std::string &device);

class Session {
public:
  // Builds, compiles and loads. repeats > 0 adds, for timing, programs that run each attention
  // `repeats` times in one launch.
  Session(const Shape &shape, const Programs &programs, const DeviceOptions &device,
          unsigned repeats = 0);

  const Plan &plan() const { return held_.plan; }
  const std::vector<std::uint32_t> &lengths() const { return lengths_; } // of each batch element
  poplar::Engine &engine() { return *engine_; }

  // Arrays are C-contiguous fp16 bit patterns. Every call leaves the cache as it was where it
  // throws Error. Appends counts[b] of the nTokens of key, value {batch, nKvHeads, nTokens,
  // headDim}, by the host.
  void write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
             const std::vector<std::uint32_t> &counts);
  // Appends one token to the elements whose active is 1, by the device: key, value {batch,
  // nKvHeads, headDim}.
  void append(const std::uint16_t *key, const std::uint16_t *value,
              const std::vector<std::uint32_t> &active);
  // Prefill by the device, fillTokens a call: key, value {batch, nKvHeads, fillTokens, headDim}.
  // Where lengths[b] is not -1, element b then holds the first lengths[b] and nothing else.
  void fill(const std::uint16_t *key, const std::uint16_t *value,
            const std::vector<std::int32_t> &lengths);
  // The cache's rows, {batch, nKvHeads, nTokens, headDim}; zero at or beyond a length.
  void read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens);
  // Forgets every position.
  void reset();

  // query, output {batch, nHeads, headDim}. `repeated` runs the timing program.
  void dense(const std::uint16_t *query, std::uint16_t *output, bool repeated = false);
  void sparq(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
             bool repeated = false);

private:
  void run(unsigned program, const std::string &name, const std::uint16_t *query,
           std::uint16_t *output);
  void storeState();
  [[noreturn]] void throwFull(unsigned b, unsigned n) const;
  std::size_t rowElements() const;

  Shape shape_;
  poplar::Device device_;
  // Of the cache, what is needed after the graph is gone, and its tensors with it.
  struct Held {
    Plan plan{};
    bool resident = false;
    std::size_t rowsPerTask = 0, valueRow = 0;
    std::size_t nKeys = 0, nSums = 0, nTail = 0; // elements of keys, valueSum, tail
    std::string rows, keyColumns;                // handles of the remote buffers
  } held_;
  std::unique_ptr<poplar::Engine> engine_;
  std::vector<std::uint32_t> lengths_;
  bool hasDense_ = false;
  std::size_t nSparq_ = 0;
  unsigned repeats_ = 0;
  unsigned fillTokens_ = 0, fillProgram_ = 0;
};

} // namespace sparq
