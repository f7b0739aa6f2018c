// SPDX-License-Identifier: Apache-2.0
#include "sparq/session.hpp"
#include "sparq/cache_fill.hpp"
#include "sparq/kernels.hpp"
#include "sparq/layers.hpp"
#include <map>

#if __has_include(<sparq_emulator/Errors.hpp>)
#include <sparq_emulator/Errors.hpp>
#endif

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Programs of an engine: append, each attention, each attention repeated (where timing was asked
// for), fill (where that was asked for), those of the host's side of the cache and of the history.
constexpr unsigned appendProgram = 0, firstAttention = 1;

const char *const cacheName = "cache";

// Streaming memory from which on `target.extendedMemory` is set. What it does is not documented.
// The published program of SparQ attention switches it off, since it costs time, and all
// measurements were made so; another public program of the vendor's sets it for a buffer of 16 GiB
// or more, where it has to.
constexpr std::uint64_t extendedFrom = std::uint64_t(16) << 30;

// Of each attention, in a profile. Those that take settings are numbered, others where there is more
// than one.
std::vector<std::string> programNames(const Plan &plan) {
  std::vector<std::string> names;
  std::map<const Kernel *, unsigned> count;
  for (const PlannedAttention &attention : plan.attention) {
    const unsigned i = count[attention.kernel]++;
    const bool numbered = attention.kernel->takes != Takes::nothing || i != 0;
    names.push_back(attention.kernel->prefix + (numbered ? std::to_string(i) : std::string()));
  }
  return names;
}

// Only the emulator says how much was needed.
DoesNotFit outOfTileMemory(const graph_memory_allocation_error &error) {
  const std::string message = std::string("plan: ") + error.what();
#if __has_include(<sparq_emulator/Errors.hpp>)
  if (const auto *const known = dynamic_cast<const emulator::OutOfTileMemory *>(&error))
    return {message, "tile memory", known->need, known->room};
#endif
  return {message, "tile memory", 0, 0};
}

} // namespace

Session::Session(const Shape &shape, const Programs &programs, const DeviceOptions &options,
                 unsigned repeats)
    : device_(openDevice(options)), repeats_(repeats), fillTokens_(programs.fillTokens) {
  Graph graph(device_.getTarget());
  addCodelets(graph);
  plan_ = makePlan(graph.getTarget(), shape, programs);
  const Cache cache = createCache(graph, plan_, cacheName);
  streamingBytes_ = cache.streamingBytes(graph.getTarget());
  cache_ = std::make_unique<HostCache>(graph, cache);
  history_ = HostHistory(graph, cache);
  compile(graph, buildPrograms(graph, cache, programs));
  engine_->load(device_);
  for (unsigned layer = 0; layer != nLayers(); ++layer)
    reset(layer);
}

void Session::checkLayer(const char *op, unsigned layer) const {
  if (layer >= nLayers())
    throw Error(std::string(op) + ": layer must be in [0, n_layers=" + std::to_string(nLayers()) +
                "), got " + std::to_string(layer));
}

const std::vector<std::uint32_t> &Session::lengths(unsigned layer) const {
  checkLayer("lengths", layer);
  return cache_->lengths(layer);
}

void Session::write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
                    const std::vector<std::uint32_t> &counts, unsigned layer) {
  checkLayer("append", layer);
  cache_->write(*engine_, layer, key, value, nTokens, counts);
}

void Session::read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer) {
  checkLayer("read", layer);
  cache_->read(*engine_, layer, key, value, nTokens);
}

void Session::reset(unsigned layer) {
  checkLayer("reset", layer);
  cache_->reset(*engine_, layer);
  if (history_.any(layer))
    setHistory(std::vector<HostHistory::Steps>(plan_.shape.batch), layer);
}

Tensor Session::addOnHomes(Graph &graph, const std::vector<std::size_t> &shape,
                           const std::string &name) const {
  const std::size_t nTasks = plan_.shape.nTasks();
  std::size_t n = 1;
  for (const std::size_t extent : shape)
    n *= extent;
  const Tensor t = graph.addVariable(HALF, {nTasks, n / nTasks}, name);
  for (unsigned task = 0; task != nTasks; ++task)
    graph.setTileMapping(t[task], plan_.placement.home(task % plan_.placement.slots));
  return t.reshape(shape);
}

Sequence Session::buildAppend(Graph &graph, const Cache &cache) {
  const Shape &shape = plan_.shape;
  Sequence program({}, {"append"});
  const std::vector<std::size_t> tokenShape{shape.batch, shape.nKvHeads, shape.headDim};
  const Tensor key = addOnHomes(graph, tokenShape, "append/key");
  const Tensor value = addOnHomes(graph, tokenShape, "append/value");
  const Tensor active = graph.addVariable(UNSIGNED_INT, {shape.batch}, "append/active");
  graph.setTileMapping(active, 0);
  append_ = {HostTensor::writable(graph, key, "append/key"),
             HostTensor::writable(graph, value, "append/value"),
             HostTensor::writable(graph, active, "append/active")};
  loadLayer(cache, program, {"append"});
  sparq::append(graph, cache, key, value, active, program, {"append"});
  storeLayer(cache, program, {"append"});
  return program;
}

Sequence Session::buildFill(Graph &graph, const Cache &cache) {
  const Shape &shape = plan_.shape;
  const std::vector<std::size_t> promptShape{shape.batch, shape.nKvHeads, fillTokens_,
                                             shape.headDim};
  const Tensor key = addOnHomes(graph, promptShape, "fill/key");
  const Tensor value = addOnHomes(graph, promptShape, "fill/value");
  const Tensor lengths = graph.addVariable(INT, {shape.batch}, "fill/lengths");
  graph.setTileMapping(lengths, 0);
  fill_ = {HostTensor::writable(graph, key, "fill/key"),
           HostTensor::writable(graph, value, "fill/value"),
           HostTensor::writable(graph, lengths, "fill/lengths")};
  Sequence program({}, {"fill"});
  loadLayer(cache, program, {"fill"});
  fillCache(graph, cache, key, value, lengths, program, {"fill"});
  storeLayer(cache, program, {"fill"});
  return program;
}

std::vector<Program> Session::buildPrograms(Graph &graph, const Cache &cache,
                                            const Programs &programs) {
  const Shape &shape = plan_.shape;
  const Tensor query = addOnHomes(graph, {shape.batch, shape.nHeads, shape.headDim}, "query");
  query_ = HostTensor::writable(graph, query, "query");
  const std::vector<std::string> names = programNames(plan_);
  std::vector<Program> all;
  all.push_back(programs.append && cache.refusal().empty() ? buildAppend(graph, cache)
                                                           : Sequence({}, {"append"}));
  for (std::size_t i = 0; i != nAttention(); ++i) {
    Sequence body({}, {names[i]});
    loadLayer(cache, body, {names[i]});
    const Tensor output = attend(graph, cache, i, query, body, {names[i]});
    outputs_.push_back(HostTensor::readable(graph, output, names[i] + "/output"));
    all.push_back(body);
  }
  if (repeats_ != 0)
    for (std::size_t i = 0; i != nAttention(); ++i)
      all.push_back(Repeat(repeats_, all[firstAttention + i], {"repeated"}));
  if (fillTokens_ != 0)
    all.push_back(buildFill(graph, cache));
  cache_->setFirstProgram(static_cast<unsigned>(all.size()));
  for (const Program &program : cache_->programs())
    all.push_back(program);
  history_.setFirstProgram(static_cast<unsigned>(all.size()));
  for (const Program &program : history_.programs())
    all.push_back(program);
  return all;
}

bool Session::extendedMemory() const { return streamingBytes_ >= extendedFrom; }

void Session::compile(Graph &graph, const std::vector<Program> &all) {
  const OptionFlags options{{"target.hostSyncTimeout", "1800"},
                            {"target.extendedMemory", extendedMemory() ? "true" : "false"}};
  try {
    engine_ = std::make_unique<Engine>(graph, all, options);
  } catch (const graph_memory_allocation_error &error) {
    throw outOfTileMemory(error);
  }
}

std::vector<std::uint32_t> Session::misses() {
  const auto counts = cache_->misses(*engine_);
  if (!counts)
    throw Error(
        "misses: memory must be 'tiered', got '" +
        std::string(nameOf(plan_.attention.empty() ? Memory::streaming
                                                   : plan_.attention.front().kernel->memory)) +
        "'");
  return *counts;
}

void Session::assumeLengths(const std::vector<std::uint32_t> &lengths, unsigned layer) {
  checkLayer("plan", layer);
  const Shape &shape = plan_.shape;
  if (lengths.size() != shape.batch)
    throw Error("plan: lengths must have one entry for each of batch=" +
                std::to_string(shape.batch) + " elements, got " + std::to_string(lengths.size()));
  for (const std::uint32_t length : lengths)
    if (length < 1 || length > shape.capacity)
      throw Error("plan: lengths must be in [1, capacity=" + std::to_string(shape.capacity) +
                  "], got " + std::to_string(length));
  cache_->setLengths(*engine_, layer, lengths);
}

void Session::append(const std::uint16_t *key, const std::uint16_t *value,
                     const std::vector<std::uint32_t> &active, unsigned layer) {
  checkLayer("append", layer);
  cache_->checkRoom(layer, 1, active);
  cache_->selectLayer(*engine_, layer);
  append_.key.write(*engine_, key);
  append_.value.write(*engine_, value);
  append_.counts.write(*engine_, active.data());
  engine_->run(appendProgram);
  cache_->advance(layer, active);
}

void Session::fill(const std::uint16_t *key, const std::uint16_t *value,
                   const std::vector<std::int32_t> &lengths, unsigned layer) {
  const Shape &shape = plan_.shape;
  checkLayer("fill", layer);
  if (fillTokens_ == 0)
    throw Error("fill: the session must have been made with fill_tokens, got 0");
  if (lengths.size() != shape.batch)
    throw Error("fill: lengths must have shape (batch=" + std::to_string(shape.batch) +
                ",), got (" + std::to_string(lengths.size()) + ",)");
  for (const std::int32_t length : lengths)
    if (length < -1 || length > static_cast<std::int64_t>(fillTokens_))
      throw Error("fill: lengths must be in [-1, n_tokens=" + std::to_string(fillTokens_) +
                  "], got " + std::to_string(length));
  cache_->selectLayer(*engine_, layer);
  fill_.key.write(*engine_, key);
  fill_.value.write(*engine_, value);
  fill_.counts.write(*engine_, lengths.data());
  const std::size_t nBefore = firstAttention + (repeats_ != 0 ? 2 : 1) * nAttention();
  engine_->run(static_cast<unsigned>(nBefore));
  for (unsigned b = 0; b != shape.batch; ++b)
    if (lengths[b] >= 0)
      cache_->replaced(layer, b, static_cast<std::uint32_t>(lengths[b]));
  if (!history_.any(layer))
    return;
  std::vector<HostHistory::Steps> steps = history(layer);
  for (unsigned b = 0; b != shape.batch; ++b)
    if (lengths[b] >= 0)
      steps[b].clear();
  setHistory(steps, layer);
}

void Session::attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                        bool repeated, unsigned layer) {
  checkLayer("attention", layer);
  if (index >= nAttention())
    throw Error("attention: index must be in [0, " + std::to_string(nAttention()) + "), got " +
                std::to_string(index));
  const std::size_t program =
      firstAttention + index + (repeated && repeats_ != 0 ? nAttention() : 0);
  cache_->selectLayer(*engine_, layer);
  query_.write(*engine_, query);
  engine_->run(static_cast<unsigned>(program));
  outputs_[index].read(*engine_, output);
  if (plan_.attention[index].remembers())
    for (unsigned i = 0; i != (repeated && repeats_ != 0 ? repeats_ : 1); ++i)
      history_.advance(layer, cache_->lengths(layer));
}

std::vector<HostHistory::Steps> Session::history(unsigned layer) {
  checkLayer("history", layer);
  cache_->selectLayer(*engine_, layer);
  return history_.read(*engine_, layer);
}

void Session::setHistory(const std::vector<HostHistory::Steps> &steps, unsigned layer) {
  checkLayer("set_history", layer);
  cache_->selectLayer(*engine_, layer);
  history_.write(*engine_, layer, steps);
}

} // namespace sparq
