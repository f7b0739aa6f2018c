// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 with VNNI (dot products of bytes and of 16-bit integers). Built with the
// options of avx512.cpp and -mavx512vnni on x86-64 only.
#include "table.hpp"

#include <immintrin.h>

namespace sparq {
namespace cpu {
namespace avx512vnni {
namespace {

#include "../key_cells.hpp"
#include "arith/key_index.hpp"
using namespace sparq;

#define SPARQ_VNNI
#include "simd_avx512.hpp"

#include "codes_avx512.hpp"

#include "all.hpp"

} // namespace
} // namespace avx512vnni

const Kernels avx512vnniKernels = SPARQ_KERNELS(avx512vnni);

} // namespace cpu
} // namespace sparq
