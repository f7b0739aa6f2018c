// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 with VNNI (dot products of bytes and of 16-bit integers). Built with the
// options of avx512.cpp and -mavx512vnni on x86-64 only.
#include <immintrin.h>

#define SPARQ_AVX512
#define SPARQ_VNNI
#include "instruction_set.hpp"

const sparq::cpu::Kernels sparq::cpu::avx512vnniKernels = tableOf("avx512vnni");
