// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "Graph.hpp"

namespace poplar {

/// Which floating-point events stop the program, and how halves round and overflow.
struct FloatingPointBehaviour {
  bool inv = true;
  bool div0 = true;
  bool oflo = true;
  bool esr = false;
  bool nanoo = true;
  FloatingPointBehaviour() = default;
  FloatingPointBehaviour(bool inv, bool div0, bool oflo, bool esr, bool nanoo)
      : inv(inv), div0(div0), oflo(oflo), esr(esr), nanoo(nanoo) {}
};

/// Only the IPU's default is available here: no exceptions, round to nearest even, saturate.
/// Any other behaviour throws poplar_error.
void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const FloatingPointBehaviour &behaviour,
                               const DebugContext &debugContext = {});
// Not implemented in the emulator: these throw.
void setFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                               const poplar::Tensor &behaviour,
                               const DebugContext &debugContext = {});
Tensor getAndModifyFloatingPointBehaviour(poplar::Graph &graph, poplar::program::Sequence &prog,
                                          const FloatingPointBehaviour &clear,
                                          const FloatingPointBehaviour &set,
                                          const DebugContext &debugContext = {});
void setStochasticRounding(poplar::Graph &graph, poplar::program::Sequence &prog, bool enable,
                           const DebugContext &debugContext = {});

} // namespace poplar
