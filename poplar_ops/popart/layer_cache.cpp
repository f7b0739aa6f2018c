// SPDX-License-Identifier: Apache-2.0
#include "layer_cache.hpp"
#include "sparq/cache.hpp"
#include <algorithm>
#include <mutex>
#include <poplar/CSRFunctions.hpp>

namespace sparq_popart {
namespace {

// Groups by device and first name. Lowerings own them: an entry expires with its device, even if
// another device then has the same address.
class Registry {
public:
  template <class Make>
  std::shared_ptr<CacheGroup> get(const void *device, const std::string &name, const Make &make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = all_.begin(); entry != all_.end();)
      entry = entry->second.expired() ? all_.erase(entry) : std::next(entry);
    std::weak_ptr<CacheGroup> &entry = all_[{device, name}];
    std::shared_ptr<CacheGroup> found = entry.lock();
    if (found == nullptr)
      entry = found = make();
    return found;
  }

private:
  std::map<std::pair<const void *, std::string>, std::weak_ptr<CacheGroup>> all_;
  std::mutex mutex_;
};

// The requirements of all operators on a cache.
struct Wanted {
  CacheOptions options;
  sparq::Shape shape;
  sparq::Programs programs;

  explicit Wanted(const CacheOp &op) : options(op.options()), shape(op.shape()) {
    programs.tiers = options.tiers;
    for (const CacheOp *const other : op.ofCache()) {
      other->require(programs);
      shape.nHeads = std::max(shape.nHeads, other->shape().nHeads);
    }
    if (shape.nHeads == 0) // filled and never read
      shape.nHeads = shape.nKvHeads;
  }

  bool operator==(const Wanted &o) const {
    const auto all = [](const sparq::Shape &s) {
      return std::make_tuple(s.batch, s.nKvHeads, s.headDim, s.nHeads);
    };
    const std::vector<sparq::Attention> &mine = programs.attention, &theirs = o.programs.attention;
    return options == o.options && all(shape) == all(o.shape) && mine.size() == theirs.size() &&
           std::is_permutation(mine.begin(), mine.end(), theirs.begin());
  }
};

// The IPU. PopART takes the first one where none is given.
std::int64_t virtualGraph(const popart::Op &op) {
  return op.settings.vgraphId ? *op.settings.vgraphId : 0;
}

// Names of the caches like that of `op`, on its IPU, in the model's order.
std::vector<std::string> alike(const CacheOp &op) {
  const Wanted wanted(op);
  std::vector<std::string> names;
  for (const CacheOp *const other : op.ofModel()) {
    const std::string &name = other->cacheName();
    if (std::find(names.begin(), names.end(), name) == names.end() &&
        virtualGraph(*other) == virtualGraph(op) && Wanted(*other) == wanted)
      names.push_back(name);
  }
  return names;
}

} // namespace

CacheGroup::CacheGroup(Graph &graph, const CacheOp &op, const std::vector<std::string> &names)
    : names_(names) {
  const Wanted wanted(op);
  programs_ = wanted.programs;
  programs_.nLayers = static_cast<unsigned>(names.size());
  const sparq::Plan plan = sparq::makePlan(graph.getTarget(), wanted.shape, programs_);
  const bool hostWrites = false; // only operators do
  cache_ = sparq::createCache(graph, plan, "sparq/" + names.front(), hostWrites);
  sparq::initialiseCache(graph, cache_);
}

std::size_t CacheGroup::index(const sparq::Attention &attention) const {
  const std::vector<sparq::Attention> &all = programs_.attention;
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), attention) - all.begin());
}

CacheGroup::Shared CacheGroup::makeShared(Graph &graph, const Body &body,
                                          const std::vector<Tensor> &inputs,
                                          const std::string &what) const {
  const DebugContext dc{cache_.name + "/" + what};
  Shared shared;
  for (const Tensor &input : inputs)
    shared.inputs.push_back(graph.clone(input, DebugContext(dc, "input")));
  Sequence program({}, dc);
  sparq::loadLayer(cache_, program, dc);
  shared.outputs = body(shared.inputs, program);
  sparq::storeLayer(cache_, program, dc);
  shared.function = graph.addFunction(program);
  return shared;
}

std::vector<Tensor> CacheGroup::add(Graph &graph, const std::string &name, const std::string &what,
                                    const Body &body, const std::vector<Tensor> &inputs,
                                    Sequence &program, const DebugContext &dc) {
  if (names_.size() == 1)
    return body(inputs, program);
  const auto known = shared_.find(what);
  const Shared &shared =
      known != shared_.end()
          ? known->second
          : shared_.emplace(what, makeShared(graph, body, inputs, what)).first->second;
  const auto layer = std::find(names_.begin(), names_.end(), name) - names_.begin();
  sparq::selectLayer(graph, cache_, static_cast<unsigned>(layer), program, dc);
  for (std::size_t i = 0; i != inputs.size(); ++i)
    program.add(Copy(inputs[i], shared.inputs[i], false, {dc, "input"}));
  program.add(Call(shared.function, dc));
  std::vector<Tensor> outputs;
  for (const Tensor &made : shared.outputs) {
    outputs.push_back(graph.clone(made, DebugContext(dc, "output")));
    program.add(Copy(made, outputs.back(), false, {dc, "output"}));
  }
  return outputs;
}

CacheOpx::CacheOpx(popart::Op *op, popart::popx::Devicex *device)
    : popart::popx::Opx(op, device), device_(device) {
  sparq::addCodelets(graph());
}

CacheGroup &CacheOpx::group() const {
  static Registry all;
  const CacheOp &op = getOp<CacheOp>();
  const std::int64_t first = virtualGraph(*op.ofCache().front()), mine = virtualGraph(op);
  if (mine != first)
    throw sparq::Error(op.opid.type + ": virtual graph must be " + std::to_string(first) +
                       " as in the other operators of cache '" + op.cacheName() + "', got " +
                       std::to_string(mine));
  if (group_ == nullptr) {
    const std::vector<std::string> names = alike(op);
    group_ = all.get(device_, names.front(),
                     [&] { return std::make_shared<CacheGroup>(graph(), op, names); });
  }
  return *group_;
}

void CacheOpx::grow(Sequence &program) const {
  if (!getOp<CacheOp>().getIr().getSessionOptions().enableFloatingPointChecks)
    return growPrograms(program);
  const FloatingPointBehaviour exceptions(true, true, true, false, true),
      none(false, false, false, false, false);
  const Tensor before = getAndModifyFloatingPointBehaviour(graph(), program, exceptions, none,
                                                           debugContext("exceptions_off"));
  growPrograms(program);
  setFloatingPointBehaviour(graph(), program, before, debugContext("exceptions"));
}

} // namespace sparq_popart
