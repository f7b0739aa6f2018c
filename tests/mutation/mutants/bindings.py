# SPDX-License-Identifier: Apache-2.0
"""Mutants of the Python module of the operators: conversion, refusals, counts, probes."""

from __future__ import annotations

from . import of

_BINDINGS = "poplar_ops/bindings"
_ERRORS = "tests/ops/test_errors.py::test_sessions_refuse"
_MODEL = "tests/device_model/test_device_model.py"
_PROBES = "tests/bench/test_hardware_day.py::test_a_probe_counts_what_it_says"

MUTANTS = [
    *of(
        f"{_BINDINGS}/convert.hpp",
        "tests/ops/test_window.py::test_what_a_session_refuses "
        "tests/ops/test_append.py::test_bulk_on_top_of_single_tokens "
        "tests/pod/test_pod_sessions.py::test_what_does_not_fit_names_the_ipu_and_the_resource",
        [
            (
                'from.read("index_bits", value.indexBits);',
                'from.read("row_bits", value.indexBits);',
                "a key index has as many bits as rows",
            ),
        ],
    ),
    *of(
        f"{_BINDINGS}/core.cpp",
        f"{_ERRORS} tests/ops/test_words.py::test_settings_of_window_kernels "
        "tests/ops/test_window.py::test_what_a_session_refuses",
        [
            (
                "if ((array.flags() & py::array::c_style) == 0)",
                "if (false)",
                "numbers apart are taken for neighbours",
            ),
            (
                "takesSparq ? isWindow && !isSettings : takesWindow && isSettings",
                "false",
                "settings of the other kind of attention are not named",
            ),
            (
                "same = array.shape(static_cast<py::ssize_t>(i)) == shape[i];",
                "same = i != 0 || array.shape(0) == shape[0];",
                "the first dimension alone is looked at",
            ),
            (
                "    history.emplace_back();\n",
                "    if (history.empty())\n      history.emplace_back();\n",
                "histories of all batch elements are one",
            ),
        ],
    ),
    *of(
        f"{_BINDINGS}/core.hpp",
        "tests/bindings/test_stubs.py",
        [
            (
                'const_name("sparq_ipu.kernels.Attention")',
                'const_name("sparq_ipu.kernels.Kernel")',
                "signatures name another class",
            )
        ],
    ),
    *of(
        f"{_BINDINGS}/emulator.cpp",
        f"{_MODEL} tests/planning/test_planning.py::test_a_plan_is_what_a_run_reports "
        "tests/planning/test_planning.py::test_the_baseline_is_without_the_append_program",
        [
            (
                'f("shared_row_penalty", m.sharedRowPenalty);',
                'f("shared_row_penalty", m.sharedRowKneeBytes);',
                "a parameter of the model is another",
            ),
            (
                "if (used != parameters.size())",
                "if (used > parameters.size())",
                "unknown parameters are taken",
            ),
            (
                '"streaming"_a = t.streaming, "host_streams"_a',
                '"streaming"_a = t.exchange, "host_streams"_a',
                "exchange is called streaming",
            ),
        ],
    ),
    *of(
        f"{_BINDINGS}/probe.hpp",
        _PROBES,
        [
            (
                "return sizes.at(name); }",
                "return sizes.at(name) + 1; }",
                "all is done once more than asked for",
            )
        ],
    ),
    *of(
        f"{_BINDINGS}/probes.cpp",
        _PROBES,
        [
            ('if (value == 0 && name != "tiles" && name != "taken")', "if (false)", "sizes of 0 are taken"),
            ("    if (wanted != given)", "    if (false)", "sizes of another probe are taken"),
        ],
    ),
    *of(
        f"{_BINDINGS}/run_probe.cpp",
        f"{_PROBES} tests/codelets/test_scores.py::test_next_wave_stops_behind_the_longest",
        [
            (
                "words[0] + (std::uint64_t(words[1]) << 32)",
                "words[1] + (std::uint64_t(words[0]) << 32)",
                "the words of a counter change places",
            ),
            ("  if (kind == 'b')\n    return BOOL;\n", "", "a vertex has no edges of bool"),
        ],
    ),
]
