// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2. Built with -mavx2 -mfma -mf16c on x86-64 only.
#include <immintrin.h>

#define SPARQ_AVX2
#include "instruction_set.hpp"

const sparq::cpu::Kernels sparq::cpu::avx2Kernels = tableOf("avx2");
