# SPDX-License-Identifier: Apache-2.0
"""The worker that runs a vertex: its random numbers, also of a saved executable, and its cycle counter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent / "toolkit"
WORKERS, EACH, TILE = 6, 8, 3
BITS64 = (1 << 64) - 1
#: what an IPU draws with seeds 0, 1, 2, 3, as its program printed it: rounded to 24 bits
FROM_AN_IPU = [2, 565199488, 2983870976, 4120557568, 4019486464, 2226499840, 24085840, 1805839488]


class Worker:
    """xoroshiro128aox, of which a device takes every other number."""

    def __init__(self, seeds: list[int]) -> None:
        self.state = [seeds[0] | seeds[1] << 32, seeds[2] | seeds[3] << 32]

    def draw(self) -> int:
        first = self.next()
        self.next()
        return first & 0xFFFFFFFF

    def next(self) -> int:
        a, b = self.state
        self.state = [rotated(a, 55) ^ a ^ b ^ ((a ^ b) << 14 & BITS64), rotated(a ^ b, 36)]
        return a ^ b ^ (rotated(a & b, 1) | rotated(a & b, 2))

    def seeds(self) -> list[int]:
        return [half for word in self.state for half in (word & 0xFFFFFFFF, word >> 32)]


def rotated(x: int, by: int) -> int:
    return (x << by | x >> (64 - by)) & BITS64


@pytest.fixture(scope="module")
def saved(shell, tmp_path_factory):
    """Runs the program with its arguments; gives its lines by their names."""
    where = tmp_path_factory.mktemp("saved")
    # the last two are libraries of the SDK that are not here: no program that names them needs them
    build = f"g++ -std=c++11 -Wall -Wextra -Werror {HERE}/saved.cpp -lpoplar -lpopops -lpoputil -o saved"
    shell(build, where)

    def run(*arguments: str, **variables: str):
        command = " ".join(["./saved", *arguments])
        return shell(command, where, **{"SPARQ_EMULATOR_IPUS": "1", **variables})

    run.where = where
    return run


@pytest.fixture(scope="module")
def lines(saved) -> list[list[str]]:
    return [line.split() for line in saved().stdout.splitlines()]


def values(lines: list[list[str]], name: str) -> list[int]:
    return next(list(map(int, line[1:])) for line in lines if line[0] == name)


def test_numbers_are_an_ipus(lines):
    workers = [Worker([w + i for i in range(4)]) for w in range(WORKERS)]
    drawn = np.reshape(values(lines, "drawn"), (WORKERS, EACH))
    assert drawn.tolist() == [[worker.draw() for _ in range(EACH)] for worker in workers]
    assert drawn[0].astype(np.float32).tolist() == FROM_AN_IPU
    fractions = np.array(values(lines, "fraction"), np.uint32).view(np.float32)
    np.testing.assert_array_equal(fractions, np.float32([w.draw() / 2**32 - 0.5 for w in workers]))
    assert values(lines, "tile") == [TILE] * WORKERS
    assert values(lines, "worker") == list(range(WORKERS))
    assert values(lines, "after") == [seed for worker in workers for seed in worker.seeds()]
    # vertices of one worker each: in turn
    assert values(lines, "taker") == [0, 1, 2, 3, 4, 5, 0, 1]
    assert values(lines, "taken") == [workers[w].draw() for w in values(lines, "taker")]


def test_a_saved_executable_gives_what_it_gave(saved, lines):
    saved("save", "program.exe")
    loaded = saved("run", "program.exe", SPARQ_EMULATOR_THREADS="3")
    assert [line.split() for line in loaded.stdout.splitlines()] == lines
    assert [line[1:] for line in lines if line[0] == "sum"] == [["115", "7"], ["100", "7"]]
    assert "sum: [115   7]" in loaded.stderr or "sum: [115 7]" in loaded.stderr


@pytest.mark.parametrize("check", ["SPARQ_EMULATOR_CHECK_WORKERS", "SPARQ_EMULATOR_GUARD"])
def test_checks_change_no_number_and_are_saved(saved, lines, check):
    saved("save", f"{check}.exe", **{check: "1"})
    assert [line.split() for line in saved("run", f"{check}.exe").stdout.splitlines()] == lines


@pytest.mark.slow
def test_the_cycle_counter_counts_the_host_where_it_is_asked_to(shell, tmp_path):
    """The cycles of a vertex are not modelled. So without that it is an error, not a number."""
    shell(f"g++ -std=c++11 -Wall -Wextra -Werror {HERE}/cycle_counter.cpp -lpoplar -o timed", tmp_path)
    # Another number in each run, which the check of workers would take for a race.
    host = {"SPARQ_EMULATOR_CYCLE_COUNTER": "host", "SPARQ_EMULATOR_CHECK_WORKERS": "0"}
    counted = {}
    for n in (1000, 10_000_000):
        result = shell(f"./timed {n}", tmp_path, **host)
        low, high, total = map(float, result.stdout.split())
        assert high in (0, 1) and total == pytest.approx(2.07667, abs=2e-3)  # (1 + pi coth(pi)) / 2
        assert result.stderr.count("counts the time of this host, which says nothing of an IPU") == 1
        counted[n] = low
    assert 1e6 < counted[10_000_000] < 2**32 - 1 and counted[10_000_000] > 20 * counted[1000] > 0
    with pytest.raises(
        AssertionError,
        match=r"__builtin_ipu_get_scount: not implemented in the emulator.*\[no_cycle_counter\]",
    ):
        shell("./timed 1000", tmp_path)
    with pytest.raises(AssertionError, match="SPARQ_EMULATOR_CYCLE_COUNTER must be host, got 'model'"):
        shell("./timed 1000", tmp_path, SPARQ_EMULATOR_CYCLE_COUNTER="model")
