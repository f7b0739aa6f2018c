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

#define SPARQ_AVX512
#define SPARQ_VNNI
#include "all.hpp"

} // namespace
} // namespace avx512vnni

const Kernels avx512vnniKernels = SPARQ_KERNELS(avx512vnni);

} // namespace cpu
} // namespace sparq
