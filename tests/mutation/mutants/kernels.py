# SPDX-License-Identifier: Apache-2.0
"""Mutants of the CPU kernels, instruction set by instruction set, and of what they work in."""

from __future__ import annotations

from . import of

_CPU = "poplar_ops/cpu"
#: the conformance vectors: every kernel, of every instruction set
_VECTORS = "tests/vectors/test_vectors.py::test_bits_with_every_width_of_vectors_and_number_of_threads"

MUTANTS = [
    *of(
        f"{_CPU}/buffer.hpp",
        _VECTORS,
        [
            ("(n + multiple - 1) / multiple * multiple", "n / multiple * multiple", "room is rounded down"),
        ],
    ),
    *of(
        f"{_CPU}/key_index.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_memory",
        [
            ("at * nComponents * columnStride;", "at * headDim;", "pairs share their columns"),
        ],
    ),
    *of(
        f"{_CPU}/kv_cache.hpp",
        "tests/cpu/test_cpu_rows.py tests/cpu/test_cpu_bits.py::test_reorder",
        [
            ("shared->bank[rows[b]]", "shared->bank[b]", "chosen rows are the first ones"),
        ],
    ),
    *of(
        f"{_CPU}/pair_attention.hpp",
        _VECTORS,
        [
            (
                "call.isDense(length)",
                "call.isDense(length / 2)",
                "a text of less than twice top_k attends densely",
            ),
        ],
    ),
    *of(
        f"{_CPU}/read_ahead.hpp",
        "tests/cpu/test_cpu_two_ways.py tests/cpu/test_cpu_read_ahead.py",
        [
            ("return bytesOf(ways.now());", "return 0;", "nothing is read ahead"),
            (
                "return ways.now() + 1;",
                "return 1;",
                "selected rows are always said to come into the first cache",
            ),
            ("return way == 0 ? distance : 0;", "return way + distance;", "both ways read ahead"),
        ],
    ),
    *of(
        f"{_CPU}/scratch.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_many_outputs",
        [
            (
                "call.pipelined() ? carve.take<float>(g * stride) : scores[0]",
                "scores[0]",
                "neighbouring pairs have one buffer of scores",
            ),
        ],
    ),
    *of(
        f"{_CPU}/thread_pool.hpp",
        "tests/cpu/test_cpu_errors.py::test_options_refused_by_the_module",
        [
            ("maxThreads = 1024", "maxThreads = 2048", "more threads than there may be"),
        ],
    ),
    *of(
        f"{_CPU}/window_history.hpp",
        "tests/cpu/test_cpu_window.py::test_bits tests/cpu/test_cpu_window.py::test_copies_remember",
        [
            (
                "totals.as<std::int32_t>() + bank * capacity",
                "totals.as<std::int32_t>() + 0 * bank",
                "every element has the history of the first",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/approx_scores.hpp",
        _VECTORS,
        [
            ("if (done + 1 <= a.rank)", "if (false)", "the last of an odd number of components is left out"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/avx2.cpp",
        _VECTORS,
        [
            (
                "#define SPARQ_AVX2",
                "#define SPARQ_OTHER",
                "the compiler's own vectors are taken",
                "their bits are the same; it is slower alone",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/avx512.cpp",
        _VECTORS,
        [
            (
                "#define SPARQ_AVX512",
                "#define SPARQ_OTHER",
                "the compiler's own vectors are taken",
                "their bits are the same; it is slower alone",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/avx512vnni.cpp",
        _VECTORS,
        [
            (
                "#define SPARQ_VNNI",
                "#define SPARQ_OTHER",
                "VNNI is not used",
                "bits without it are the same; it is slower alone",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/cells.hpp",
        _VECTORS,
        [
            ("bits == 8 ? 2 : 4; }", "bits == 8 ? 4 : 4; }", "a word has more coefficients than room"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/plane_cells.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_index_planes.py",
        [
            ("(1u << (bits - a.range.depths[j])) - 1", "0", "what was not read counts as 0"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/planes.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_index_planes.py",
        [
            (
                "selectBits(masks, x, y >> by)",
                "selectBits(masks, x, y)",
                "bits of a code are out of their order",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/coded_cells.hpp",
        _VECTORS,
        [
            ("cell.row(j < cell.rank() ? j : 0)", "cell.row(0)", "codes of one component for all"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/codes_avx2.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_largest_sums",
        [
            ("quadsTogether = 8;", "quadsTogether = 64;", "sums pass 16 bits"),
            (
                "upper = _mm256_srli_epi16(x, 4)",
                "upper = _mm256_srli_epi16(x, 3)",
                "the second code has a bit of the first",
            ),
            (
                "sums[n] = _mm256_srai_epi32(sums[n], 2);",
                "sums[n] = _mm256_srai_epi32(sums[n], 1);",
                "every other code of 2 bits counts twice",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/codes_avx512.hpp",
        _VECTORS,
        [
            (
                "sums[n] = _mm512_srai_epi32(sums[n], bits * n);",
                "",
                "second codes count 16 times",
            ),
            (
                "sums[1] = _mm512_shuffle_i32x4(ab, cd, 0xDD);",
                "sums[1] = _mm512_shuffle_i32x4(ab, cd, 0x88);",
                "of four blocks two have the scores of one",
            ),
            (
                "to + blockSize, _mm512_extractf32x8_ps(scores, 1)",
                "to + blockSize, _mm512_extractf32x8_ps(scores, 0)",
                "two blocks have the scores of one",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/components.hpp",
        _VECTORS,
        [
            (
                "Lanes{x, x, x, x, x, x, x, x}",
                "Lanes{x, x, x, x, x, x, x}",
                "the last of eight lanes has nothing",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/dot_codes_portable.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_largest_sums",
        [
            ("bits == 4 ? 16 : 84", "bits == 4 ? 64 : 84", "sums pass 16 bits"),
            ("bits == 4 ? 16 : 84", "bits == 4 ? 16 : 128", "sums of 2 bits pass 16 bits"),
            (
                "firstPosition(bits, i / 4, i % 4, k)",
                "firstPosition(bits, i / 4, i % 4, each - 1 - k)",
                "scores of 4 bits are out of their order",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/index_scores.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_every_rank",
        [
            ("products[i] = 0.0f;", "products[i] = 1.0f;", "components beyond the rank count"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/key_topk.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_nearly_equal_merits",
        [
            ("a.nBest - countAbove(found, above, threshold)", "a.nBest", "ties come before larger keys"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/quantise.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py",
        [
            ("bitcast<BitsVec>(code < most ? code : most)", "bitcast<BitsVec>(code)", "codes are not cut"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/rough_keys.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_nearly_equal_merits",
        [
            (
                "load(weight) / broadcast(a.weightSum[h])",
                "load(weight) * broadcast(1.0f / a.weightSum[h])",
                "merits are rounded otherwise",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/rows.hpp",
        _VECTORS,
        [
            (
                "a.maximum[head] = score > a.maximum[head] ? score : a.maximum[head];",
                "",
                "rows behind the last four have no part in the maximum",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/simd_avx2.hpp",
        _VECTORS,
        [
            (
                "_mm256_set1_epi32(threshold - 1)",
                "_mm256_set1_epi32(threshold)",
                "keys at a threshold do not reach it",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/simd_avx512.hpp",
        _VECTORS,
        [
            ("_mm512_cmpge_epi32_mask", "_mm512_cmpgt_epi32_mask", "keys at a threshold do not reach it"),
            (
                "(sum + _mm512_shuffle_f32x4(x, y, 0x44)) + _mm512_shuffle_f32x4(x, y, 0xEE)",
                "(sum + _mm512_shuffle_f32x4(x, y, 0xEE)) + _mm512_shuffle_f32x4(x, y, 0x44)",
                "lanes are added in another order",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/simd_portable.hpp",
        _VECTORS,
        [
            ("((magnitude >> 13) & 1u)", "1u", "ties are rounded up"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/simd_x86.hpp",
        _VECTORS,
        [
            (
                "_mm_add_ps(_mm_unpacklo_ps(x0, x1), _mm_unpackhi_ps(x0, x1))",
                "_mm_shuffle_ps(_mm_hadd_ps(x0, x1), _mm_hadd_ps(x0, x1), 0xD8)",
                "lanes are folded in another order",
            ),
        ],
    ),
    *of(
        f"{_CPU}/buffer.cpp",
        "tests/cpu/test_cpu_buffer.py",
        [
            (
                "__builtin_mul_overflow(result, factor, &result)",
                "(result *= factor, false)",
                "a product that overflows is small",
            ),
            (
                "if (bytes > SIZE_MAX - 2 * hugePage)",
                "if (false)",
                "a size that can not be is rounded to a small one",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/all.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_bits",
        [
            (
                "__builtin_memcpy(rest, from + j, (n - j) * sizeof(Half));",
                "__builtin_memcpy(rest, from + j, (n - j - 1) * sizeof(Half));",
                "the last number of a row is not widened",
            ),
        ],
    ),
    *of(
        f"{_CPU}/kernels/dot_codes_x86.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_every_group_size",
        [
            ("(first * each + s)", "s", "half of the positions have the scores of the others"),
            ("first * 16 + s", "s", "with 2 bits a quarter of the positions has the scores of the others"),
        ],
    ),
    *of(
        f"{_CPU}/kernels/softmax_weights.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_many_outputs",
        [
            ("if (a.block == blocks && blocks % 4)", "if (false)", "the last blocks have no sum"),
        ],
    ),
]
