# SPDX-License-Identifier: Apache-2.0
"""Dry runs: every step is counted as in a real run, only what decides how often steps run is carried out."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def results(programs):
    return programs.json("dry_run", programs.codelets)


@pytest.mark.parametrize("n, loops", [(0, 5), (3, 4), (10, 0)])
def test_counts_are_those_of_a_real_run(results, n, loops):
    assert results[f"dry{n}"] == results[f"real{n}"]
    assert results[f"real{n}"].get("work", 0) == loops
    assert results[f"real{n}"]["once"] == 1 and "never" not in results[f"real{n}"]
    assert results[f"total{n}"] == 5 * loops + 1


def test_refusals(results):
    assert results["remoteRow"] == "copyFromRemoteBuffer: the engine must not be dry [engine_not_loaded]"
    assert results["dependent"] == (
        "dry run: control flow must not depend on data from outside the device, got copy 'start_from_remote' "
        "[dry_run_needs_data]"
    )


@pytest.fixture(scope="module")
def outcomes(programs) -> dict:
    return {line["case"]: line for line in programs.json_lines("dry_run_control", programs.codelets)}


@pytest.mark.parametrize(
    "case, taken",
    [
        ("reported_9", {"yes": 1}),
        ("reported_10", {"no": 1}),
        ("switch_9", {"yes": 1}),
        ("switch_10", {"no": 1}),
        (
            "cycle_stamp",
            {"yes": 5},
        ),  # 4 * 1094 < 5000 <= 5 * 1094; a loop's cycles: (30 + 315) + (6 * 30 + 315) + 254 of its branch
        ("cycle_count", {"yes": 1}),
        ("write_undef", {"yes": 1}),  # an undefined bool is not 0
        ("never_written", {"yes": 1}),
        ("beside_remote", {"yes": 1}),
        ("error_not_reached", {"no": 1}),
    ],
)
def test_whatever_control_flow_depends_on(outcomes, case, taken):
    real = outcomes[case]["real"]
    assert {name: real[name] for name in ("yes", "no") if name in real} == taken
    assert outcomes[case]["dry"] == real


def test_what_compute_reports_of_outside_data_is_refused(outcomes):
    assert outcomes["reported_from_remote"]["dry"] == (
        "dry run: control flow must not depend on data from outside the device, got copy 'load' "
        "[dry_run_needs_data]"
    )


def test_errors_that_a_dry_run_gets_to_are_thrown(outcomes):
    assert outcomes["error"] == {
        "case": "error",
        "real": "reached: 17 [program_aborted]",
        "dry": "reached [program_aborted]",
    }


def test_conditional_aborts_are_left_out(outcomes):
    assert outcomes["abort_on_condition"]["real"] == "it holds [program_aborted]"
    assert outcomes["abort_on_condition"]["dry"] == {"after": 1}


def test_streaming_memory_is_counted(results):
    assert results["streaming"] == 4 * 4
