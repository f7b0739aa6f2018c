# SPDX-License-Identifier: Apache-2.0
"""Mutants of the CPU kernels."""

from __future__ import annotations

from . import of

_BITS = "tests/cpu/test_cpu_bits.py tests/cpu/test_cpu_key_index.py tests/cpu/test_cpu_threads.py"
_CACHE = f"tests/cpu/test_cpu_errors.py {_BITS} tests/ops/test_append.py tests/ops/test_copies.py"

MUTANTS = [
    *of(
        "poplar_ops/cpu/list_attention.cpp",
        _BITS,
        [
            (
                "y[c] = flush(y[c]) / weightSum;",
                "y[c] = y[c] / weightSum;",
                "tiny sums are not cut before the division",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/pair_attention.cpp",
        _BITS,
        [
            (
                "std::min(1.0f, flush(total / weightSum[h]))",
                "flush(total / weightSum[h])",
                "alpha may pass 1",
                "a sum of some weights, in the blocks of all, is never above theirs: rounding is monotone",
            ),
            ("firstLocal + i)", "firstLocal)", "one local position, many times"),
            (
                "end = std::min(end, firstLocal);",
                "end = std::min(end, firstLocal + 1);",
                "a local position can be selected twice",
            ),
            (
                "s.positions[i] = s.candidates[s.positions[i]];",
                "(void)0;",
                "threads' candidates are not mapped back",
            ),
            (
                "maxima[h] = std::max(maxima[h], openMaxima[h]);",
                "(void)0;",
                "the open block has no part in the maximum",
            ),
            (
                "member = 1; member < team.size",
                "member = 1; member + 1 < team.size",
                "the maximum of the last thread is left out",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/read_ahead.cpp",
        "tests/cpu/test_cpu_read_ahead.py",
        [
            ("  distance = number;\n", "", "the variable is checked, not used"),
            ("  begun = 2 * tries;\n", "", "the first runs overrule the variable"),
            ("number > most", "number > most + 1", "a distance too large"),
            ("|| *end ||", "||", "a number with something after it"),
        ],
    ),
    *of(
        "poplar_ops/cpu/openmp.cpp",
        "tests/cpu/test_cpu_openmp.py",
        [
            ("  if (complete)\n", "  if (true)\n", "a team that is too small works"),
            ("return region.complete;", "return true;", "a call that nobody made counts as made"),
            (
                "inUse.store(false, std::memory_order_relaxed);",
                "",
                "a child asks a runtime for threads that it does not have",
            ),
            (
                "return once && !forked.load(std::memory_order_relaxed)",
                "return once",
                "a child may begin again",
            ),
            ('std::strcmp(wanted, "0") == 0', 'std::strcmp(wanted, "0") == 1', "it can not be switched off"),
        ],
    ),
    *of(
        "poplar_ops/bindings/cpu.cpp",
        "tests/cpu/test_cpu_checks_at_once.py",
        [
            ("(bits & 0x7c00u) != 0x7c00u", "bits != 0x7c00u", "NaN passes"),
            ("all = all &&", "all =", "the last component alone is looked at"),
            ("(Py_TYPE(object.ptr()) != ndarray)", "(ndarray == nullptr)", "masked arrays pass"),
            ("type.byteorder() != '='", "false", "the other byte order is read as this one"),
            (
                "array.strides(array.ndim() - 1) != sizeof(Half)",
                "false",
                "components apart are looked at as neighbours",
            ),
            ("nHeads % cache.nKvHeads != 0", "false", "heads that fit no group pass"),
        ],
    ),
    *of(
        "poplar_ops/cpu/kv_cache.cpp",
        f"{_CACHE} tests/cpu/test_tokens.py tests/cpu/test_cpu_window.py",
        [
            (
                "history->truncate(bankOf(b), nHeld",
                "history->truncate(b, nHeld",
                "another element's history is cut",
            ),
            ("if (count > capacity - held)", "if (false)", "appends go on behind the capacity"),
            (
                "shared->nHeld[copy.to] = shared->nHeld[copy.from];",
                "shared->nHeld[copy.to] += 0 * shared->nHeld[copy.from];",
                "a repeated element has the length of another",
            ),
            ("keyIndex.copy(from, to, n);", "", "a repeated element has the key index of another"),
            ("(n - held) * headDim * sizeof(Half))", "0)", "what is read behind a length is not 0"),
            (
                "keyIndex.append(at.at, at.keyRows, begin, length);",
                "(void)0;",
                "a block that is open again has the columns of another",
            ),
            (
                "(n / blockSize + 1) * headDim * sizeof(float)",
                "0 * n",
                "a repeated element can not be truncated",
            ),
            ("if (done % blockSize == 0)", "if (done == 0)", "sums before later blocks are not kept"),
        ],
    ),
    *of(
        "poplar_ops/cpu/call.hpp",
        "tests/cpu/test_tokens.py",
        [("query.nTokens - 1 - index % query.nTokens", "0", "a token sees those behind it")],
    ),
    *of(
        "poplar_ops/cpu/schedule.cpp",
        _BITS,
        [
            (
                "lengths[a] > lengths[b] : a < b",
                "lengths[a] < lengths[b] : a < b",
                "the shortest pairs come first",
                "results are the same; threads wait longer",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/stream_sum.cpp",
        "tests/cpu/test_cpu_errors.py tests/bench/test_cpu_sparq.py",
        [("offset < 0 || offset % granule", "offset < 0", "an offset that is no multiple is taken")],
    ),
    *of(
        "poplar_ops/cpu/key_columns.cpp",
        _BITS,
        [
            (
                "const bool whole = p % 8 == 0 && p + 8 <= end;",
                "const bool whole = p % 8 == 0;",
                "columns are written behind the length",
            )
        ],
    ),
]
