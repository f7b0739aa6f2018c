# SPDX-License-Identifier: Apache-2.0
"""Small device programs, whole: vertices, control, streams, remote rows; equal for any tiles and threads."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("tiles", [1, 2, 3, 7, 64])
def test_every_kind_of_field(programs, tiles):
    r = programs.json("vertices", programs.codelets, tiles)
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    y = np.full((4, 8), -1, np.float32)
    y[0] = x[1] * 2 + 0.25
    column = x[:6, 3] * 2 + 0.25
    y[1, :3], y[1, 5:] = column[:3], column[3:]
    y[2] = x[2] * 2 + 0.25  # reversed in and out
    y[3] = x[0, 4] * 2 + 0.25
    np.testing.assert_array_equal(np.reshape(r["y"], (4, 8)), y)
    flat = np.full((4, 3), 10, np.float32).reshape(-1)
    flat[2:7] += 3
    np.testing.assert_array_equal(np.reshape(r["inOut"], (3, 4)), flat.reshape(4, 3).T)
    assert r["ids"] == [i % 6 for i in range(15)]
    assert r["ways"] == [100, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    turned = (np.arange(8 * 8 * 16) * 7 % 127).reshape(8, 8, 16).transpose(0, 2, 1).reshape(-1)
    for size in (1, 2, 4):  # bytes an element
        np.testing.assert_array_equal(np.reshape(r[f"transposed {size}"], (3, -1)), [turned] * 3)
    # 65519 is held as 65504, the largest half
    assert r["sums"] == [6 + 10 * (0.5 + 0.25 + 65504), x[5, 1:4].sum() + 10 * x[:5, 7].sum()]
    assert r["picked"] == [-5, -(3) - 7]
    assert r["b"] == [0, 1, 2, 4.5, 5.5, 6.5, 7.5, 8.5, 8]
    assert r["remainder"] == [0]
    np.testing.assert_array_equal(r["listSums"], x[:2].sum(axis=1) * 0.5 + 0.125 - 3 + 200)
    assert r["below"] == [1]
    check_drawn(r["drawn"])


def check_drawn(drawn):
    """Arrows for Graphviz lead from what a vertex reads and to what it writes."""
    names = dict(re.findall(r'(?<!> )\b(\w+) \[(?:shape=box, )?label="([^\\"]*)', drawn))
    edges = re.findall(r'(\w+) -> (\w+) \[label="(\w+)"(, dir=both)?\]', drawn)
    found = {(names[a], names[b], field, bool(both)) for a, b, field, both in edges}
    assert {edge for edge in found if {"test::Affine", "test::Increment"} & set(edge)} == {
        ("x", "test::Affine", "in", False),
        ("test::Affine", "y", "out", False),
        ("test::Increment", "inOut", "data", True),
    }
    assert re.findall(r'"test::Below\\ntile \d+\\n(\w+)"', drawn) == ["mixed"]  # its compute set


def test_control(programs):
    r = programs.json("control", programs.codelets)
    assert r["repeated"] == 5 * (1 + 3 * 10)
    assert (r["whileTrue"], r["never"]) == (7, 0)
    assert (r["ifTrue"], r["ifFalse"]) == (1, 10)
    assert (r["control"], r["one"], r["five"], r["other"]) == (65537, 1, 1, 6)
    assert r["called"] == 3 * (1 + 2)
    assert r["value"] == 1
    assert r["predicate"] == 0  # one of the two vertices returned false
    assert r["received"] == [1, 2, 3, 4, 5, 6, 1, 2, 3, 70, 71, 72] and r["calls"] == 1
    assert r["undefined"] == [1, 1, 1, 1] and r["undone"] == [0, 1, 1, 0]
    assert r["shift"] == [0, 0, 1, 2, 3, 4]
    assert r["timed"] == 4
    assert r["cycles"] == [4 * (30 + 165 + 150), 0]  # estimate, fixed cost of a compute set, sync


def test_a_tutorial_that_compiles_its_own_codelet(programs):
    rows, cols = 9, 14
    matrix = np.add.outer(np.arange(rows), 2 * np.arange(cols))
    want = matrix @ (np.arange(cols) % 3)
    assert [float(x) for x in programs.run("matvec", rows, cols).split()] == want.tolist()


def figures(summary: str, section: str) -> dict[str, int]:
    """The first number of each line of a section, by what is before its colon."""
    (lines,) = [part for part in summary.split("\n\n") if part.startswith(section)]
    found = re.findall(r"^ *(.+): +([\d,]+)", lines, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in found}


def test_profile_summary(programs):
    everything = "showExecutionSteps true showVarStorage true showPerIpuMemoryUsage true".split()
    summary = programs.run("matvec", 9, 14, *everything)
    assert "Nothing here was measured." in summary
    assert figures(summary, "Target:") == {
        "Number of IPUs": 1,
        "Tiles per IPU": 1472,
        "Total Tiles": 1472,
        "Memory Per-Tile": 638976,
        "Total Memory": 1472 * 638976,
        "Clock Speed (approx)": 1850,
    }
    graph = figures(summary, "Graph:")
    assert graph["Number of vertices"] == 9 and "    9  DotProduct\n" in summary
    memory = figures(summary, "Memory Usage:")
    parts = "Variables, Vertex state, Temporaries, Stacks"
    codes = [f"{kind} Code (est.)" for kind in ("Vertex", "Control", "Exchange", "Host Exchange")]
    assert memory["In all"] == sum(memory[name] for name in [*parts.split(", "), *codes])
    assert memory["IPU 0"] == memory["Total for all IPUs"] > 1472 * memory["Stacks"]
    assert "56 B  matrix\n" in summary and "Always live, on all tiles:\n    none\n" in summary
    time = figures(summary, "Execution:")
    assert sum(time.values()) == pytest.approx(2 * time["Total cycles"], abs=4)  # the rest are its parts
    assert time["Compute cycles"] == 6 * (20 + 3 * 14) + 165 and time["Sync cycles"] == 4 * 150
    assert time["IPU exchange cycles"] == 100 + (14 * 4 - 4) // 4 + 13 * 3  # each from another tile
    steps = re.findall(r"^  (\w+).*: (.*)\n    Cycles: +([\d,]+) \(.* us\), times 1$", summary, re.MULTILINE)
    assert [step[:2] for step in steps] == [
        ("StreamCopy", "<anonymous>"),
        ("StreamCopy", "<anonymous>"),
        ("OnTileExecute", "multiply"),
        ("StreamCopy", "<anonymous>"),
    ]
    # a vertex of 20 + 3 * 14 slots of a worker, the vector sent to it; fixed costs of each
    assert int(steps[2][2]) == 6 * (20 + 3 * 14) + 165 + 100 + (14 * 4 - 4) // 4 + 13 * 3 + 150
    assert sum(int(step[2]) for step in steps) == pytest.approx(time["Total cycles"], abs=4)
    assert f"Moved:              {9 * 14 * 4} B of 'matrix'" in summary
    assert "without a performance estimate" not in summary


def test_profile_summary_of_a_loop(programs):
    """Of each step the time of once, and how often: here three times, on one tile 40 + 3 slots."""
    summary = programs.run("executable", programs.codelets, "run", "-", SPARQ_EMULATOR_IPUS="1")
    found = re.findall(r"OnTileExecute: increment\n +Cycles: +(\d+) .*, times (\d+)", summary)
    once = 6 * (40 + 3) + 165 + 150
    # After each of three runs, of all until then: 3 times, another program once, 3 times more.
    assert [(int(cycles), int(times)) for cycles, times in found] == [(once, n) for n in (3, 3, 1, 6, 1)]
    assert re.findall(r"Of (\d run.*)", summary) == ["1 run", "2 runs together", "3 runs together"]
    totals = [int(n.replace(",", "")) for n in re.findall(r"Total cycles: +([\d,]+)", summary)]
    assert totals[2] - totals[1] == totals[0] > totals[1] - totals[0] > 0


def test_profile_summary_shows_what_is_asked_for(programs):
    brief = programs.run("matvec", 2, 1, "showExecutionSteps", "false")
    assert "Execution:" in brief
    for absent in ("Cycles:", "Always live", "IPU 0:"):
        assert absent not in brief
    assert "2 vertices without a performance estimate, as DotProduct of 'multiply'" in brief
    with pytest.raises(RuntimeError, match="option showVarStorage must be true or false, got 'yes'"):
        programs.run("matvec", 2, 1, "showVarStorage", "yes")


def test_an_engine_goes_on_after_a_fork(programs):
    """In the child, which does not have the threads of the parent, and which may also just end."""
    assert programs.json("fork", programs.codelets, threads=3) == {"idle": 0, "child": 0}


def heat(cells: int, steps: int) -> np.ndarray:
    t = np.zeros(cells, np.float32)
    t[cells // 2] = 1024
    for _ in range(2 * steps):
        left, right = np.concatenate([t[:1], t[:-1]]), np.concatenate([t[1:], t[-1:]])
        t = t + np.float32(0.25) * (left - t + (right - t))
    return t


@pytest.mark.parametrize("tiles", [1, 4, 23])
def test_halo_exchange(programs, tiles):
    got = [float(x) for x in programs.run("stencil", programs.codelets, tiles, 23, 20).split()]
    np.testing.assert_allclose(got, heat(23, 20), rtol=1e-5)  # printed with six digits
    assert not np.allclose(got, heat(23, 19), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"), [("vertices", (7,)), ("control", ()), ("stencil", (16, 61, 10))]
)
def test_results_do_not_depend_on_threads(programs, name, arguments):
    results = {programs.run(name, programs.codelets, *arguments, threads=n) for n in (1, 2, 3, 8)}
    assert len(results) == 1


@settings(max_examples=20)
@given(st.data())
def test_remote_rows(programs, data):
    rows, width = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1, 2, 5, 16, 100]))
    n = data.draw(st.integers(1, rows))
    read = data.draw(st.lists(st.integers(0, rows - 1), min_size=n, max_size=n))  # repeats are allowed
    write = data.draw(st.permutations(range(rows)))[:n]
    tiles, fragmented = data.draw(st.sampled_from([1, 3, 16])), data.draw(st.integers(0, 1))
    numbers = " ".join(map(str, [n, *read, *write]))
    r = programs.json("remote", tiles, rows, width, fragmented, stdin=numbers)
    source = np.arange(rows * width, dtype=np.uint16).reshape(rows, width)
    np.testing.assert_array_equal(np.reshape(r["data"], (n, width)), source[read])
    sink = np.full((rows, width), 0x7CBD, np.uint16)  # rows never written are poisoned
    sink[write] = source[read]
    np.testing.assert_array_equal(np.reshape(r["sink"], (rows, width)), sink)


def test_large_remote_gather_is_split_over_threads(programs):
    rows, width = 3000, 1024
    rng = np.random.default_rng(3)
    read, write = rng.integers(0, rows, rows), rng.permutation(rows)
    numbers = " ".join(map(str, [rows, *read, *write]))
    one = programs.run("remote", 16, rows, width, 0, stdin=numbers, threads=1)
    assert one == programs.run("remote", 16, rows, width, 0, stdin=numbers, threads=4)


def test_guards_change_nothing_for_correct_vertices(programs):
    for name, args in (("vertices", (programs.codelets, 7)), ("stencil", (programs.codelets, 16, 61, 30))):
        guarded = programs.run(name, *args, SPARQ_EMULATOR_GUARD="1")
        assert guarded == programs.run(name, *args, SPARQ_EMULATOR_GUARD="0")


@pytest.mark.parametrize(
    ("index", "place"), [(4, "0 bytes after"), (5, "4 bytes after"), (-1, "4 bytes before")]
)
def test_guards_see_writes_outside_an_edge(programs, index, place):
    try:
        r = programs.json("guard", programs.codelets, index, SPARQ_EMULATOR_GUARD="1")
    except RuntimeError as e:
        assert "AddressSanitizer: use-after-poison" in str(e)
        return
    assert r["error"] == (
        "vertex test::WriteAt on tile 1 must not write outside the elements of field 'out', "
        f"got a write {place} them [write_outside]"
    )


def test_guards_see_a_byte_of_another_guard(programs):
    try:
        r = programs.json("guard", programs.codelets, 0, "copy", SPARQ_EMULATOR_GUARD="1")
    except RuntimeError as e:
        assert "AddressSanitizer: use-after-poison" in str(e)
        return
    assert r["error"] == (
        "vertex test::CopiesOneMore on tile 1 must not write outside the elements of field 'out', "
        "got a write 0 bytes after them [write_outside]"
    )


def test_guards_see_a_write_to_an_input(programs):
    for row in (0, 1):
        error = programs.json("guard", programs.codelets, row, "input", SPARQ_EMULATOR_GUARD="1")["error"]
        refused = "must not write to its Input 'in', got elements that have changed [write_outside]"
        assert error == f"vertex test::WriteInput on tile 1 {refused}"
    for guard in "01":  # controls: with nothing written there is nothing to see
        x = programs.json("guard", programs.codelets, -1, "input", SPARQ_EMULATOR_GUARD=guard)["x"]
        assert x == [0.0] * 12


def test_elements_of_an_output_that_are_not_written_are_poisoned(programs):
    want = [0.0] * 4 + [np.nan, np.nan, 1, np.nan] + [0.0] * 4
    for guard in "01":
        x = programs.json("guard", programs.codelets, 2, SPARQ_EMULATOR_GUARD=guard)["x"]
        np.testing.assert_array_equal(x, want)


def test_an_output_that_is_read_shows_and_an_inout_does_not(programs):
    # Without the check of workers, which refuses the second (test_workers.py).
    run = functools.partial(programs.json, "workers", programs.codelets, SPARQ_EMULATOR_CHECK_WORKERS="0")
    assert run("Adds", 0)["result"] == [11] * 6
    output = run("AddsToNothing", 0)["result"]
    np.testing.assert_array_equal(output, [np.nan] * 6)


PRINTED = """\
vector: [ 1.0000000  1.5000000 -2.0000000  2.5000000]
matrix: [
  [5.0000000 4.5000000]
  [4.0000000 3.5000000]
]
cube: [
  [
    [1.0000000 2.0000000]
  ]
  [
    [3.0000000 4.0000000]
  ]
]
scalar: 7.0000000
wide: [ 10.25000   2.00000 300.00000]
huge: [1.0000000e+09 2.0000000e+00]
tiny: [1.0000000e+00 9.9999999e-09]
odd: [      inf 1.0000000 0.0000000]
scientific: [ 1.50e+00 -2.00e+01]
unaligned: [1 22.5 9.99999994e-09]
other: {
  {1.0,2.0}
  {3.0,4.0}
}
split: [ 0.0  1.0  2.0  3.0  4.0
  5.0  6.0  7.0  8.0  9.0
 10.0 11.0]
not split: [ 0.0  1.0  2.0  3.0  4.0  5.0  6.0  7.0  8.0  9.0 10.0 11.0]
cut: [ 0.0  1.0 ... 10.0 11.0]
cut rows: [
  [ 0.0  1.0]
  ...
  [10.0 11.0]
]
not cut: [ 0.0  1.0  2.0  3.0  4.0  5.0  6.0  7.0  8.0  9.0 10.0 11.0]
whole: [  1 -20   3]
"""


def test_printed_tensors(programs):
    """As the vendor's tutorials show them, and by the rules that PopART's header gives for the format."""
    assert programs.run("printing") == PRINTED
