// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512. Built with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma
// -mf16c on x86-64 only.
#include "table.hpp"

#include <immintrin.h>

namespace sparq {
namespace cpu {
namespace avx512 {
namespace {

#include "../../codelets/arith.hpp"
#include "../key_cells.hpp"
using namespace sparq;

#include "simd_avx512.hpp"

#include "codes_avx512.hpp"

#include "all.hpp"

} // namespace
} // namespace avx512

const Kernels avx512Kernels = {
    "avx512",
    avx512::widen,
    avx512::narrow,
    avx512::addRows,
    avx512::approxScores,
    avx512::indexScores,
    avx512::quantiseBlock,
    avx512::softmaxWeights,
    avx512::roughKeys,
    avx512::keyTopK,
    avx512::meritsAt,
    avx512::rowScores,
    avx512::weightedValues,
    avx512::streamSum,
};

} // namespace cpu
} // namespace sparq
