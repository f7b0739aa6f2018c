// SPDX-License-Identifier: Apache-2.0
#include "sparq/shard.hpp"
#include "context.hpp"
#include "sparq/kernels.hpp"
#include "sparq/layers.hpp"
#include "sparq/step_names.hpp"
#include <map>
#include <utility>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Of each attention, in a profile. One that a single program has alone is numbered among those of
// its kernel, and not where it takes no settings and is the only one.
std::vector<std::string> stepNames(const Plan &plan, bool shared) {
  std::vector<std::string> names;
  std::map<const Kernel *, std::size_t> count;
  for (const PlannedAttention &attention : plan.attention) {
    const Kernel &kernel = *attention.kernel;
    const std::size_t i = shared ? names.size() : count[&kernel]++;
    const bool numbered = shared || kernel.takes != Takes::nothing || i != 0;
    names.push_back(kernel.prefix + (numbered ? std::to_string(i) : std::string()));
  }
  return names;
}

Plan planOf(const Target &target, const Shape &shape, const Programs &programs) {
  Plan plan = makePlan(target, shape, programs);
  if (programs.onlyBetween)
    plan.stores.clear();
  return plan;
}

} // namespace

Tensor PortSite::add(const std::vector<std::size_t> &extents, const std::string &name) const {
  const std::size_t nTasks = shape.nTasks();
  std::size_t n = 1;
  for (const std::size_t extent : extents)
    n *= extent;
  const Tensor t = graph.addVariable(HALF, {nTasks, n / nTasks}, prefix + name);
  for (unsigned task = 0; task != nTasks; ++task)
    graph.setTileMapping(t[task], placement.home(task % placement.slots));
  return t.reshape(extents);
}

void PortSite::addQuery(Ports &ports) const {
  ports.query = add({shape.batch, shape.nHeads, shape.headDim}, "query");
  ports.writeQuery = HostTensor::writable(graph, ports.query, prefix + "query");
}

void PortSite::addAppend(Ports &ports) const {
  const std::vector<std::size_t> token{shape.batch, shape.nKvHeads, shape.headDim};
  NewTokens &append = ports.append;
  append.key = add(token, "append/key");
  append.value = add(token, "append/value");
  append.active = graph.addVariable(UNSIGNED_INT, {shape.batch}, prefix + "append/active");
  graph.setTileMapping(append.active, 0);
  const auto writable = [&](const Tensor &tensor, const char *what) {
    return HostTensor::writable(graph, tensor, prefix + "append/" + what);
  };
  append.writeKey = writable(append.key, "key");
  append.writeValue = writable(append.value, "value");
  append.writeActive = writable(append.active, "active");
}

void PortSite::addOutput(Ports &ports, const std::string &step) const {
  readOutput(ports, add({shape.batch, shape.nHeads, shape.headDim}, step + "/output"), step);
}

void PortSite::readOutput(Ports &ports, const Tensor &output, const std::string &step) const {
  ports.outputs.push_back(output);
  ports.readOutputs.push_back(HostTensor::readable(graph, output, prefix + step + "/output"));
}

Shard::Shard(const Share &shareIn, Graph tiles, const Programs &programs,
             const std::string &prefixIn, bool shared, const std::shared_ptr<Lockstep> &lockstep)
    : share(shareIn), graph(std::move(tiles)),
      plan(planOf(graph.getTarget(), share.shape, programs)), prefix(prefixIn),
      cache(createCache(graph, plan, prefix + "cache", true, lockstep)),
      steps(stepNames(plan, shared)) {}

// Where it would be, if attention had made it.
Tensor Shard::attendNothing(Sequence &program, const std::string &step) {
  const DebugContext dc{step};
  const Tensor output = createOutput(graph, cache, {dc, "output"}).reshape(ports.query.shape()),
               asked = graph.addVariable(BOOL, {}, {dc, "asked"});
  graph.setTileMapping(asked, graph.getTarget().getNumTiles() - 1); // as most branches
  graph.setInitialValue(asked, false);
  if (plan.hot.nPlaces != 0) {
    const Tensor number = graph.addVariable(INT, {}, {dc, "number"});
    graph.setTileMapping(number, graph.getTarget().getNumTiles() - 1);
    graph.setInitialValue(number, 0);
    cache.lockstep->agreed(graph, number, program, dc);
    const Tensor most = cache.lockstep->greatest(graph, number, program, {dc, steps::switchOfAll});
    Sequence other({}, dc);
    cache.lockstep->copy(ports.query, output, other, dc);
    program.add(Switch(most, {{1, other}}, {dc, steps::switchOfAll}));
  }
  Sequence body({}, dc);
  cache.lockstep->copy(ports.query, output, body, dc);
  const Tensor any = cache.lockstep->greatest(graph, asked, program, dc);
  program.add(If(any, body, Sequence(), {dc, "branch"}));
  return output;
}

void Shard::addPrograms(const Programs &programs, bool shared,
                        const std::shared_ptr<Lockstep> &lockstep) {
  cache.lockstep = std::make_shared<Lockstep>(); // the host works on one IPU at a time
  host.emplace(graph, cache);
  cache.lockstep = lockstep;
  const PortSite site{graph, plan.placement, share.shape, prefix};
  // Of a layer, which it loads, and stores where it alters the cache.
  const auto made = [&](const char *name, bool alters, const auto &add) -> Program {
    Sequence body({}, {name});
    if (!programs.onlyBetween)
      loadLayer(cache, body, {name});
    add(body);
    if (alters)
      storeLayer(cache, body, {name});
    if (!cache.lockstep->complete())
      return Sequence();
    if (shared)
      return Call(graph.addFunction(body));
    return body;
  };
  site.addQuery(ports);
  append = Sequence({}, {"append"});
  if (programs.append && cache.refusal().empty()) {
    site.addAppend(ports);
    const NewTokens &t = ports.append;
    append = made("append", true, [&](Sequence &body) {
      sparq::append(graph, cache, t.key, t.value, t.active, body, {"append"});
    });
  }
  for (std::size_t i = 0; i != plan.attention.size(); ++i)
    attend.push_back(made(steps[i].c_str(), false, [&](Sequence &body) {
      site.readOutput(ports,
                      programs.onlyBetween
                          ? attendNothing(body, steps[i])
                          : sparq::attend(graph, cache, i, ports.query, body, {steps[i]}),
                      steps[i]);
    }));
}

std::uint64_t Shard::streamingBytes() const { return cache.streamingBytes(graph.getTarget()); }

} // namespace sparq
