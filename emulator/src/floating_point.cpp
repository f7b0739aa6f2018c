// SPDX-License-Identifier: Apache-2.0
// poplar::setFloatingPointBehaviour and its like. An IPU stops a tile at the instruction; here the
// host's flags of the thread say after a vertex's compute() what happened in it.
#include "floating_point.hpp"

#include <poplar/CSRFunctions.hpp>

#include <cfenv>

#include "tile_vertices.hpp"

namespace poplar {
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
    throw errors::bad_floating_point("setFloatingPointBehaviour: behaviour must be what "
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

constexpr unsigned controlTokens = 20; // a few words between registers and memory
constexpr codelet_abi::Vertex putType =
    tileVertexType<PutVertex>("poplar::PutFloatingPointControl", putFields, put, controlTokens);
constexpr codelet_abi::Vertex modifyType = tileVertexType<ModifyVertex>(
    "poplar::ModifyFloatingPointControl", modifyFields, modify, controlTokens);
constexpr codelet_abi::Vertex restoreType = tileVertexType<RestoreVertex>(
    "poplar::RestoreFloatingPointControl", restoreFields, restore, controlTokens);
constexpr unsigned controlCycles = 20; // a call, a word each way

std::uint32_t controlOf(const FloatingPointBehaviour &b) {
  return (b.inv ? fpInvalid : 0u) | (b.div0 ? fpDivideByZero : 0u) | (b.oflo ? fpOverflow : 0u) |
         (b.esr ? fpStochasticRounding : 0u) | (b.nanoo ? fpNanOnOverflow : 0u);
}

std::uint32_t controlToSet(const char *op, const FloatingPointBehaviour &b) {
  if (b.esr)
    throw errors::no_stochastic_rounding(std::string(op) +
                                         ": esr must be false here, got true: stochastic rounding "
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
      throw errors::bad_engine_option(std::string("engine option ") + name +
                                      " must be true or false, got '" + found->second + "'");
  }
}

void FloatingPoint::load(const OptionFlags &options, unsigned tiles) {
  const std::uint32_t control = (isTrue(options, eventsOption) ? fpEvents : 0u) |
                                (isTrue(options, nanOption) ? fpNanOnOverflow : 0u);
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
  core::addOnEveryTile(
      graph, core::putType, core::controlCycles, prog, dc,
      [&](const VertexRef &v, unsigned) { graph.setInitialValue(v["control"], control); });
}

void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const poplar::Tensor &behaviour, const DebugContext &dc) {
  const std::vector<std::size_t> shape = {graph.getTarget().getNumTiles()};
  if (behaviour.elementType() != UNSIGNED_INT || behaviour.shape() != shape)
    throw errors::bad_argument(
        "setFloatingPointBehaviour: behaviour must be unsigned int of shape " +
        core::shapeString(shape) + " (tiles), got " + behaviour.elementType().toString() + " of " +
        core::shapeString(behaviour.shape()));
  core::addOnEveryTile(
      graph, core::restoreType, core::controlCycles, prog, dc,
      [&](const VertexRef &v, unsigned tile) { graph.connect(v["control"], behaviour[tile]); });
}

Tensor getAndModifyFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                                          const FloatingPointBehaviour &clear,
                                          const FloatingPointBehaviour &set,
                                          const DebugContext &dc) {
  const std::uint32_t setting = core::controlToSet("getAndModifyFloatingPointBehaviour: set", set);
  const unsigned tiles = graph.getTarget().getNumTiles();
  Tensor before = graph.addVariable(UNSIGNED_INT, {tiles}, {dc, "floatingPointBehaviour"});
  core::addOnEveryTile(graph, core::modifyType, core::controlCycles, prog, dc,
                       [&](const VertexRef &v, unsigned tile) {
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
    throw errors::no_stochastic_rounding(
        "setStochasticRounding: enable must be false here, got true");
}

unsigned Target::makeFpIctlValue(bool inv, bool div0, bool oflo, bool esr, bool nanoo) const {
  return core::controlOf({inv, div0, oflo, esr, nanoo});
}

} // namespace poplar
