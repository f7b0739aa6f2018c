// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poplar/DebugContext.hpp>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <poplar/Quarter.hpp>
#include <poplar/Tensor.hpp>

namespace poplar {

/// The format and scale of FP8 numbers as a tensor. The emulator has no FP8: these throw.
Tensor createConstantMetadataTensor(Graph &graph, QuarterMetadata::Format format, int scale,
                                    const DebugContext &dc = {});
Tensor createVariableMetadataTensor(Graph &graph, QuarterMetadata::Format format, int scale,
                                    const DebugContext &dc = {});
Tensor createVariableMetadataTensor(Graph &graph, QuarterMetadata::Format format,
                                    const Tensor &scale, program::Sequence &prog,
                                    const DebugContext &dc = {});

} // namespace poplar
