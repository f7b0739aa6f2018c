// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512. Built with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma
// -mf16c on x86-64 only.
#include <immintrin.h>

#define SPARQ_AVX512
#include "instruction_set.hpp"

const sparq::cpu::Kernels sparq::cpu::avx512Kernels = tableOf("avx512");
