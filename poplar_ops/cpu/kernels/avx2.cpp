// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2. Built with -mavx2 -mfma -mf16c on x86-64 only.
#include "table.hpp"

#include <immintrin.h>

namespace sparq {
namespace cpu {
namespace avx2 {
namespace {

#define SPARQ_AVX2
#include "all.hpp"

} // namespace
} // namespace avx2

const Kernels avx2Kernels = SPARQ_KERNELS(avx2);

} // namespace cpu
} // namespace sparq
