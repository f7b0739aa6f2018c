// SPDX-License-Identifier: Apache-2.0
//
// How a session is built: shards, what passes between them, and the programs of the engine.
#include "sparq/session.hpp"
#include "sparq/cache.hpp"
#include <algorithm>
#include <poplar/CycleCount.hpp>

#if __has_include(<sparq_emulator/Errors.hpp>)
#include <sparq_emulator/Errors.hpp>
#endif

namespace sparq {

using namespace poplar;
using namespace poplar::program;

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
  check("plan", shape);
  const std::vector<Share> shares = shareOut(shape, nLayers_, options.nIpus, options.split);
  checkWindows(programs, shares.front());
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

void Session::checkWindows(const Programs &programs, const Share &share) const {
  if (share.shape.nKvHeads != shape_.nKvHeads)
    for (const Attention &attention : programs.attention)
      if (attention.remembers()) // sums are over all heads
        throw Error("plan: split must be 'layers' where heads of one history of window attention "
                    "would be split, got 'heads'");
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
    shard.host->setFirstProgram(add(shard.host->programs()));
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

} // namespace sparq
