# SPDX-License-Identifier: Apache-2.0
"""Workers of one MultiVertex that see one another are refused, or found in other orders; those that keep
apart compute as ever."""

from __future__ import annotations

import numpy as np
import pytest

ON, OFF = {"SPARQ_EMULATOR_CHECK_WORKERS": "1"}, {"SPARQ_EMULATOR_CHECK_WORKERS": "0"}
SEEDS = [str(seed) for seed in (*range(11), 2**64 - 1)]
WHERE = "vertex test::{} on tile 1 of compute set 'cs': "

#: vertex: a step that makes its workers see one another, and what the error says
RACES = {
    # one half each: two to a word
    ("Shares", -1): "workers 0 and 1 must not write to one 32-bit word, got element 0 of field 'out' and "
    "element 1 of field 'out'",
    # three halves each
    ("Shares", 1): "workers 0 and 1 must not write to one 32-bit word, got element 2 of field 'out' and "
    "element 3 of field 'out'",
    # alone, worker 1 finds nothing larger than what the last run left
    ("Maxima", 1): "worker 1 must come to the same whether others have run or not, got 10 after worker 0 "
    "and -1000 without, in element 1 of field 'maxima'",
    ("Doubles", 1): "worker 4 must come to the same whether others have run or not, got 20 after worker 5 "
    "and 10 without, in element 4 of field 'seen'",
    ("Doubles", 5): "worker 0 must come to the same whether others have run or not, got 20 after worker 5 "
    "and 10 without, in element 0 of field 'seen'",
    # the value that was there already
    ("Stores", 2): "workers 0 and 4 must not write to one 32-bit word, got element 0 of field 'data' and "
    "element 0 of field 'data'",
    ("Agrees", 1): "worker 4 must come to the same whether others have run or not, got another return value "
    "of compute() after worker 5",
    ("AddsToNothing", 0): "worker 0 must not use what an Output held before it ran, got element 0 of field "
    "'sums' made from it",
    ("Counts", 1): "workers 0 and 1 must not write to one 32-bit word, got element 0 of state 'calls' and "
    "element 0 of state 'calls'",
}

#: vertex without a race: what it leaves
RIGHT = {
    "Shares": np.repeat(np.arange(6), 2).astype(np.float16).view(np.uint16).tolist(),
    "Maxima": [10] * 6,
    "Doubles": [20] * 6,
    "Stores": [10] * 6,
    "Agrees": [1] * 6,
    "Adds": [11] * 6,
    "Counts": [0, 1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("vertex, step", RACES)
def test_workers_that_see_one_another_are_refused(programs, vertex, step):
    error = programs.json("workers", programs.codelets, vertex, step, **ON)["error"]
    assert error.startswith(WHERE.format(vertex) + RACES[vertex, step])
    assert error.endswith(" [workers_disagree]")


@pytest.mark.parametrize("vertex, step", RACES)
def test_without_the_check_they_run_one_after_another(programs, vertex, step):
    assert "result" in programs.json("workers", programs.codelets, vertex, step, **OFF)


@pytest.mark.parametrize("vertex", RIGHT)
def test_workers_that_keep_apart_compute_the_same_with_the_check(programs, vertex):
    checked = programs.json("workers", programs.codelets, vertex, 0, **ON)
    assert checked == {"result": RIGHT[vertex], "all": 1}
    assert checked == programs.json("workers", programs.codelets, vertex, 0, **OFF)


def results_by_seed(programs, vertex: str, step: int, **variables) -> list[tuple]:
    run = programs.json
    order = "SPARQ_EMULATOR_WORKER_ORDER"
    made = (run("workers", programs.codelets, vertex, step, **OFF, **variables, **{order: s}) for s in SEEDS)
    return [(*one["result"], one["all"]) for one in made]


@pytest.mark.parametrize("vertex, step", [("Doubles", 1), ("Doubles", 5), ("Maxima", 1)])
def test_a_result_that_depends_on_the_order_differs_between_seeds(programs, vertex, step):
    results = results_by_seed(programs, vertex, step)
    assert len(set(results)) > 1
    assert results == results_by_seed(programs, vertex, step, SPARQ_EMULATOR_THREADS="3")


def test_every_worker_runs_once_in_many_orders(programs):
    """A worker finds its neighbour's element doubled, 20, where that ran before it: from 0 to 5 none but the
    last does."""
    seen = programs.json("workers", programs.codelets, "Doubles", 1, **OFF)["result"]
    assert seen == [10, 10, 10, 10, 10, 20]
    results = results_by_seed(programs, "Doubles", 1)
    assert len(set(results)) >= 5
    assert all({10, 20} == set(result[:-1]) for result in results)  # a first worker, and a last
    assert all({result[worker] for result in results} == {10, 20} for worker in range(6))


def test_each_vertex_and_each_run_has_an_order_of_its_own(programs):
    def is_after_its_neighbour(runs: int, others: int) -> tuple[bool, ...]:
        order = {"SPARQ_EMULATOR_WORKER_ORDER": "3"}
        args = ("workers", programs.codelets, "Doubles", 1, runs, others)
        return tuple(element == 10 * 2**runs for element in programs.json(*args, **OFF, **order)["result"])

    assert len({is_after_its_neighbour(runs, 0) for runs in range(1, 7)}) >= 4
    assert len({is_after_its_neighbour(1, others) for others in range(6)}) >= 4


@pytest.mark.parametrize("vertex", RIGHT)
def test_workers_that_keep_apart_compute_the_same_in_any_order(programs, vertex):
    assert set(results_by_seed(programs, vertex, 0)) == {(*RIGHT[vertex], 1)}


@pytest.mark.parametrize("vertex, step", RACES)
def test_the_check_refuses_races_in_any_order(programs, vertex, step):
    run = programs.json("workers", programs.codelets, vertex, step, **ON, SPARQ_EMULATOR_WORKER_ORDER="7")
    assert run["error"].startswith(WHERE.format(vertex) + "worker")


@pytest.mark.parametrize("seed", ["-1", "x", "1x", " 1", "18446744073709551616"])
def test_a_seed_is_a_number(programs, seed):
    with pytest.raises(RuntimeError, match=f"WORKER_ORDER must be a number below 2\\^64, got '{seed}'"):
        programs.run("workers", programs.codelets, "Adds", 0, SPARQ_EMULATOR_WORKER_ORDER=seed)


@pytest.mark.parametrize("check", ["CHECK_WORKERS", "CHECK_ALIGNMENT", "GUARD", "REPORT_READS"])
def test_a_check_is_on_or_off(programs, check):
    with pytest.raises(
        RuntimeError, match=rf"SPARQ_EMULATOR_{check} must be 0 or 1, got 'maybe' \[bad_environment\]"
    ):
        programs.run("workers", programs.codelets, "Adds", 0, **{f"SPARQ_EMULATOR_{check}": "maybe"})


def test_other_programs_compute_the_same_with_the_check(programs):
    for name, args in (("vertices", (programs.codelets, 7)), ("control", (programs.codelets,))):
        checked = programs.run(name, *args, **ON)
        assert checked == programs.run(name, *args, **OFF)
        assert checked == programs.run(name, *args, **OFF, SPARQ_EMULATOR_WORKER_ORDER="5")
