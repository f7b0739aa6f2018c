// SPDX-License-Identifier: Apache-2.0
#include "sparq/session.hpp"

#include "context.hpp"
#include "sparq/cache.hpp"
#include "sparq/kernels.hpp"
#include "sparq/step_names.hpp"
#include <map>
#include <utility>

namespace sparq {

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

Tensor PortSite::add(unsigned heads, const std::string &name) const {
  const unsigned nTasks = shape.nTasks();
  const std::size_t each = std::size_t(heads) * shape.batch / nTasks * shape.headDim;
  return addOnParts(graph, placement, HALF, nTasks, 1, {each}, prefix + name)
      .reshape({shape.batch, heads, shape.headDim});
}

Port PortSite::writable(const Tensor &tensor, const std::string &name) const {
  return {tensor, HostTensor::writable(graph, tensor, prefix + name)};
}

void PortSite::addQuery(Ports &ports) const {
  ports.query = writable(add(shape.nHeads, "query"), "query");
}

void PortSite::addAppend(Ports &ports) const {
  const Tensor key = add(shape.nKvHeads, "append/key"), value = add(shape.nKvHeads, "append/value"),
               active = addOnTile(graph, 0, UNSIGNED_INT, {shape.batch}, prefix + "append/active");
  ports.key = writable(key, "append/key");
  ports.value = writable(value, "append/value");
  ports.active = writable(active, "append/active");
}

// One that is not given is elsewhere.
void PortSite::addOutput(Ports &ports, const std::string &step, Tensor output) const {
  if (!output.valid())
    output = add(shape.nHeads, step + "/output");
  ports.outputs.push_back({output, HostTensor::readable(graph, output, prefix + step + "/output")});
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
  const Tensor output =
                   createOutput(graph, cache, {dc, "output"}).reshape(ports.query.tensor.shape()),
               asked = addOnTile(graph, graph.getTarget().getNumTiles() - 1, BOOL, {},
                                 {dc, "asked"}); // as most branches
  graph.setInitialValue(asked, false);
  if (plan.hot.nPlaces != 0) {
    const Tensor number =
        addOnTile(graph, graph.getTarget().getNumTiles() - 1, INT, {}, {dc, "number"});
    graph.setInitialValue(number, 0);
    cache.lockstep->agreed(graph, number, program, dc);
    const Tensor most = cache.lockstep->greatest(graph, number, program, {dc, steps::switchOfAll});
    Sequence other({}, dc);
    cache.lockstep->copy(ports.query.tensor, output, other, dc);
    program.add(Switch(most, {{1, other}}, {dc, steps::switchOfAll}));
  }
  Sequence body({}, dc);
  cache.lockstep->copy(ports.query.tensor, output, body, dc);
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
  if (programs.append && cache.grows()) {
    site.addAppend(ports);
    append = made("append", true, [&](Sequence &body) {
      sparq::append(graph, cache, ports.key.tensor, ports.value.tensor, ports.active.tensor, body,
                    {"append"});
    });
  }
  for (std::size_t i = 0; i != plan.attention.size(); ++i)
    attend.push_back(made(steps[i].c_str(), false, [&](Sequence &body) {
      site.addOutput(ports, steps[i],
                     programs.onlyBetween
                         ? attendNothing(body, steps[i])
                         : sparq::attend(graph, cache, i, ports.query.tensor, body, {steps[i]}));
    }));
}

std::uint64_t Shard::streamingBytes() const { return cache.streamingBytes(graph.getTarget()); }

} // namespace sparq
