// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 with VNNI (dot products of bytes and of 16-bit integers). Built with
// -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni and the options of avx2.cpp, on x86-64
// only.
#include <immintrin.h>

#define SPARQ_AVX512
#include "instruction_set.hpp"

const sparq::cpu::Kernels sparq::cpu::avx512vnniKernels = tableOf("avx512vnni");
