// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "Graph.hpp"

namespace poplar {

/// Which floating-point events stop the program, and how halves overflow. Without a behaviour, and
/// without engine options, nothing stops it and halves saturate.
struct FloatingPointBehaviour {
  bool inv = true;   ///< makes NaN of numbers that are none, or compares with one
  bool div0 = true;  ///< divides a number by 0
  bool oflo = true;  ///< overflows, to infinity or to the largest half
  bool esr = false;  ///< stochastic rounding: must be false here
  bool nanoo = true; ///< a half that overflows is NaN, and that is `inv` too
  FloatingPointBehaviour() = default;
  FloatingPointBehaviour(bool inv, bool div0, bool oflo, bool esr, bool nanoo)
      : inv(inv), div0(div0), oflo(oflo), esr(esr), nanoo(nanoo) {}
};

/// From here on the graph's tiles have this behaviour, in programs that follow too, until the
/// engine is loaded again. Engine::run throws application_runtime_error at an event that stops. Its
/// vertices must come from codelets made with popc --floating-point-events, else it throws too.
/// Throws poplar_error for `esr`.
void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const FloatingPointBehaviour &behaviour,
                               const DebugContext &debugContext = {});
/// Restores what getAndModifyFloatingPointBehaviour returned for a graph with the same number of
/// tiles.
void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const poplar::Tensor &behaviour,
                               const DebugContext &debugContext = {});
/// Switches off what is true in `clear`, then on what is true in `set`. Returns what was before: a
/// tensor of a word for each of the graph's tiles, as Target::makeFpIctlValue makes it.
Tensor getAndModifyFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                                          const FloatingPointBehaviour &clear,
                                          const FloatingPointBehaviour &set,
                                          const DebugContext &debugContext = {});
/// `enable` must be false here.
void setStochasticRounding(poplar::Graph &graph, poplar::program::Sequence &prog, bool enable,
                           const DebugContext &debugContext = {});

} // namespace poplar
