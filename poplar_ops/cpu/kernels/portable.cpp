// SPDX-License-Identifier: Apache-2.0
//
// The kernels for any machine: the compiler's vectors of four lanes.
#include "table.hpp"

namespace sparq {
namespace cpu {
namespace portable {
namespace {

#include "../../codelets/arith.hpp"
#include "../key_cells.hpp"
using namespace sparq;

#include "simd_portable.hpp"

#include "all.hpp"

} // namespace
} // namespace portable

const Kernels portableKernels = {
    "portable",
    portable::widen,
    portable::narrow,
    portable::addRows,
    portable::approxScores,
    portable::indexScores,
    portable::quantiseBlock,
    portable::softmaxWeights,
    portable::roughKeys,
    portable::keyTopK,
    portable::meritsAt,
    portable::rowScores,
    portable::weightedValues,
    portable::streamSum,
};

} // namespace cpu
} // namespace sparq
