// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2. Built with -mavx2 -mfma -mf16c on x86-64 only.
#include "table.hpp"

#include <immintrin.h>

namespace sparq {
namespace cpu {
namespace avx2 {
namespace {

#include "../key_cells.hpp"
#include "arith/key_index.hpp"
using namespace sparq;

#include "simd_avx2.hpp"

#include "codes_avx2.hpp"

#include "all.hpp"

} // namespace
} // namespace avx2

const Kernels avx2Kernels = SPARQ_KERNELS(avx2);

} // namespace cpu
} // namespace sparq
