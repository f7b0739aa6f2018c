# SPDX-License-Identifier: Apache-2.0
"""Mutants of the builders of graphs, of what plans and host share, and of the arithmetic that all have."""

from __future__ import annotations

from . import of

_CODELETS = "tests/codelets/test"
_OPS = "tests/ops/test"
_DECODE = f"{_OPS}_append.py::test_decode_across_chunks_equals_reference"
_APPEND = f"{_OPS}_append.py"
_FILL = f"{_OPS}_cache_fill.py::test_fill_equals_reference"
_LAYERS = f"{_OPS}_layers.py::test_layers_are_each_their_own"
_WORDS = f"{_OPS}_words.py"
_WINDOW = f"{_OPS}_window.py"
_TIERED = f"{_OPS}_tiered.py"
_PLANNING = "tests/planning/test_planning.py"
_SHARES = "tests/pod/test_pod_plans.py::test_shares_are_all_layers_and_all_tasks"
_ROWS_OF_8_BITS = "tests/cpu/test_cpu_bits.py::test_rows_of_8_bits"

MUTANTS = [
    *of(
        "poplar_ops/arith/half_bits.hpp",
        _ROWS_OF_8_BITS,
        [
            ("((magnitude >> 13) & 1u)", "1u", "ties are rounded up"),
        ],
    ),
    *of(
        "poplar_ops/arith/key_index.hpp",
        f"{_CODELETS}_key_index.py",
        [
            ("code < largestCode(indexBits) ? code : largestCode(indexBits)", "code", "codes are not cut"),
        ],
    ),
    *of(
        "poplar_ops/arith/row_codes.hpp",
        f"{_CODELETS}_row_codes.py",
        [
            (
                "(bits >> 16) & 1u",
                "0u",
                "ties of a scale are rounded down",
                "there are none: of no fp16 number is the scale a tie",
            ),
        ],
    ),
    *of(
        "poplar_ops/arith/row_groups.hpp",
        _ROWS_OF_8_BITS,
        [
            (
                "most = std::max(most, std::fabs(codes[i]));",
                "most = std::max(most, codes[i]);",
                "a scale is of the largest number above 0",
            ),
        ],
    ),
    *of(
        "poplar_ops/arith/window_history.hpp",
        f"{_CODELETS}_window_history.py",
        [
            ("shareUnits = 65536.0f", "shareUnits = 65535.0f", "a share has other units"),
        ],
    ),
]
