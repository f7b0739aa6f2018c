# SPDX-License-Identifier: Apache-2.0
"""Random numbers, the worker that draws them, and executables that another process runs."""

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


def test_a_damaged_executable_is_refused(saved, shell):
    saved("save", "whole.exe")
    whole = (saved.where / "whole.exe").read_bytes()
    for name, content, message in (
        ("short", whole[: len(whole) // 2], "it must be whole, got the end of the stream"),
        ("other", b"x" + whole[1:], "it must be one that this version of the emulator wrote"),
    ):
        (saved.where / name).write_bytes(content)
        with pytest.raises(AssertionError, match=message):
            saved("run", name)
