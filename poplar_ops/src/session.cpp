// SPDX-License-Identifier: Apache-2.0
//
// A session: first how it is built, of shards, what passes between them, and programs of the
// engine.
#include "sparq/session.hpp"
#include "sparq/cache.hpp"
#include <algorithm>
#include <poplar/CycleCount.hpp>

#if __has_include(<sparq_emulator/Errors.hpp>)
#include <sparq_emulator/Errors.hpp>
#endif

namespace sparq {

namespace {

// Streaming memory from which on `target.extendedMemory` is set. What it does is not documented.
// The published program of SparQ attention switches it off, since it costs time, and all
// measurements were made so; another public program of the vendor's sets it for a buffer of 16 GiB
// or more, where it has to.
constexpr std::uint64_t extendedFrom = std::uint64_t(16) << 30;

// Only the emulator reports how much memory was needed, and where.
DoesNotFit outOfTileMemory(const graph_memory_allocation_error &error, unsigned tilesPerIpu,
                           std::size_t nIpus) {
  const std::string message = std::string("plan: ") + error.what();
#if __has_include(<sparq_emulator/Errors.hpp>)
  if (const auto *const known = dynamic_cast<const emulator::OutOfTileMemory *>(&error)) {
    const std::string ipu =
        nIpus == 1 ? "" : " of IPU " + std::to_string(known->tile / tilesPerIpu);
    return {message, "tile memory" + ipu, known->need, known->room};
  }
#endif
  (void)tilesPerIpu;
  (void)nIpus;
  return {message, "tile memory", 0, 0};
}

} // namespace

Session::Session(const Shape &shape, const Programs &programs, const DeviceOptions &options,
                 bool timed, bool stacked)
    : shape_(shape), nLayers_(programs.nLayers), timed_(timed) {
  const std::vector<Share> shares = shareOut(shape, nLayers_, options.nIpus, options.split);
  device_ = openDevice(options);
  Graph graph(device_.getTarget());
  addCodelets(graph);
  // One IPU that runs all layers in one launch does as one of several: plans count it for these.
  const bool shared = options.nIpus != 1 || stacked;
  const unsigned tiles = graph.getTarget().getTilesPerIPU();
  Programs own = programs;
  own.tiers = options.tiers;
  const bool spread = shared && options.split == Split::heads;
  // What IPUs that are in step have, in two rounds: programs call functions of all caches.
  const auto forEachIpu = [&](const auto &build) {
    std::shared_ptr<Lockstep> lockstep;
    for (unsigned ipu = 0; ipu != options.nIpus; ++ipu) {
      if (spread && lockstep)
        lockstep->nextIpu();
      else
        lockstep = std::make_shared<Lockstep>(spread ? options.nIpus : 1);
      own.nLayers = shares[ipu].nLayers;
      build(ipu, lockstep);
    }
  };
  shards_.reserve(options.nIpus);
  forEachIpu([&](unsigned ipu, const std::shared_ptr<Lockstep> &lockstep) {
    shards_.emplace_back(shares[ipu], graph.createVirtualGraph(ipu * tiles, (ipu + 1) * tiles), own,
                         shared ? "ipu" + std::to_string(ipu) + "/" : "", shared, lockstep);
  });
  forEachIpu([&](unsigned ipu, const std::shared_ptr<Lockstep> &lockstep) {
    if (spread) {
      shards_[ipu].cache.load = shards_.back().cache.load;
      shards_[ipu].cache.store = shards_.back().cache.store;
    }
    shards_[ipu].addPrograms(own, shared, lockstep);
  });
  addEntries(spread);
  compile(graph, buildPrograms(stacked));
  engine_->load(device_);
  for (unsigned layer = 0; layer != nLayers_; ++layer)
    reset(layer);
}

void Session::addEntries(bool spread) {
  if (spread) {
    entries_.push_back({&whole_, {}, 0, {}, {}});
    for (Shard &shard : shards_)
      entries_.front().shards.push_back(&shard);
    addWhole(shards_.front());
  } else {
    for (Shard &shard : shards_)
      entries_.push_back({&shard.ports, {&shard}, 0, {}, {}});
  }
  last_ = &entries_.front();
}

// On the IPU of that shard.
void Session::addWhole(Shard &shard) {
  const PortSite site{shard.graph, shard.plan.placement, shape_, ""};
  site.addQuery(whole_);
  for (const std::string &step : shard.steps)
    site.addOutput(whole_, step);
  if (shard.ports.key.tensor.valid())
    site.addAppend(whole_);
}

Tensor Session::ofShard(const Shard &shard, const Tensor &whole) const {
  const Share &s = shard.share;
  const Tensor own = whole.slice(s.firstBatch, s.firstBatch + s.shape.batch, 0);
  if (own.rank() == 1)
    return own;
  const std::size_t heads = own.dim(1) / shape_.nKvHeads;
  return own.slice(s.firstKvHead * heads, (s.firstKvHead + s.shape.nKvHeads) * heads, 1).flatten();
}

Program Session::scatter(const Entry &entry, Port Ports::*port, const char *name) const {
  std::vector<Tensor> from, to;
  for (const Shard *const shard : entry.shards) {
    from.push_back(ofShard(*shard, (entry.ports->*port).tensor));
    to.push_back((shard->ports.*port).tensor.flatten());
  }
  return Copy(concat(from), concat(to), false, {name});
}

Program Session::appendOn(const Entry &entry) const {
  if (!entry.isSpread())
    return entry.shards.front()->append;
  Sequence onAll;
  if (!entry.ports->key.tensor.valid())
    return onAll; // there is no such program
  onAll.add(scatter(entry, &Ports::key, "scatter_key"));
  onAll.add(scatter(entry, &Ports::value, "scatter_value"));
  onAll.add(scatter(entry, &Ports::active, "scatter_active"));
  for (const Shard *const shard : entry.shards)
    onAll.add(shard->append);
  return onAll;
}

Program Session::attend(const Entry &entry, std::size_t index) const {
  if (!entry.isSpread())
    return entry.shards.front()->attend[index];
  Sequence onAll;
  onAll.add(scatter(entry, &Ports::query, "scatter_query"));
  std::vector<Tensor> from, to;
  for (const Shard *const shard : entry.shards) {
    onAll.add(shard->attend[index]);
    from.push_back(shard->ports.outputs[index].tensor.flatten());
    to.push_back(ofShard(*shard, entry.ports->outputs[index].tensor));
  }
  onAll.add(Copy(concat(from), concat(to), false, {"gather_output"}));
  return Call(
      entry.shards.front()->graph.addFunction(onAll)); // of all layers: its exchanges are long
}

// The cycles between two points at which all IPUs meet: with a sync inside an IPU alone, what
// streaming memory has still to do would not be in them.
Program Session::timed(Entry &entry, std::size_t index) const {
  Sequence program;
  program.add(entry.attend[index]);
  Shard &first = *entry.shards.front();
  const std::string name = first.steps[index] + "/cycles";
  const Tensor cycles = cycleCount(first.graph, program, 0, SyncType::EXTERNAL, {name});
  entry.cycles.push_back(HostTensor::readable(first.graph, cycles, first.cache.name + "/" + name));
  return program;
}

std::vector<Program> Session::programsOf(Entry &entry) const {
  std::vector<Program> all{appendOn(entry)};
  for (std::size_t i = 0; i != nAttention(); ++i) {
    entry.attend.push_back(attend(entry, i));
    all.push_back(timed_ ? timed(entry, i) : entry.attend.back());
  }
  return all;
}

Sequence Session::stack(std::size_t index) {
  Sequence program;
  for (const Entry &entry : entries_) {
    const Ports &ports = *entry.ports;
    for (unsigned layer = 0; layer != entry.shards.front()->share.nLayers; ++layer) {
      if (layer != 0)
        program.add(Copy(ports.outputs[index].tensor, ports.query.tensor, false, {"next_layer"}));
      Lockstep together(static_cast<unsigned>(entry.shards.size()));
      for (Shard *const shard : entry.shards) {
        if (shard != entry.shards.front())
          together.nextIpu();
        selectLayer(shard->graph, shard->cache, layer, program, {"next_layer"}, &together);
      }
      program.add(entry.attend[index]);
    }
    if (&entry != &entries_.back())
      program.add(Copy(ports.outputs[index].tensor, (&entry + 1)->ports->query.tensor, false,
                       {"next_ipu"}));
  }
  return program;
}

std::vector<Program> Session::buildPrograms(bool stacked) {
  std::vector<Program> all;
  const auto add = [&](const std::vector<Program> &some) {
    const auto first = static_cast<unsigned>(all.size());
    all.insert(all.end(), some.begin(), some.end());
    return first;
  };
  for (Entry &entry : entries_)
    entry.firstProgram = add(programsOf(entry));
  for (Shard &shard : shards_)
    shard.host->programs().first = add(shard.host->programs().all);
  if (stacked) {
    firstStack_ = static_cast<unsigned>(all.size());
    for (std::size_t i = 0; i != nAttention(); ++i)
      all.push_back(stack(i));
  }
  return all;
}

bool Session::extendedMemory() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const Shard &s) { return s.streamingBytes() >= extendedFrom; });
}

void Session::compile(Graph &graph, const std::vector<Program> &all) {
  const OptionFlags options{{"target.hostSyncTimeout", "1800"},
                            {"target.extendedMemory", extendedMemory() ? "true" : "false"}};
  try {
    engine_ = std::make_unique<Engine>(graph, all, options);
  } catch (const graph_memory_allocation_error &error) {
    throw outOfTileMemory(error, graph.getTarget().getTilesPerIPU(), shards_.size());
  }
}

// ---- what it does for the host once it is loaded

const Session::Entry &Session::entryOf(const char *op, unsigned layer) const {
  for (const Entry &entry : entries_)
    if (entry.shards.front()->own(layer) < entry.shards.front()->share.nLayers)
      return entry;
  throw Error(std::string(op) + ": layer must be in [0, n_layers=" + std::to_string(nLayers_) +
              "), got " + std::to_string(layer));
}

void Session::checkBatch(const char *op, std::size_t n) const {
  if (n != shape_.batch)
    throw Error(std::string(op) + ": lengths must have shape (batch=" +
                std::to_string(shape_.batch) + ",), got (" + std::to_string(n) + ",)");
}

const PlannedAttention &Session::program(std::int64_t index) const {
  if (index < 0 || index >= static_cast<std::int64_t>(nAttention()))
    throw Error("attention: index must be in [0, " + std::to_string(nAttention()) + "), got " +
                std::to_string(index));
  return plan().attention[static_cast<std::size_t>(index)];
}

void Session::select(const Entry &entry, unsigned layer) {
  for (const Shard *const shard : entry.shards)
    shard->host->selectLayer(*engine_, shard->own(layer));
}

std::vector<std::uint32_t> Session::lengths(unsigned layer) const {
  std::vector<std::uint32_t> all(shape_.batch);
  for (const Shard *const shard : entryOf("lengths", layer).shards) {
    const std::vector<std::uint32_t> &own = shard->host->lengths(shard->own(layer));
    std::copy(own.begin(), own.end(), all.begin() + shard->share.firstBatch);
  }
  return all;
}

void Session::write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
                    const std::vector<std::uint32_t> &counts, unsigned layer) {
  const Entry &entry = entryOf("append", layer);
  checkBatch("append", counts.size());
  for (const Shard *const shard : entry.shards) // before any is altered
    shard->host->checkRoom(shard->own(layer), nTokens, shard->share.ofBatch(counts),
                           shard->share.firstBatch);
  const std::size_t each = std::size_t(nTokens) * shape_.headDim;
  for (Shard *const shard : entry.shards)
    shard->host->write(*engine_, shard->own(layer), partOf(shape_, shard->share, key, each).data(),
                       partOf(shape_, shard->share, value, each).data(), nTokens,
                       shard->share.ofBatch(counts));
}

void Session::read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer) {
  const std::size_t each = std::size_t(nTokens) * shape_.headDim;
  for (const Shard *const shard : entryOf("read", layer).shards) {
    std::vector<std::uint16_t> k(shard->share.shape.nTasks() * each), v(k.size());
    shard->host->read(*engine_, shard->own(layer), k.data(), v.data(), nTokens);
    putPart(shape_, shard->share, k, key, each);
    putPart(shape_, shard->share, v, value, each);
  }
}

void Session::reset(unsigned layer) {
  for (Shard *const shard : entryOf("reset", layer).shards)
    shard->host->reset(*engine_, shard->own(layer));
}

void Session::assumeLengths(const std::vector<std::uint32_t> &lengths, unsigned layer) {
  checkBatch("plan", lengths.size());
  for (Shard *const shard : entryOf("plan", layer).shards)
    shard->host->setLengths(*engine_, shard->own(layer), shard->share.ofBatch(lengths));
}

void Session::append(const std::uint16_t *key, const std::uint16_t *value,
                     const std::vector<std::uint32_t> &active, unsigned layer) {
  const Entry &entry = entryOf("append", layer);
  checkBatch("append", active.size());
  for (const Shard *const shard : entry.shards)
    shard->host->checkRoom(shard->own(layer), 1, shard->share.ofBatch(active),
                           shard->share.firstBatch);
  select(entry, layer);
  entry.ports->key.host.write(*engine_, key);
  entry.ports->value.host.write(*engine_, value);
  entry.ports->active.host.write(*engine_, active.data());
  engine_->run(entry.firstProgram);
  for (Shard *const shard : entry.shards)
    shard->host->advance(shard->own(layer), shard->share.ofBatch(active));
}

void Session::tookStep(const Entry &entry, std::size_t index, unsigned layer) {
  last_ = &entry;
  lastIndex_ = index;
  if (plan().attention[index].remembers())
    for (Shard *const shard : entry.shards)
      shard->host->history().advance(shard->own(layer), shard->host->lengths(shard->own(layer)));
}

void Session::attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                        unsigned layer) {
  program(static_cast<std::int64_t>(index));
  const Entry &entry = entryOf("attention", layer);
  select(entry, layer);
  entry.ports->query.host.write(*engine_, query);
  engine_->run(entry.firstProgram + static_cast<unsigned>(1 + index));
  entry.ports->outputs[index].host.read(*engine_, output);
  tookStep(entry, index, layer);
}

void Session::attendAll(std::size_t index, const std::uint16_t *query, std::uint16_t *output) {
  if (firstStack_ == 0)
    throw Error("attention: the session must have been made with stacked=True, got False");
  program(static_cast<std::int64_t>(index));
  entries_.front().ports->query.host.write(*engine_, query);
  engine_->run(firstStack_ + static_cast<unsigned>(index));
  entries_.back().ports->outputs[index].host.read(*engine_, output);
  for (unsigned layer = 0; layer != nLayers_; ++layer)
    tookStep(entryOf("attention", layer), index, layer);
}

std::vector<HostHistory::Steps> Session::history(unsigned layer) {
  const Entry &entry = entryOf("history", layer);
  std::vector<HostHistory::Steps> all(shape_.batch);
  for (const Shard *const shard : entry.shards) {
    std::vector<HostHistory::Steps> own = shard->host->history().read(*engine_, shard->own(layer));
    std::move(own.begin(), own.end(), all.begin() + shard->share.firstBatch);
  }
  return all;
}

void Session::setHistory(const std::vector<HostHistory::Steps> &steps, unsigned layer) {
  const Entry &entry = entryOf("set_history", layer);
  if (steps.size() != shape_.batch)
    throw Error("set_history: steps must be of each of batch=" + std::to_string(shape_.batch) +
                ", got " + std::to_string(steps.size()));
  for (const Shard *const shard : entry.shards) // before any is altered
    shard->host->history().check(shard->share.ofBatch(steps));
  for (Shard *const shard : entry.shards)
    shard->host->history().write(*engine_, shard->own(layer), shard->share.ofBatch(steps));
}

std::uint64_t Session::cycles() {
  if (!timed_)
    throw Error("cycles: the session must have been made with timed=True, got False");
  std::uint32_t words[2]; // the low one first
  last_->cycles[lastIndex_].read(*engine_, words);
  return words[0] + (std::uint64_t(words[1]) << 32);
}

double Session::clock() const { return device_.getTarget().getTileClockFrequency(); }

void Session::forgetHot() {
  for (unsigned layer = 0; layer != nLayers_; ++layer) {
    const Entry &entry = entryOf("forget_hot", layer);
    select(entry, layer);
    for (Shard *const shard : entry.shards)
      if (!shard->host->forgetHot(*engine_))
        throw noTiers("forget_hot");
  }
}

Error Session::noTiers(const char *op) const {
  const Memory memory =
      nAttention() == 0 ? Memory::streaming : plan().attention.front().kernel->memory;
  return Error(std::string(op) + ": memory must be 'tiered', got '" + nameOf(memory) + "'");
}

std::vector<std::uint32_t> Session::misses() {
  std::vector<std::uint32_t> all(shape_.nTasks());
  for (const Shard *const shard : last_->shards) {
    const auto own = shard->host->misses(*engine_);
    if (!own)
      throw noTiers("misses");
    putPart(shape_, shard->share, *own, all.data(), 1);
  }
  return all;
}

} // namespace sparq
