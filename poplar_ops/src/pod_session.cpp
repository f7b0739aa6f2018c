// SPDX-License-Identifier: Apache-2.0
#include "sparq/pod_session.hpp"
#include "context.hpp"
#include "sparq/layers.hpp"
#include <algorithm>

#if __has_include(<sparq_emulator/Errors.hpp>)
#include <sparq_emulator/Errors.hpp>
#endif

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr std::uint64_t extendedFrom = std::uint64_t(16) << 30; // see session.cpp

std::string nameOf(const Plan &plan, std::size_t index) {
  return plan.attention[index].kernel->prefix + std::to_string(index);
}

unsigned gcd(unsigned a, unsigned b) { return b == 0 ? a : gcd(b, a % b); }

// A variable {shape} whose first dimensions are so many tasks, each on the home tile of its slot.
Tensor addOnHomes(Graph &graph, const Placement &placement, const std::vector<std::size_t> &shape,
                  std::size_t nTasks, const std::string &name) {
  std::size_t n = 1;
  for (const std::size_t extent : shape)
    n *= extent;
  const Tensor t = graph.addVariable(HALF, {nTasks, n / nTasks}, name);
  for (std::size_t task = 0; task != nTasks; ++task)
    graph.setTileMapping(t[task], placement.home(static_cast<unsigned>(task % placement.slots)));
  return t.reshape(shape);
}

// Only the emulator says how much was needed, and where.
DoesNotFit outOfTileMemory(const graph_memory_allocation_error &error, unsigned tilesPerIpu) {
  const std::string message = std::string("plan: ") + error.what();
#if __has_include(<sparq_emulator/Errors.hpp>)
  if (const auto *const known = dynamic_cast<const emulator::OutOfTileMemory *>(&error))
    return {message, "tile memory of IPU " + std::to_string(known->tile / tilesPerIpu), known->need,
            known->room};
#endif
  (void)tilesPerIpu;
  return {message, "tile memory", 0, 0};
}

} // namespace

Split splitNamed(const char *op, const std::string &name) {
  if (name != "layers" && name != "heads")
    throw Error(std::string(op) + ": split must be 'layers' or 'heads', got '" + name + "'");
  return name == "layers" ? Split::layers : Split::heads;
}

std::vector<Share> shareOut(const Shape &shape, unsigned nLayers, unsigned nIpus, Split split) {
  if (nIpus < 1 || nIpus > maxIpus || (nIpus & (nIpus - 1)) != 0)
    throw Error("plan: n_ipus must be a power of two up to " + std::to_string(maxIpus) + ", got " +
                std::to_string(nIpus));
  std::vector<Share> shares(nIpus);
  if (split == Split::layers) {
    if (nLayers < nIpus)
      throw Error("plan: n_ipus must be at most n_layers=" + std::to_string(nLayers) +
                  " where layers are split, got " + std::to_string(nIpus));
    // Layer l is on IPU l * nIpus / nLayers.
    const auto first = [&](unsigned ipu) { return (ipu * nLayers + nIpus - 1) / nIpus; };
    for (unsigned ipu = 0; ipu != nIpus; ++ipu)
      shares[ipu] = {shape, first(ipu), first(ipu + 1) - first(ipu), 0, 0};
    return shares;
  }
  const unsigned heads = gcd(nIpus, shape.nKvHeads), rows = nIpus / heads;
  if (shape.batch % rows != 0)
    throw Error("plan: n_ipus must split n_kv_heads, then batch, evenly, got n_ipus=" +
                std::to_string(nIpus) + ", n_kv_heads=" + std::to_string(shape.nKvHeads) +
                ", batch=" + std::to_string(shape.batch));
  Shape part = shape;
  part.batch /= rows;
  part.nKvHeads /= heads;
  part.nHeads /= heads;
  for (unsigned ipu = 0; ipu != nIpus; ++ipu)
    shares[ipu] = {part, 0, nLayers, ipu / heads * part.batch, ipu % heads * part.nKvHeads};
  return shares;
}

PodSession::PodSession(const Shape &shape, const Programs &programs, const DeviceOptions &options,
                       bool stacked)
    : shape_(shape), nLayers_(programs.nLayers), split_(options.split) {
  check("plan", shape);
  for (const Attention &attention : programs.attention)
    if (attention.kernel->takes == Takes::window)
      throw Error(std::string("plan: n_ipus must be 1 for the kernel ") + attention.kernel->name +
                  ", got a session of several");
  const std::vector<Share> shares = shareOut(shape, nLayers_, options.nIpus, split_);
  device_ = openDevice(options);
  Graph graph(device_.getTarget());
  addCodelets(graph);
  shards_.reserve(options.nIpus);
  for (const Share &share : shares)
    addShard(graph, share, programs);
  if (split_ == Split::heads)
    addWhole(graph);
  addPrograms(graph, programs.append && shards_.front().cache.refusal().empty(), stacked);
  compile(graph);
  engine_->load(device_);
  for (unsigned layer = 0; layer != nLayers_; ++layer)
    reset(layer);
}

const Kernel &PodSession::kernel(std::size_t index) const {
  checkIndex(index);
  return *shards_.front().plan.attention[index].kernel;
}

bool PodSession::extendedMemory() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const Shard &s) { return s.streamingBytes >= extendedFrom; });
}

void PodSession::checkLayer(const char *op, unsigned layer) const {
  if (layer >= nLayers_)
    throw Error(std::string(op) + ": layer must be in [0, n_layers=" + std::to_string(nLayers_) +
                "), got " + std::to_string(layer));
}

void PodSession::checkIndex(std::size_t index) const {
  if (index >= nAttention())
    throw Error("attention: index must be in [0, " + std::to_string(nAttention()) + "), got " +
                std::to_string(index));
}

void PodSession::checkBatch(const char *op, std::size_t n) const {
  if (n != shape_.batch)
    throw Error(std::string(op) + ": lengths must have shape (batch=" +
                std::to_string(shape_.batch) + ",), got (" + std::to_string(n) + ",)");
}

void PodSession::addShard(Graph &graph, const Share &share, const Programs &programs) {
  const unsigned ipu = nIpus(), tiles = graph.getTarget().getTilesPerIPU();
  shards_.emplace_back(share, graph.createVirtualGraph(ipu * tiles, (ipu + 1) * tiles));
  Shard &shard = shards_.back();
  Programs own = programs;
  own.nLayers = share.nLayers;
  shard.plan = makePlan(shard.graph.getTarget(), share.shape, own);
  shard.cache = createCache(shard.graph, shard.plan, "ipu" + std::to_string(ipu) + "/cache");
  shard.streamingBytes = shard.cache.streamingBytes(graph.getTarget());
  shard.host = std::make_unique<HostCache>(shard.graph, shard.cache);
  addAttention(shard);
  if (programs.append && shard.cache.refusal().empty())
    addAppend(shard);
}

void PodSession::addAttention(Shard &shard) {
  const Shape &shape = shard.share.shape;
  const std::string &name = shard.cache.name;
  shard.query =
      addOnHomes(shard.graph, shard.plan.placement, {shape.batch, shape.nHeads, shape.headDim},
                 shape.nTasks(), name + "/query");
  shard.writeQuery = HostTensor::writable(shard.graph, shard.query, name + "/query");
  for (std::size_t i = 0; i != shard.plan.attention.size(); ++i) {
    const std::string step = nameOf(shard.plan, i);
    Sequence body({}, {step});
    loadLayer(shard.cache, body, {step});
    shard.outputs.push_back(sparq::attend(shard.graph, shard.cache, i, shard.query, body, {step}));
    shard.readOutputs.push_back(
        HostTensor::readable(shard.graph, shard.outputs.back(), name + "/" + step + "/output"));
    shard.attend.push_back(shard.graph.addFunction(body));
  }
}

void PodSession::addAppend(Shard &shard) {
  const Shape &shape = shard.share.shape;
  const std::string &name = shard.cache.name;
  const std::vector<std::size_t> token{shape.batch, shape.nKvHeads, shape.headDim};
  const Placement &p = shard.plan.placement;
  shard.key = addOnHomes(shard.graph, p, token, shape.nTasks(), name + "/key");
  shard.value = addOnHomes(shard.graph, p, token, shape.nTasks(), name + "/value");
  shard.active = shard.graph.addVariable(UNSIGNED_INT, {shape.batch}, name + "/active");
  shard.graph.setTileMapping(shard.active, 0);
  shard.writeKey = HostTensor::writable(shard.graph, shard.key, name + "/key");
  shard.writeValue = HostTensor::writable(shard.graph, shard.value, name + "/value");
  shard.writeActive = HostTensor::writable(shard.graph, shard.active, name + "/active");
  Sequence program({}, {"append"});
  loadLayer(shard.cache, program, {"append"});
  sparq::append(shard.graph, shard.cache, shard.key, shard.value, shard.active, program,
                {"append"});
  storeLayer(shard.cache, program, {"append"});
  shard.append = shard.graph.addFunction(program);
}

// What the host writes and reads, on IPU 0.
void PodSession::addWhole(Graph &) {
  Shard &first = shards_.front();
  const Placement &p = first.plan.placement;
  const std::size_t nTasks = shape_.nTasks();
  const auto tensor = [&](unsigned heads, const char *name) {
    return addOnHomes(first.graph, p, {shape_.batch, heads, shape_.headDim}, nTasks, name);
  };
  query_ = tensor(shape_.nHeads, "query");
  writeQuery_ = HostTensor::writable(first.graph, query_, "query");
  for (std::size_t i = 0; i != nAttention(); ++i) {
    const std::string name = nameOf(first.plan, i) + "/output";
    outputs_.push_back(tensor(shape_.nHeads, name.c_str()));
    readOutputs_.push_back(HostTensor::readable(first.graph, outputs_.back(), name));
  }
  if (!first.key.valid())
    return;
  key_ = tensor(shape_.nKvHeads, "key");
  value_ = tensor(shape_.nKvHeads, "value");
  active_ = first.graph.addVariable(UNSIGNED_INT, {shape_.batch}, "active");
  first.graph.setTileMapping(active_, 0);
  writeKey_ = HostTensor::writable(first.graph, key_, "key");
  writeValue_ = HostTensor::writable(first.graph, value_, "value");
  writeActive_ = HostTensor::writable(first.graph, active_, "active");
}

Program PodSession::scatter(const Tensor &whole, Tensor Shard::*part, std::size_t extent,
                            const char *name) const {
  std::vector<Tensor> from, to;
  for (const Shard &shard : shards_) {
    const Share &s = shard.share;
    const std::size_t heads = extent / shape_.nKvHeads;
    Tensor own = whole.slice(s.firstBatch, s.firstBatch + s.shape.batch, 0);
    if (own.rank() > 1)
      own = own.slice(s.firstKvHead * heads, (s.firstKvHead + s.shape.nKvHeads) * heads, 1);
    from.push_back(own.flatten());
    to.push_back((shard.*part).flatten());
  }
  return Copy(concat(from), concat(to), false, {name});
}

Program PodSession::gather(std::size_t index) const {
  std::vector<Tensor> from, to;
  const std::size_t group = shape_.groupSize();
  for (const Shard &shard : shards_) {
    const Share &s = shard.share;
    from.push_back(shard.outputs[index].flatten());
    to.push_back(outputs_[index]
                     .slice(s.firstBatch, s.firstBatch + s.shape.batch, 0)
                     .slice(s.firstKvHead * group, (s.firstKvHead + s.shape.nKvHeads) * group, 1)
                     .flatten());
  }
  return Copy(concat(from), concat(to), false, {"gather_output"});
}

Sequence PodSession::attendOnAll(std::size_t index) const {
  Sequence program;
  program.add(scatter(query_, &Shard::query, shape_.nHeads, "scatter_query"));
  for (const Shard &shard : shards_)
    program.add(Call(shard.attend[index]));
  program.add(gather(index));
  return program;
}

Sequence PodSession::stackOfLayers(Graph &, std::size_t index) {
  Sequence program;
  for (std::size_t ipu = 0; ipu != shards_.size(); ++ipu) {
    Shard &shard = shards_[ipu];
    for (unsigned layer = 0; layer != shard.share.nLayers; ++layer) {
      if (layer != 0)
        program.add(Copy(shard.outputs[index], shard.query, false, {"next_layer"}));
      selectLayer(shard.graph, shard.cache, layer, program, {"next_layer"});
      program.add(Call(shard.attend[index]));
    }
    if (ipu + 1 != shards_.size())
      program.add(Copy(shard.outputs[index], shards_[ipu + 1].query, false, {"next_ipu"}));
  }
  return program;
}

Sequence PodSession::stackOfHeads(Graph &, std::size_t index) {
  Sequence program;
  for (unsigned layer = 0; layer != nLayers_; ++layer) {
    if (layer != 0)
      program.add(Copy(outputs_[index], query_, false, {"next_layer"}));
    for (Shard &shard : shards_)
      selectLayer(shard.graph, shard.cache, layer, program, {"next_layer"});
    program.add(attendOnAll(index));
  }
  return program;
}

void PodSession::addPrograms(Graph &graph, bool append, bool stacked) {
  const auto add = [&](const Program &program) { programs_.push_back(program); };
  if (split_ == Split::layers) {
    for (Shard &shard : shards_) {
      shard.firstProgram = static_cast<unsigned>(programs_.size());
      add(append ? Program(Call(shard.append)) : Program(Sequence()));
      for (const Function &function : shard.attend)
        add(Call(function));
    }
  } else {
    firstProgram_ = static_cast<unsigned>(programs_.size());
    Sequence onAll;
    if (append) {
      onAll.add(scatter(key_, &Shard::key, shape_.nKvHeads, "scatter_key"));
      onAll.add(scatter(value_, &Shard::value, shape_.nKvHeads, "scatter_value"));
      onAll.add(scatter(active_, &Shard::active, shape_.nKvHeads, "scatter_active"));
      for (const Shard &shard : shards_)
        onAll.add(Call(shard.append));
    }
    add(onAll);
    for (std::size_t i = 0; i != nAttention(); ++i)
      add(attendOnAll(i));
  }
  for (Shard &shard : shards_) {
    shard.host->setFirstProgram(static_cast<unsigned>(programs_.size()));
    for (const Program &program : shard.host->programs())
      add(program);
  }
  if (!stacked)
    return;
  firstStack_ = static_cast<unsigned>(programs_.size());
  for (std::size_t i = 0; i != nAttention(); ++i)
    add(split_ == Split::layers ? stackOfLayers(graph, i) : stackOfHeads(graph, i));
}

void PodSession::compile(Graph &graph) {
  const OptionFlags options{{"target.hostSyncTimeout", "1800"},
                            {"target.extendedMemory", extendedMemory() ? "true" : "false"}};
  try {
    engine_ = std::make_unique<Engine>(graph, programs_, options);
  } catch (const graph_memory_allocation_error &error) {
    throw outOfTileMemory(error, graph.getTarget().getTilesPerIPU());
  }
}

PodSession::Shard &PodSession::shardOf(unsigned layer) {
  return shards_[split_ == Split::heads ? 0 : layer * nIpus() / nLayers_];
}

const PodSession::Shard &PodSession::shardOf(unsigned layer) const {
  return shards_[split_ == Split::heads ? 0 : layer * nIpus() / nLayers_];
}

std::vector<std::uint16_t> PodSession::partOf(const Shard &shard, const std::uint16_t *whole,
                                              std::size_t each) const {
  const Share &s = shard.share;
  std::vector<std::uint16_t> part;
  part.reserve(s.shape.nTasks() * each);
  for (unsigned b = 0; b != s.shape.batch; ++b) {
    const std::uint16_t *const from =
        whole + ((s.firstBatch + b) * std::size_t(shape_.nKvHeads) + s.firstKvHead) * each;
    part.insert(part.end(), from, from + s.shape.nKvHeads * each);
  }
  return part;
}

void PodSession::putPart(const Shard &shard, const std::vector<std::uint16_t> &part,
                         std::uint16_t *whole, std::size_t each) const {
  const Share &s = shard.share;
  const std::size_t n = s.shape.nKvHeads * each;
  for (unsigned b = 0; b != s.shape.batch; ++b)
    std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(b * n), n,
                whole + ((s.firstBatch + b) * std::size_t(shape_.nKvHeads) + s.firstKvHead) * each);
}

template <class T>
std::vector<T> PodSession::ofBatch(const Shard &shard, const std::vector<T> &all) const {
  std::vector<T> own(shard.share.shape.batch);
  for (unsigned b = 0; b != own.size(); ++b)
    own[b] = all[shard.share.firstBatch + b];
  return own;
}

std::vector<std::uint32_t> PodSession::lengths(unsigned layer) const {
  checkLayer("lengths", layer);
  if (split_ == Split::layers) {
    const Shard &shard = shardOf(layer);
    return shard.host->lengths(layerOf(shard, layer));
  }
  std::vector<std::uint32_t> all(shape_.batch);
  for (const Shard &shard : shards_) {
    const std::vector<std::uint32_t> &own = shard.host->lengths(layer);
    std::copy(own.begin(), own.end(), all.begin() + shard.share.firstBatch);
  }
  return all;
}

void PodSession::write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
                       const std::vector<std::uint32_t> &counts, unsigned layer) {
  checkLayer("append", layer);
  if (split_ == Split::layers) {
    Shard &shard = shardOf(layer);
    shard.host->write(*engine_, layerOf(shard, layer), key, value, nTokens, counts);
    return;
  }
  checkBatch("append", counts.size());
  for (const Shard &shard : shards_) // before any is altered
    shard.host->checkRoom(layer, nTokens, ofBatch(shard, counts));
  const std::size_t each = std::size_t(nTokens) * shape_.headDim;
  for (const Shard &shard : shards_)
    shard.host->write(*engine_, layer, partOf(shard, key, each).data(),
                      partOf(shard, value, each).data(), nTokens, ofBatch(shard, counts));
}

void PodSession::read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer) {
  checkLayer("read", layer);
  if (split_ == Split::layers) {
    Shard &shard = shardOf(layer);
    shard.host->read(*engine_, layerOf(shard, layer), key, value, nTokens);
    return;
  }
  const std::size_t each = std::size_t(nTokens) * shape_.headDim;
  for (const Shard &shard : shards_) {
    std::vector<std::uint16_t> k(shard.share.shape.nTasks() * each), v(k.size());
    shard.host->read(*engine_, layer, k.data(), v.data(), nTokens);
    putPart(shard, k, key, each);
    putPart(shard, v, value, each);
  }
}

void PodSession::reset(unsigned layer) {
  checkLayer("reset", layer);
  if (split_ == Split::layers) {
    Shard &shard = shardOf(layer);
    shard.host->reset(*engine_, layerOf(shard, layer));
    return;
  }
  for (const Shard &shard : shards_)
    shard.host->reset(*engine_, layer);
}

void PodSession::append(const std::uint16_t *key, const std::uint16_t *value,
                        const std::vector<std::uint32_t> &active, unsigned layer) {
  checkLayer("append", layer);
  if (split_ == Split::layers) {
    Shard &shard = shardOf(layer);
    const unsigned own = layerOf(shard, layer);
    shard.host->checkRoom(own, 1, active);
    shard.host->selectLayer(*engine_, own);
    shard.writeKey.write(*engine_, key);
    shard.writeValue.write(*engine_, value);
    shard.writeActive.write(*engine_, active.data());
    engine_->run(shard.firstProgram);
    shard.host->advance(own, active);
    return;
  }
  checkBatch("append", active.size());
  for (const Shard &shard : shards_)
    shard.host->checkRoom(layer, 1, ofBatch(shard, active));
  for (const Shard &shard : shards_)
    shard.host->selectLayer(*engine_, layer);
  writeKey_.write(*engine_, key);
  writeValue_.write(*engine_, value);
  writeActive_.write(*engine_, active.data());
  engine_->run(firstProgram_);
  for (const Shard &shard : shards_)
    shard.host->advance(layer, ofBatch(shard, active));
}

void PodSession::attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                           unsigned layer) {
  checkLayer("attention", layer);
  checkIndex(index);
  const unsigned program = 1 + static_cast<unsigned>(index);
  if (split_ == Split::layers) {
    Shard &shard = shardOf(layer);
    shard.host->selectLayer(*engine_, layerOf(shard, layer));
    shard.writeQuery.write(*engine_, query);
    engine_->run(shard.firstProgram + program);
    shard.readOutputs[index].read(*engine_, output);
    return;
  }
  for (const Shard &shard : shards_)
    shard.host->selectLayer(*engine_, layer);
  writeQuery_.write(*engine_, query);
  engine_->run(firstProgram_ + program);
  readOutputs_[index].read(*engine_, output);
}

void PodSession::assumeLengths(const std::vector<std::uint32_t> &lengths) {
  checkBatch("plan", lengths.size());
  for (const std::uint32_t length : lengths)
    if (length < 1 || length > shape_.capacity)
      throw Error("plan: lengths must be in [1, capacity=" + std::to_string(shape_.capacity) +
                  "], got " + std::to_string(length));
  for (const Shard &shard : shards_)
    for (unsigned layer = 0; layer != shard.share.nLayers; ++layer)
      shard.host->setLengths(*engine_, layer, ofBatch(shard, lengths));
}

void PodSession::attendAll(std::size_t index, const std::uint16_t *query, std::uint16_t *output) {
  checkIndex(index);
  if (firstStack_ == 0)
    throw Error("attention: the session must have been made with stacked=True, got False");
  (split_ == Split::layers ? shards_.front().writeQuery : writeQuery_).write(*engine_, query);
  engine_->run(firstStack_ + static_cast<unsigned>(index));
  const std::vector<HostTensor> &outputs =
      split_ == Split::layers ? shards_.back().readOutputs : readOutputs_;
  outputs[index].read(*engine_, output);
}

} // namespace sparq
