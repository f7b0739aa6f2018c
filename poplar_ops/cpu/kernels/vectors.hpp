// SPDX-License-Identifier: Apache-2.0
//
// The vectors of an instruction set: SPARQ_AVX512 (with VNNI), SPARQ_AVX2, or any machine's.
//
// instruction_set.hpp includes this and all kernels inside an unnamed namespace, and so is
// arith.hpp: its functions are then private to each file, and the linker can not put the AVX-512
// copy of one into the portable kernels. For the same reason no kernel calls an inline function of
// the standard library. Before that the file includes <immintrin.h> where it has instructions of
// its own.
#pragma once

#include "../fetch.hpp"
#include "../key_cells.hpp"
#include "arith/key_index.hpp"
using namespace sparq;

#if defined(SPARQ_AVX512)
#include "simd_avx512.hpp"
#elif defined(SPARQ_AVX2)
#include "simd_avx2.hpp"
#else
#include "simd_portable.hpp"
#endif
