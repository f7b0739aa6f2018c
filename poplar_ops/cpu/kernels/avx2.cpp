// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2. Built with -mavx2 -mfma -mf16c on x86-64 only.
#include "table.hpp"

#include <immintrin.h>

namespace sparq {
namespace cpu {
namespace avx2 {
namespace {

#include "../../codelets/arith.hpp"
#include "../key_cells.hpp"
using namespace sparq;

#include "simd_avx2.hpp"

#include "codes_avx2.hpp"

#include "all.hpp"

} // namespace
} // namespace avx2

const Kernels avx2Kernels = {
    "avx2",
    avx2::widen,
    avx2::narrow,
    avx2::addRows,
    avx2::approxScores,
    avx2::indexScores,
    avx2::quantiseBlock,
    avx2::softmaxWeights,
    avx2::roughKeys,
    avx2::keyTopK,
    avx2::meritsAt,
    avx2::rowScores,
    avx2::weightedValues,
    avx2::streamSum,
};

} // namespace cpu
} // namespace sparq
