# SPDX-License-Identifier: Apache-2.0
"""Whether the machine was a bench's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from lib import quiet


def test_the_share_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 seconds of 2 processors 5 were busy, 4 of them ours."""
    busy, own = iter([(100.0, 200.0), (105.0, 208.0)]), iter([1.0, 5.0])
    monkeypatch.setattr(quiet, "_busy", lambda: next(busy))
    monkeypatch.setattr(quiet.time, "process_time", lambda: next(own))
    with quiet.others() as seen:
        assert seen.share_of_all() is None
    assert seen.share_of_all() == 1 / 8


def test_processes_that_are_not_others() -> None:
    """What a process works counts, unless it was named; one that has ended leaves nothing to say."""
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as works:
        mine, all_others = quiet.Others([works.pid]), quiet.Others()
        for seen in (mine, all_others):
            seen.look()
        quiet.time.sleep(0.5)
        for seen in (mine, all_others):
            seen.look()
        works.kill()
    less, more = (seen.samples[1][0] - seen.samples[0][0] for seen in (mine, all_others))
    assert more - less > 0.1  # seconds, of half a second and at least a processor
    mine.look()
    assert len(mine.samples) == 2


def test_a_system_that_says_nothing_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_busy", lambda: (_ for _ in ()).throw(FileNotFoundError))
    with quiet.others() as seen:
        pass
    assert seen.share_of_all() is None and quiet.noise(None, 0.0)


def test_what_is_quiet() -> None:
    assert quiet.noise(0.0, 0.0) is quiet.noise(quiet.QUIET_SHARE, quiet.PAUSED_SHARE) is None
    rule = "the machine must be quiet: other programs may take 0.05 of its processors, got "
    assert quiet.noise(0.125, 0.0) == f"{rule}0.12"
    assert quiet.noise(None, 0.0) == f"{rule}what this system does not say"
    said = quiet.noise(0.0, 0.125)
    assert said is not None and "its processors may stand still for 0.1 of the time, got 0.12; --rest" in said


class Memory:
    """Stands in for the sum over memory: the clock goes on by what each read takes."""

    def __init__(self, reads: list[float]):
        self.reads, self.n_reads, self.now, self.sizes = reads, 0, 50.0, set()

    def __call__(self, n_bytes: int, n_threads: int) -> Memory:
        assert n_threads == 3
        return self

    def run(self, offset: int, n_bytes: int) -> None:
        self.sizes.add(n_bytes)
        self.now += self.reads[self.n_reads % len(self.reads)]
        self.n_reads += 1


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(reads: list[float]) -> Memory:
        of = Memory(reads)
        monkeypatch.setattr("sparq_ipu._cpu.StreamSum", of)
        monkeypatch.setattr(quiet.time, "perf_counter", lambda: of.now)
        return of

    return made


def test_pauses(memory: Any) -> None:
    """20 ms in two reads of 1 ms that took 11. Reads a little longer are none, and short ones no measure."""
    of = memory([0.4e-3] * 10 + [1e-3] * 226 + [1.4e-3] * 160 + [11e-3] + [1e-3] * 9 + [11e-3])
    total = 4e-3 + 226e-3 + 224e-3 + 31e-3
    assert quiet.paused(3, seconds=total - 1e-6) == pytest.approx(20e-3 / total)
    assert of.n_reads == 407 and of.sizes == {quiet.SMALL_BYTES}
    assert quiet.paused(3, seconds=0.2) == 0.0 and of.n_reads < 700


def test_the_memory_is_read_as_fast_as_the_best_of_ten(memory: Any) -> None:
    of = memory([3.0, 4.0, 3.0, 5.0, 3.0, 3.0, 3.0, 2.0, 3.0, 3.0, 1.0])
    assert quiet.memory_rate(3) == quiet.STREAM_BYTES / 2 and of.sizes == {quiet.STREAM_BYTES}


def test_the_worst_of_two_paces() -> None:
    one, other = quiet.Pace(2.0, 0.5), quiet.Pace(3.0, 0.75)
    assert one.worst(other) == other.worst(one) == (2.0, 0.75)


@pytest.mark.parametrize("paces", [[(2.0, 0.5), (3.0, 0.75)], [(3.0, 0.75), (2.0, 0.5)]])
def test_the_machine_is_looked_at_before_and_after(
    paces: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, asked, left = [], [], iter(paces)

    class Others(quiet.Others):
        def __init__(self, of: Any):
            pids.append(of)
            super().__init__()

    busy = iter([(100.0, 200.0), (102.0, 208.0)])
    monkeypatch.setattr(quiet, "Others", Others)
    monkeypatch.setattr(quiet, "_busy", lambda: next(busy))
    monkeypatch.setattr(quiet.time, "process_time", lambda: 1.0)

    def pace(n_threads: int) -> quiet.Pace:
        asked.append(n_threads)
        return quiet.Pace(*next(left))

    monkeypatch.setattr(quiet, "pace", pace)
    with quiet.watched(3, [7]) as watch:
        assert watch.others is None and asked == [3]
    assert watch.others == 0.25 and watch.pace == (2.0, 0.75) and (pids, asked) == ([[7]], [3, 3])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not say it")
def test_the_most_memory_since_the_last_look() -> None:
    n_bytes = 1 << 26
    block = bytearray(b"x") * n_bytes
    with_it = quiet.peak_bytes(os.getpid())
    del block
    after = quiet.peak_bytes(os.getpid())
    quiet.forget_peak()
    without = quiet.peak_bytes(os.getpid())
    assert with_it is not None and after is not None and without is not None
    assert abs(with_it - after) < n_bytes / 16 and n_bytes / 2 < with_it - without
    assert quiet.peak_bytes(1 << 30) is None
