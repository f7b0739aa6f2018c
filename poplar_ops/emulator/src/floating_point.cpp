// SPDX-License-Identifier: Apache-2.0
// poplar::setFloatingPointBehaviour and its like. An IPU stops a tile at the instruction; here the host's flags of the
// thread say after a vertex's compute() what happened in it.
#include "floating_point.hpp"

#include <poplar/CSRFunctions.hpp>
#include <poplar/EngineOptions.hpp>

#include <cfenv>

#include "core.hpp"

namespace poplar {

using core::Access;
using core::GraphImpl;

namespace core {
namespace {

thread_local std::uint32_t *tileControl = nullptr;

struct PutVertex {
  std::uint32_t control;
};
struct ModifyVertex {
  std::uint32_t *before;
  std::uint32_t clear, set;
};
struct RestoreVertex {
  const std::uint32_t *control;
};

bool put(void *vertex, unsigned) {
  *tileControl = static_cast<PutVertex *>(vertex)->control;
  return true;
}
bool modify(void *vertex, unsigned) {
  const ModifyVertex &v = *static_cast<ModifyVertex *>(vertex);
  *v.before = *tileControl;
  *tileControl = (*tileControl & ~v.clear) | v.set;
  return true;
}
bool restore(void *vertex, unsigned) {
  const std::uint32_t control = *static_cast<RestoreVertex *>(vertex)->control;
  if (control & ~std::uint32_t(fpEvents | fpNanOnOverflow))
    throw application_runtime_error("setFloatingPointBehaviour: behaviour must be what "
                                    "getAndModifyFloatingPointBehaviour gave, got " +
                                    std::to_string(control));
  *tileControl = control;
  return true;
}

constexpr codelet_abi::Field field(const char *name, std::size_t offset,
                                   codelet_abi::Direction direction) {
  return {name,
          offset,
          direction,
          codelet_abi::Nesting::Scalar,
          codelet_abi::Element::UnsignedInt,
          codelet_abi::Layout::Span,
          codelet_abi::Layout::Span,
          0,
          0};
}
constexpr codelet_abi::Field putFields[] = {
    field("control", offsetof(PutVertex, control), codelet_abi::Direction::State)};
constexpr codelet_abi::Field modifyFields[] = {
    field("before", offsetof(ModifyVertex, before), codelet_abi::Direction::Output),
    field("clear", offsetof(ModifyVertex, clear), codelet_abi::Direction::State),
    field("set", offsetof(ModifyVertex, set), codelet_abi::Direction::State)};
constexpr codelet_abi::Field restoreFields[] = {
    field("control", offsetof(RestoreVertex, control), codelet_abi::Direction::Input)};

template <class V, unsigned n>
constexpr codelet_abi::Vertex vertexType(const char *name, const codelet_abi::Field (&fields)[n],
                                         bool (*run)(void *, unsigned)) {
  constexpr unsigned tokens = 20; // a few words between registers and memory
  return {name, codelet_abi::VertexKind::Vertex, sizeof(V), alignof(V), fields, n, run, tokens};
}
constexpr codelet_abi::Vertex putType =
    vertexType<PutVertex>("poplar::PutFloatingPointControl", putFields, put);
constexpr codelet_abi::Vertex modifyType =
    vertexType<ModifyVertex>("poplar::ModifyFloatingPointControl", modifyFields, modify);
constexpr codelet_abi::Vertex restoreType =
    vertexType<RestoreVertex>("poplar::RestoreFloatingPointControl", restoreFields, restore);

// A vertex on every tile of the graph; connect(vertex, tile) fills its fields.
template <class F>
void addVertices(Graph &graph, const codelet_abi::Vertex &type, program::Sequence &prog,
                 const DebugContext &dc, F connect) {
  constexpr unsigned cycles = 20; // a call, a word each way
  GraphImpl &g = Access::impl(graph);
  g.codelets[type.name] = &type;
  g.askWorker.insert(&type);
  ComputeSet cs = graph.addComputeSet({dc, type.name});
  for (unsigned tile = 0; tile < graph.getTarget().getNumTiles(); ++tile) {
    VertexRef v = graph.addVertex(cs, type.name);
    connect(v, tile);
    graph.setTileMapping(v, tile);
    graph.setPerfEstimate(v, cycles);
  }
  prog.add(program::Execute(cs, dc));
}

std::uint32_t controlOf(const FloatingPointBehaviour &b) {
  return (b.inv ? fpInvalid : 0u) | (b.div0 ? fpDivideByZero : 0u) | (b.oflo ? fpOverflow : 0u) |
         (b.esr ? fpStochasticRounding : 0u) | (b.nanoo ? fpNanOnOverflow : 0u);
}

std::uint32_t controlToSet(const char *op, const FloatingPointBehaviour &b) {
  if (b.esr)
    throw poplar_error(std::string(op) + ": esr must be false here, got true: stochastic rounding "
                                         "is not emulated");
  return controlOf(b);
}

bool isTrue(const OptionFlags &options, const char *name) {
  const auto found = options.find(name);
  return found != options.end() && found->second == "true";
}

constexpr const char *eventsOption = "debug.floatPointOpException";
constexpr const char *nanOption = "debug.nanOverflowMode";

} // namespace

std::vector<const codelet_abi::Vertex *> floatingPointVertices() {
  return {&putType, &modifyType, &restoreType};
}

std::uint16_t overflowedHalf(std::uint16_t sign) {
  const bool isNaN = tileControl && (*tileControl & fpNanOnOverflow);
  std::feraiseexcept(isNaN ? FE_OVERFLOW | FE_INVALID : FE_OVERFLOW);
  return static_cast<std::uint16_t>(isNaN ? 0x7e00 : sign | 0x7bff);
}

void checkFloatingPointOptions(const OptionFlags &options) {
  for (const char *name : {eventsOption, nanOption}) {
    const auto found = options.find(name);
    if (found != options.end() && found->second != "true" && found->second != "false")
      throw invalid_option(std::string("engine option ") + name + " must be true or false, got '" +
                           found->second + "'");
  }
}

void FloatingPoint::load(const OptionFlags &options, unsigned tiles) {
  OptionFlags all = options;
  readJSONFromEnv("POPLAR_ENGINE_OPTIONS", all);
  checkFloatingPointOptions(all);
  const std::uint32_t control =
      (isTrue(all, eventsOption) ? fpEvents : 0u) | (isTrue(all, nanOption) ? fpNanOnOverflow : 0u);
  control_.assign(tiles, control);
}

void FloatingPoint::enter(unsigned tile) { tileControl = &control_[tile]; }

void clearEvents() { std::feclearexcept(FE_ALL_EXCEPT); }

const char *stoppingEvent(std::uint32_t control) {
  const int happened = std::fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
  if ((control & fpOverflow) && (happened & FE_OVERFLOW))
    return "overflow (oflo)";
  if ((control & fpDivideByZero) && (happened & FE_DIVBYZERO))
    return "division by zero (div0)";
  if ((control & fpInvalid) && (happened & FE_INVALID))
    return "invalid operation (inv)";
  return nullptr;
}

} // namespace core

void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const FloatingPointBehaviour &behaviour, const DebugContext &dc) {
  const std::uint32_t control = core::controlToSet("setFloatingPointBehaviour", behaviour);
  core::addVertices(graph, core::putType, prog, dc, [&](const VertexRef &v, unsigned) {
    graph.setInitialValue(v["control"], control);
  });
}

void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const poplar::Tensor &behaviour, const DebugContext &dc) {
  const std::vector<std::size_t> shape = {graph.getTarget().getNumTiles()};
  if (behaviour.elementType() != UNSIGNED_INT || behaviour.shape() != shape)
    throw poplar_error("setFloatingPointBehaviour: behaviour must be unsigned int of shape " +
                       core::shapeString(shape) + " (tiles), got " +
                       behaviour.elementType().toString() + " of " +
                       core::shapeString(behaviour.shape()));
  core::addVertices(graph, core::restoreType, prog, dc, [&](const VertexRef &v, unsigned tile) {
    graph.connect(v["control"], behaviour[tile]);
  });
}

Tensor getAndModifyFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                                          const FloatingPointBehaviour &clear,
                                          const FloatingPointBehaviour &set,
                                          const DebugContext &dc) {
  const std::uint32_t setting = core::controlToSet("getAndModifyFloatingPointBehaviour: set", set);
  const unsigned tiles = graph.getTarget().getNumTiles();
  Tensor before = graph.addVariable(UNSIGNED_INT, {tiles}, {dc, "floatingPointBehaviour"});
  core::addVertices(graph, core::modifyType, prog, dc, [&](const VertexRef &v, unsigned tile) {
    graph.setTileMapping(before[tile], tile);
    graph.connect(v["before"], before[tile]);
    graph.setInitialValue(v["clear"], core::controlOf(clear));
    graph.setInitialValue(v["set"], setting);
  });
  return before;
}

void setStochasticRounding(poplar::Graph &, poplar::program::Sequence &, bool enable,
                           const DebugContext &) {
  if (enable)
    throw poplar_error("setStochasticRounding: enable must be false here, got true");
}

unsigned Target::makeFpIctlValue(bool inv, bool div0, bool oflo, bool esr, bool nanoo) const {
  return core::controlOf({inv, div0, oflo, esr, nanoo});
}

} // namespace poplar
