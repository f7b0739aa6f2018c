// SPDX-License-Identifier: Apache-2.0
#include "key_planes.hpp"
#include "arith/half_bits.hpp"
#include "arith/index_planes.hpp"
#include "codelets/cache_append.cycles.hpp"
#include "codelets/index_planes.cycles.hpp"
#include "remote_copy.hpp"
#include <algorithm>
#include <optional>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

PlaneRows planeRows(const CacheLayout &layout) { return {layout, layout.indexBits}; }
PlaneRows stepRows(const CacheLayout &layout) { return {layout, 1}; }

RemoteBuffer addRows(Graph &graph, const Cache &cache, const char *name, const PlaneRows &rows,
                     std::size_t width, bool hostWrites) {
  return addBuffer(graph, cache, name, UNSIGNED_INT, width,
                   std::size_t(cache.layout().nLayers) * rows.ofLayer(cache), hostWrites);
}

class HostKeyPlanes final : public HostKeyRecords {
public:
  HostKeyPlanes(RemoteRows planes, RemoteRows steps, HostTensor readWidest, HostTensor writeWidest,
                const HostTail &tail, const Cache &cache)
      : HostKeyRecords(std::move(planes), tail, cache.layout(), 0), steps_(std::move(steps)),
        readWidest_(std::move(readWidest)), writeWidest_(std::move(writeWidest)),
        layerPlanes_(planeRows(layout).ofLayer(cache)),
        layerSteps_(stepRows(layout).ofLayer(cache)), widest_(readWidest_.size()),
        row_(layout.chunk / groupPositions) {}

  std::vector<Program> programs() const override {
    std::vector<Program> all = HostKeyRecords::programs();
    for (const Program &program : steps_.programs())
      all.push_back(program);
    return all;
  }
  void setFirstProgram(unsigned first) override {
    HostKeyRecords::setFirstProgram(first);
    steps_.setFirstProgram(first + static_cast<unsigned>(HostKeyRecords::programs().size()));
  }
  void write(Engine &engine, HostTokens &tokens) override {
    readWidest_.read(engine, widest_.data());
    stepWriter_.emplace(steps_, engine);
    HostKeyRecords::write(engine, tokens);
    stepWriter_->finish();
    stepWriter_.reset();
    writeWidest_.write(engine, widest_.data());
  }
  void reset(Engine &engine) override {
    HostKeyRecords::reset(engine);
    std::fill(widest_.begin(), widest_.end(), 0.0f);
    writeWidest_.write(engine, widest_.data());
  }

private:
  void send(RemoteRows::Writer &writer, unsigned layer, unsigned task, unsigned chunk) override {
    const unsigned bits = layout.indexBits, nBlocks = layout.chunk / blockSize;
    for (unsigned c = 0; c != layout.headDim; ++c) {
      for (unsigned t = 0; t != bits; ++t) {
        for (unsigned i = 0; i != nBlocks * blockGroups; ++i)
          row_[i] = planeWord(record(c, i / blockGroups) + i % blockGroups * bits, t, bits);
        writer.add(std::size_t(layer) * layerPlanes_ +
                       planeRows(layout).row(task, c * bits + t, chunk),
                   row_.data());
      }
      for (unsigned block = 0; block != nBlocks; ++block)
        row_[block] = record(c, block)[codeWords(bits)];
      stepWriter_->add(std::size_t(layer) * layerSteps_ + stepRows(layout).row(task, c, chunk),
                       row_.data());
      widen(std::size_t(task) * layout.headDim + c, nBlocks);
    }
  }
  void keep(std::size_t at, unsigned n, HostTail::Values &tail) override {
    HostKeyRecords::keep(at, n, tail);
    widen(at, n / blockSize);
  }
  // By the first blocks of the chunk that was gathered.
  void widen(std::size_t at, unsigned nBlocks) {
    const auto c = static_cast<unsigned>(at % layout.headDim);
    for (unsigned block = 0; block != nBlocks; ++block)
      widest_[at] = std::max(widest_[at], widen16(record(c, block)[codeWords(layout.indexBits)]));
  }
  static float widen16(std::uint32_t word) {
    return sparq::widen(static_cast<std::uint16_t>(word & 0xFFFFu));
  }

  RemoteRows steps_;
  HostTensor readWidest_, writeWidest_;
  const std::size_t layerPlanes_, layerSteps_;
  std::optional<RemoteRows::Writer> stepWriter_;
  std::vector<float> widest_;      // {nTasks, headDim}
  std::vector<std::uint32_t> row_; // that is sent
};

class KeyPlanesKind : public KeyColumnsKind {
public:
  // Prefill by the device makes no planes.
  void check(const Request &request) const override {
    if (request.programs.fillTokens != 0)
      throw Error("plan: fill_tokens must be 0 with index_read_bits=" +
                  std::to_string(request.shape.indexReadBits) + ", got " +
                  std::to_string(request.programs.fillTokens));
  }
};

const KindOf<KeyPlanes, KeyPlanesKind> keyPlanesKind;

} // namespace

const StoreKind &keyPlanes = keyPlanesKind;

KeyPlanes::KeyPlanes(Graph &graph, const Cache &cache, bool hostWrites)
    : Index(graph, cache), widest_(addLayered(graph, cache, FLOAT, cache.layout().headDim,
                                              cache.layout().tailComponents, 1, "widest_steps")),
      planes_(addRows(graph, cache, "key_planes", planeRows(cache.layout()),
                      cache.layout().chunk / groupPositions, hostWrites)),
      steps_(addRows(graph, cache, "key_steps", stepRows(cache.layout()),
                     cache.layout().chunk / block, hostWrites)) {}

std::uint64_t KeyPlanes::streamingBytes(const Target &target) const {
  return bytesOf(planes_, target) + bytesOf(steps_, target);
}

std::vector<Layered> KeyPlanes::layered() const {
  std::vector<Layered> all = Index::layered();
  all.push_back(widest_);
  return all;
}

// Full blocks into records, and from there full chunks as planes to streaming memory.
void KeyPlanes::appended(const Append &step, const Tensor &full) const {
  const CacheLayout &layout = step.layout();
  const Placement &p = step.placement();
  Sequence program({}, {step.dc, "quantise"});
  const Tensor chunkFull = addQuantise(step, full, program);
  const ComputeSet cs = step.cache.lockstep->addComputeSet(step.graph, {step.dc, "widest_steps"});
  for (unsigned task = 0; task != p.nTasks; ++task)
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      addVertex(step.graph, cs, "sparq::WidestSteps", p.tile(task % p.slots, slice),
                {{"filled", step.cache.filled[task]},
                 {"full", full[task]},
                 {"tailIndex", own.of(records()[task]).flatten()},
                 {"widest", own.of(widest()[task])}},
                {{"nComponents", own.n()},
                 {"indexBits", layout.indexBits},
                 {"columnWords", static_cast<unsigned>(layout.columnElements(layout.chunk))},
                 {"chunk", layout.chunk}},
                cycles::widestSteps(own.n()));
    }
  program.add(Execute(cs, {step.dc, "widest_steps"}));
  addIfAny(step.graph, step.cache, chunkFull, flush(step, chunkFull), program, {step.dc, "flush"});
  addIfAny(step.graph, step.cache, full, program, step.program, {step.dc, "block"});
}

Sequence KeyPlanes::flush(const Append &step, const Tensor &full) const {
  const Placement &p = step.placement();
  const CacheLayout &layout = step.layout();
  Lockstep &lockstep = *step.cache.lockstep;
  const std::size_t d = layout.headDim, nPlanes = d * layout.indexBits;
  // One slot after the other, what is on a part is of its components.
  const auto add = [&](std::size_t rowsOfComponent, std::size_t width, const char *name) {
    return addSliced(step.graph, p, UNSIGNED_INT, p.slots, d, layout.tailComponents,
                     rowsOfComponent * width, {step.dc, name});
  };
  const auto addNumbers = [&](std::size_t n, const char *name) {
    return addSliced(step.graph, p, UNSIGNED_INT, p.slots, 1, 1, n, {step.dc, name}).squeeze({1});
  };
  const Tensor planes = add(layout.indexBits, planes_.numElements(), "flush_planes"),
               steps = add(1, steps_.numElements(), "flush_steps"),
               planeNumbers = addNumbers(nPlanes, "flush_plane_rows"),
               stepNumbers = addNumbers(d, "flush_step_rows");
  Sequence program({}, {step.dc, "flush"});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const ComputeSet cs = lockstep.addComputeSet(step.graph, {step.dc, "split_records"});
    const unsigned n = p.nActive(round), first = p.firstTask(round);
    for (unsigned slot = 0; slot != n; ++slot) {
      const unsigned task = first + slot;
      const auto number = [&](const Tensor &numbers, const PlaneRows &rows) {
        addVertex(step.graph, cs, "sparq::FlushOffsets", p.home(slot),
                  {{"filled", step.cache.filled[task]},
                   {"full", full[task]},
                   {"layer", step.cache.layer[slot][0]},
                   {"rows", numbers[slot]}},
                  {{"headDim", rows.ofTask()},
                   {"layerRows", rows.ofLayer(step.cache)},
                   {"nChunks", layout.nChunks()},
                   {"chunk", layout.chunk},
                   {"rowBase", static_cast<unsigned>(rows.row(task, 0, 0))},
                   {"scratchRow", static_cast<unsigned>(rows.scratch(slot))}},
                  cycles::flushOffsets(rows.ofTask()));
      };
      number(planeNumbers, planeRows(layout));
      number(stepNumbers, stepRows(layout));
      for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
        const TailSlice own(layout, slice);
        addVertex(step.graph, cs, "sparq::SplitRecords", p.tile(slot, slice),
                  {{"records", own.of(records()[task]).flatten()},
                   {"planes", own.of(planes[slot]).flatten()},
                   {"steps", own.of(steps[slot]).flatten()}},
                  {{"nComponents", own.n()},
                   {"indexBits", layout.indexBits},
                   {"columnWords", static_cast<unsigned>(layout.columnElements(layout.chunk))},
                   {"chunk", layout.chunk}},
                  cycles::splitRecords(own.n(), layout.chunk / block, layout.indexBits));
      }
    }
    program.add(Execute(cs, {step.dc, "split_records"}));
    writeRemote(lockstep, planes_,
                planes.slice(0, n, 0).reshape({n * nPlanes, planes_.numElements()}),
                planeNumbers.slice(0, n, 0).flatten(), program, {step.dc, "write_key_planes"});
    writeRemote(lockstep, steps_, steps.slice(0, n, 0).reshape({n * d, steps_.numElements()}),
                stepNumbers.slice(0, n, 0).flatten(), program, {step.dc, "write_key_steps"});
  }
  return program;
}

std::unique_ptr<HostStore> KeyPlanes::host(Graph &graph, const Cache &cache) const {
  const auto rows = [&](const RemoteBuffer &buffer, const PlaneRows &of, const char *name) {
    return RemoteRows(graph, buffer, std::size_t(cache.layout().nLayers) * of.ofLayer(cache),
                      cache.name + name);
  };
  const std::string name = cache.name + "/widest_steps";
  return std::make_unique<HostKeyPlanes>(rows(planes_, planeRows(cache.layout()), "/key_planes"),
                                         rows(steps_, stepRows(cache.layout()), "/key_steps"),
                                         HostTensor::readable(graph, widest(), name),
                                         HostTensor::writable(graph, widest(), name),
                                         HostTail(graph, cache, *this), cache);
}

} // namespace sparq
