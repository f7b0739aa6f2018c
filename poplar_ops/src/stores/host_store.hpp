// SPDX-License-Identifier: Apache-2.0
//
// The host's side of a store.
#pragma once

#include "sparq/host_tensor.hpp"
#include "sparq/settings.hpp"
#include <poplar/Engine.hpp>

namespace sparq {

class HostStore;

// Tokens that a layer gets behind those it has.
struct HostTokens {
  const Shape &shape;
  const HostStore &rows; // the store that has them all
  unsigned layer, nTokens;
  const std::vector<std::uint32_t> &held, &counts; // of each batch element; counts at most nTokens
  // {nTasks, nTokens, headDim}: as rows hold them, once rows have them.
  const std::uint16_t *keys, *values;
  std::vector<std::uint16_t> rounded; // what `values` points to, where rows round

  unsigned heldBy(unsigned task) const { return held[task / shape.nKvHeads]; }
  unsigned countOf(unsigned task) const { return counts[task / shape.nKvHeads]; }
  std::size_t at(unsigned task, unsigned token) const {
    return (std::size_t(task) * nTokens + token) * shape.headDim;
  }
};

// Positions [begin, end) of a task, and where they go: {end - begin, headDim}, or nullptr.
struct HostRange {
  unsigned task, begin, end;
  std::uint16_t *key, *value;
};

// "The layer" is the one that was selected last (HostCache::selectLayer).
class HostStore {
public:
  virtual ~HostStore() = default;

  // What the engine has to have among its programs, the first of them as number `first`.
  virtual std::vector<poplar::program::Program> programs() const { return {}; }
  virtual void setFirstProgram(unsigned) {}

  // While the layer is loaded: appends tokens; becomes as it was when made.
  virtual void write(poplar::Engine &, HostTokens &) {}
  virtual void reset(poplar::Engine &) {}
  // Afterwards, when the layer is stored.
  virtual void written(poplar::Engine &) {}
  virtual void wasReset(poplar::Engine &) {}

  // Of rows alone.
  virtual void read(poplar::Engine &, unsigned, const std::vector<HostRange> &) const {}
};

// A store whose rows are in streaming memory: these are its first programs.
class HostRemoteStore : public HostStore {
public:
  explicit HostRemoteStore(RemoteRows rows) : remote(std::move(rows)) {}
  std::vector<poplar::program::Program> programs() const override { return remote.programs(); }
  void setFirstProgram(unsigned first) override { remote.setFirstProgram(first); }

protected:
  RemoteRows remote;
};

// A store of which the host runs one program.
class HostProgram : public HostStore {
public:
  explicit HostProgram(poplar::program::Sequence program) : program_(std::move(program)) {}
  std::vector<poplar::program::Program> programs() const override { return {program_}; }
  void setFirstProgram(unsigned first) override { number_ = first; }

protected:
  void run(poplar::Engine &engine) const { engine.run(number_); }

private:
  poplar::program::Sequence program_;
  unsigned number_ = 0;
};

// A store of hot rows: counts the rows of each task that the last attention call fetched, and
// forgets all rows.
class HostHotRows {
public:
  virtual std::vector<std::uint32_t> misses(poplar::Engine &engine) const = 0;
  virtual void forget(poplar::Engine &engine) const = 0;

protected:
  ~HostHotRows() = default;
};

} // namespace sparq
