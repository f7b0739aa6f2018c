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

#define SPARQ_AVX512
#include "all.hpp"

} // namespace
} // namespace avx512

const Kernels avx512Kernels = SPARQ_KERNELS(avx512);

} // namespace cpu
} // namespace sparq
