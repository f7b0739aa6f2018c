# SPDX-License-Identifier: Apache-2.0
"""Mutants of the CPU kernels."""

from __future__ import annotations

from . import of

_BITS = "tests/cpu/test_cpu_bits.py tests/cpu/test_cpu_key_index.py tests/cpu/test_cpu_threads.py"
_INT4 = "tests/cpu/test_cpu_int4_product.py"
_INT8 = "tests/cpu/test_cpu_int8_product.py"
#: the conformance vectors: every kernel in half a second
_VECTORS = "tests/vectors/test_vectors.py::test_bits"
_CACHE = f"tests/cpu/test_cpu_errors.py {_BITS} tests/ops/test_append.py tests/ops/test_copies.py"

MUTANTS = [
    *of(
        "poplar_ops/cpu/int4_product.cpp",
        _INT4,
        [
            ("if (n == 0 || n % multiple)", "if (n % multiple)", "a row of no numbers is taken"),
            (
                "p.rows + (row + r) * p.inputs",
                "p.rows + r * p.inputs",
                "rows beyond 32 are the first ones",
            ),
            (
                "p.weights + from * groups * groupBytes",
                "p.weights",
                "all threads have the first outputs' weights",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/kernels/group_products.hpp",
        _INT4,
        [
            (
                "const int kept = isFinite ? -1 : 0;",
                "const int kept = isFinite ? -2 : 0;",
                "integers of a row are even",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/kernels/codes_portable.hpp",
        _INT4,
        [("sum += 256 * h[j] + l[j];", "sum += 255 * h[j] + l[j];", "the upper byte counts for less")],
    ),
    *of(
        "poplar_ops/cpu/int8_product.cpp",
        _INT8,
        [
            ("if (n == 0 || n % multiple)", "if (n % multiple)", "a row of no numbers is taken"),
            (
                "kernels.codeProducts({wide, p.codes + from",
                "kernels.codeProducts({wide, p.codes + 0 * from",
                "all outputs are the first ones",
            ),
            ("widened(p.scale[from + i])", "widened(p.scale[i])", "outputs have the scales of others"),
            ("std::min(someRows, p.nRows - row)", "p.nRows - row", "more rows than there is room for"),
            ("p.rows[row * p.inputs + i]", "p.rows[i]", "rows beyond 32 are the first ones"),
        ],
    ),
    *of(
        "poplar_ops/cpu/bfloat16.hpp",
        _INT8,
        [("+ (bits >> 16 & 1u)", "", "ties are rounded up")],
    ),
    *of(
        "poplar_ops/cpu/kernels/code_products.hpp",
        _INT8,
        [
            (
                "loadLanes(part) + loadLanes(part + codeLanes / 2)",
                "loadLanes(part)",
                "half of the sums are lost",
            ),
            ("for (; row < a.nRows; ++row)", "for (; row + 1 < a.nRows; ++row)", "the last row is left out"),
            ("a.sums + (row + r) * a.stride", "a.sums + row * a.stride", "rows write over another"),
        ],
    ),
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
        "poplar_ops/cpu/fetch.hpp",
        "tests/cpu/test_cpu_fetch.py",
        [
            ('  asm volatile("");\n', "", "the compiler may drop it"),
            ("level == 1 ? 3 : 2", "level == 1 ? 2 : 3", "into the other cache"),
        ],
    ),
    *of(
        "poplar_ops/cpu/read_ahead.cpp",
        "tests/cpu/test_cpu_read_ahead.py",
        [
            ("    distance = *number;\n", "", "the variable is checked, not used"),
            ("    ways.settle(0);\n", "", "the first runs overrule the variable"),
            ("static_cast<unsigned>(*number) - 1", "0", "the second cache can not be named"),
        ],
    ),
    *of(
        "poplar_ops/cpu/two_ways.hpp",
        "tests/cpu/test_cpu_two_ways.py",
        [("return chosen.load(std::memory_order_relaxed);", "return 0;", "the usual way stays")],
    ),
    *of(
        "poplar_ops/cpu/two_ways.cpp",
        "tests/cpu/test_cpu_two_ways.py tests/cpu/test_cpu_read_ahead.py",
        [
            ("  begun = 2 * tries;\n", "", "what is settled is timed all the same"),
            ("  chosen = wayIn;\n", "  chosen = 0 * wayIn;\n", "what is settled is the usual way"),
            (
                "way = wayOf(number);",
                "way = 0 * number;",
                "one way alone is tried",
            ),
            ("__builtin_parity(number)", "number % 2", "each thread tries one way alone"),
            ("/ 20 * 19 ? 1 : 0", "? 1 : 0", "chance decides"),
            ("begin + tries / 2", "begin", "the quickest run counts, not the median"),
            ("lengthIn < owner.shortest ||", "", "short runs decide"),
            ("number > most", "number > most + 1", "a number too large"),
            ("number < least ||", "", "a number too small"),
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
        ],
    ),
    *of(
        "poplar_ops/cpu/kv_cache.cpp",
        "tests/cpu/test_cpu_checks_at_once.py::test_attention",
        [("  checkHeads(op, spec, nHeads);", "", "heads that fit no group pass")],
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
                "for (unsigned step = 0; step < 3; ++step)",
                "for (unsigned step = 0; step < 2; ++step)",
                "eight rows are not turned to columns",
            )
        ],
    ),
    *of(
        "poplar_ops/cpu/attention.cpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_split_between_threads",
        [
            (
                "    if (!call.pipelined())\n      finishBefore();",
                "    before = nullptr;",
                "a pair that is held back is forgotten",
            ),
            (
                "for (std::size_t i = 0; i < nSplit; ++i) {",
                "for (std::size_t i = 1; i < nSplit; ++i) {",
                "the first pair that is split is left out",
            ),
            (
                "i = nSplit + thread; i < nPairs;",
                "i = nSplit + thread; i + 1 < nPairs;",
                "the last pair is left out",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/dispatch.cpp",
        "tests/cpu/test_cpu_errors.py::test_a_cache_has_the_kernels_that_it_asked_for",
        [("if (name == kernels->name)", "if (true)", "any isa is the best one")],
    ),
    *of(
        "poplar_ops/cpu/key_index.cpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_reorder_and_read",
        [
            (
                "if (end == start + blockSize)",
                "if (end + 1 == start + blockSize)",
                "a block is quantised a token early",
            ),
            (
                "quantised ? length % blockSize : length;",
                "quantised ? 0 : length;",
                "a copy forgets the open block",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/key_cells.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_key_index.py::test_several_groups_of_cells",
        [
            (
                "cell % cellsTogether * wholeCellBytes();",
                "0 * (cell % cellsTogether) * wholeCellBytes();",
                "cells lie on one another",
            )
        ],
    ),
    *of(
        "poplar_ops/cpu/key_planes.hpp",
        "tests/cpu/test_cpu_index_planes.py",
        [
            (
                "return cellsOf(group) * planeBytes;",
                "return 0 * cellsOf(group) + planeBytes;",
                "planes lie on one another",
            )
        ],
    ),
    *of(
        "poplar_ops/cpu/key_index.cpp",
        "tests/cpu/test_cpu_index_planes.py",
        [
            ("most = std::max(most, step);", "most = step;", "the last step counts after truncate"),
        ],
    ),
    *of(
        "poplar_ops/cpu/pair_query.hpp",
        "tests/cpu/test_cpu_index_components.py",
        [("call->cache.spec.nIndexed(), rank", "d, rank", "the query chooses among all components")],
    ),
    *of(
        "poplar_ops/cpu/pair_query.hpp",
        "tests/cpu/test_cpu_index_planes.py",
        [
            ("merit = merit * 0.5f", "merit = merit * 0.25f", "a plane counts a quarter of the one above"),
        ],
    ),
    *of(
        "poplar_ops/cpu/pair_query.hpp",
        f"{_VECTORS} tests/cpu/test_cpu_bits.py::test_many_outputs tests/cpu/test_cpu_bits.py::test_bits",
        [
            (
                "lanes[c % nLanes] = lanes[c % nLanes] + magnitude(c);",
                "lanes[0] = lanes[0] + magnitude(c);",
                "magnitudes are added in one lane",
            ),
            (
                "total = total + std::fabs(query[h * d + c]);",
                "total = std::fabs(query[h * d + c]);",
                "the last head chooses for its group",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/thread_pool.cpp",
        "tests/cpu/test_cpu_threads.py::test_default_number_of_threads "
        "tests/cpu/test_cpu_threads.py::test_fork "
        "tests/cpu/test_cpu_errors.py::test_options_refused_by_the_module",
        [
            (
                "if (nThreads < 0 || nThreads > maxThreads)",
                "if (nThreads < 0)",
                "any number of threads is taken",
            ),
            ("    if (n >= 1)\n", "    if (n >= 0)\n", "no thread at all"),
        ],
    ),
    *of(
        "poplar_ops/cpu/thread_pool.cpp",
        "tests/cpu/test_cpu_threads.py::test_fork",
        [
            (
                "pthread_atfork(nullptr, nullptr, newRegistry);",
                "",
                "a child waits for threads that it does not have",
            )
        ],
    ),
    *of(
        "poplar_ops/cpu/window_attention.cpp",
        _VECTORS,
        [
            ("nBest = (firstLocal + stride - 1) / stride;", "", "strided positions begin below 0"),
            (
                "to.count = nBest + length - firstLocal;",
                "to.count = nBest + length - firstLocal - 1;",
                "the newest position is not attended to",
            ),
            ("shares[i] += shareOf(", "shares[i] = shareOf(", "the last head's share is that of all"),
        ],
    ),
    *of(
        "poplar_ops/cpu/window_history.cpp",
        _VECTORS,
        [
            ("    forget(bank, of.front());\n", "", "sums keep what has left the history"),
            (
                "if (of[i].length <= length)",
                "if (of[i].length < length)",
                "a step at just that length is forgotten",
            ),
            (
                "std::memset(row(bank, now.row), 0, length * sizeof(std::uint32_t));",
                "",
                "a step adds to the one that it replaces",
            ),
        ],
    ),
]
