# SPDX-License-Identifier: Apache-2.0
"""Floating-point exceptions: what stops a program, from when to when, and what does not."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

POPC = Path(__file__).resolve().parents[1] / "popc" / "popc.py"
INV, DIV0, OFLO, NONE, ALL = "10000", "01000", "00100", "00000", "11101"
#: by vertex, a and b: the behaviour that stops it alone, and what it gives where nothing does
EVENTS = {
    ("Add", "inf", "-inf"): (INV, "invalid operation (inv)", math.nan),
    ("Multiply", "0", "inf"): (INV, "invalid operation (inv)", math.nan),
    ("Divide", "0", "0"): (INV, "invalid operation (inv)", math.nan),
    ("Less", "nan", "0"): (INV, "invalid operation (inv)", 0.0),
    ("Sqrt", "-1", "0"): (INV, "invalid operation (inv)", math.nan),
    ("Log", "-1", "0"): (INV, "invalid operation (inv)", math.nan),
    ("Divide", "1", "0"): (DIV0, "division by zero (div0)", math.inf),
    ("Multiply", "1e30", "1e30"): (OFLO, "overflow (oflo)", math.inf),
    ("Exp", "89", "0"): (OFLO, "overflow (oflo)", math.inf),
    ("ToHalf", "65520", "0"): (OFLO, "overflow (oflo)", 65504.0),
    ("ToHalf", "-1e30", "0"): (OFLO, "overflow (oflo)", -65504.0),
    ("HalfMap", "60000", "60000"): (OFLO, "overflow (oflo)", 65504.0),
}
#: and those without an event
CALM = {
    ("Add", "inf", "1"): math.inf,
    ("Multiply", "1e-30", "1e-30"): 0.0,
    ("Divide", "0", "3"): 0.0,
    ("ToHalf", "65519.99", "0"): 65504.0,
    ("ToHalf", "inf", "0"): 65504.0,
    ("ToHalf", "1e-8", "0"): 0.0,
    ("GuardedDivide", "1", "0"): 0.0,
    ("GuardedDivide", "0", "0"): 0.0,
    ("GuardedProduct", "1e30", "1e30"): 0.5,
    ("GuardedRoot", "-1", "5"): 5.0,
    ("Sigmoid", "-1000", "0"): 0.0,
    ("Sigmoid", "-88.75", "0"): 0.0,
    ("Sigmoid", "1000", "0"): 1.0,
}


def vertex_type(name: str) -> str:
    return f"test::{name}" if name in ("HalfMap", "FourthDivides") else f"test::Map<test::{name}>"


@pytest.fixture(scope="module", params=["c++", "clang++"])
def codelets(request, programs, tmp_path_factory) -> str:
    """The codelets as each compiler makes them."""
    if request.param == "c++":
        return str(programs.where / "event_codelets.gp")
    if shutil.which("clang++") is None:
        pytest.skip("needs clang++")
    gp = tmp_path_factory.mktemp("events") / "codelets.gp"
    source = Path(__file__).parent / "programs" / "event_codelets.cpp"
    command = [sys.executable, str(POPC), str(source), "-o", str(gp)]
    subprocess.run(command, check=True, env={**os.environ, "CXX": "clang++", "SPARQ_POPC_EVENTS": "1"})
    return str(gp)


@pytest.fixture
def results(programs, codelets):
    """Of the `run` and `restore` steps: an output, the words before, or an error. Where none is run: why."""

    def run(vertex: tuple[str, str, str], *steps: str, gp: str = codelets, **variables: str):
        name, a, b = vertex
        said = programs.json("floating_point", gp, vertex_type(name), a, b, *steps, **variables)
        return said["refused"] if isinstance(said, dict) else said

    return run


def same(a, b) -> bool:
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("case", EVENTS, ids="-".join)
def test_an_event_stops_where_its_exception_is_on(results, case):
    stops, what, value = EVENTS[case]
    others = "".join("0" if digit == "1" else "1" for digit in stops[:3]) + "00"
    quiet, others, stopped, everything = results(
        case, "run", f"set:{others}", "run", f"set:{stops}", "run", f"set:{ALL}", "run"
    )
    assert same(quiet, value) and same(others, value)
    where = f" in vertex {vertex_type(case[0])} on tile 1 of compute set 'cs', where it is an exception"
    assert stopped == everything == f"run: floating-point {what}{where} [floating_point_exception]"


@pytest.mark.parametrize("case", CALM, ids="-".join)
def test_what_is_no_event_stops_nothing(results, case):
    assert results(case, f"set:{ALL}", "run") == [CALM[case]]


def test_a_behaviour_lasts_until_the_next_or_the_next_load(results):
    case = ("Divide", "1", "0")
    stopped = results(case, "set:01000", "run", "run", "set:00000", "run", "set:01000", "load", "run")
    assert ["division by zero" in str(r) for r in stopped] == [True, True, False, False]


def test_a_behaviour_is_of_the_tiles_of_its_graph(results):
    case = ("Divide", "1", "0")
    assert results(case, "first:11101", "run") == [math.inf]
    off_again = results(case, "set:11101", "first:00000", "run")
    assert "division by zero" in off_again[0]


def test_a_behaviour_is_given_back(results):
    case = ("ToHalf", "1e6", "0")
    saturated, before, stopped = results(case, "set:00101", "modify:00101:00000", "run", "restore", "run")
    assert saturated == 65504.0
    assert before == [1 << 2 | 1 << 20] * 2
    assert "overflow (oflo)" in stopped
    set_too = results(("Divide", "1", "0"), "modify:00000:01000", "run", "restore", "run")
    assert "div0" in set_too[0] and set_too[1:] == [[0, 0], math.inf]


def test_a_half_that_overflows_is_nan_where_the_behaviour_says_so(results):
    case = ("ToHalf", "1e6", "0")
    value, stopped = results(case, "set:00001", "run", "set:10001", "run")
    assert math.isnan(value)
    assert "invalid operation (inv)" in stopped
    assert results(("ToHalf", "-1e6", "0"), "set:10000", "run") == [-65504.0]


def test_the_worker_is_named(results):
    (stopped,) = results(("FourthDivides", "1", "0"), "set:01000", "run")
    assert "test::FourthDivides, worker 3, on tile 1" in stopped


def test_options_of_an_engine_switch_exceptions_on(results):
    case = ("ToHalf", "1e6", "0")
    events, nan = "debug.floatPointOpException", "debug.nanOverflowMode"
    (stopped,) = results(case, f"option:{events}=true", "run")
    assert "overflow (oflo)" in stopped
    assert results(case, f"option:{events}=false", "run") == [65504.0]
    assert math.isnan(results(case, f"option:{nan}=true", "run")[0])
    (stopped,) = results(case, f"option:{events}=false", f"engine:{events}=true", "run")
    assert "overflow (oflo)" in stopped
    assert results(case, f"option:{events}=true", f"engine:{events}=false", "run") == [65504.0]
    given = json.dumps({events: "true"})
    (stopped,) = results(case, f"engine:{events}=false", "run", POPLAR_ENGINE_OPTIONS=given)
    assert "overflow (oflo)" in stopped
    (stopped,) = results(case, "run", POPLAR_ENGINE_OPTIONS=given)
    assert "overflow (oflo)" in stopped
    assert results(case, "set:00000", "run", POPLAR_ENGINE_OPTIONS=given) == [65504.0]
    refused = f"engine option {nan} must be true or false, got '1' [bad_engine_option]"
    assert results(case, f"option:{nan}=1", "run") == refused


def test_codelets_that_hide_their_events_are_refused_where_one_would_stop(programs, tmp_path):
    gp = tmp_path / "plain.gp"
    source = Path(__file__).parent / "programs" / "event_codelets.cpp"
    subprocess.run([sys.executable, str(POPC), "-O1", str(source), "-o", str(gp)], check=True)
    steps = "run", "set:01000", "run"
    value, refused = programs.json("floating_point", gp, vertex_type("Divide"), 1, 0, *steps)
    assert value == math.inf
    assert refused == (
        "run: vertex test::Map<test::Divide> on tile 1 must come from codelets made with popc "
        "--floating-point-events (or with SPARQ_POPC_EVENTS=1) where floating-point exceptions are on, "
        "got others [no_floating_point_events]"
    )


def test_stochastic_rounding_is_refused_by_name(results):
    refused = results(("Add", "1", "1"), "set:00010")
    assert refused.startswith("setFloatingPointBehaviour: esr must be false here, got true")
