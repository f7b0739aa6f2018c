# SPDX-License-Identifier: Apache-2.0
"""The name of the processor in rows of a bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import processor

TWO = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC

processor\t: 1
cpu family\t: 6
model\t\t: 143
model name\t: other
"""


@pytest.mark.parametrize(
    "text, expected",
    [
        (TWO, "AMD EPYC, family 25 model 17"),
        ("model name\t: Cortex: A\n", "Cortex: A"),
        ("nothing\n", "as the system says"),
        (None, "as the system says"),
    ],
)
def test_name_family_and_model(
    text: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first processor; what is not said is left out."""
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", file)
    monkeypatch.setattr(processor.platform, "processor", lambda: "as the system says")
    processor.processor.cache_clear()
    try:
        assert processor.processor() == expected
    finally:
        processor.processor.cache_clear()


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
        monkeypatch.setattr(processor.time, "perf_counter", lambda: of.now)
        return of

    return made


def test_pauses(memory: Any) -> None:
    """Of 0.5 s, 20 ms in two reads of 1 ms that took 11; reads that take a little longer are none."""
    of = memory([1e-3] * 236 + [1.4e-3] * 160 + [11e-3] + [1e-3] * 9 + [11e-3])
    total = 236e-3 + 224e-3 + 31e-3
    assert processor.paused(3, seconds=total - 1e-6) == pytest.approx(20e-3 / total)
    assert of.n_reads == 407 and of.sizes == {processor.SMALL_BYTES}
    assert processor.paused(3, seconds=0.2) == 0.0 and of.n_reads < 700


def test_the_memory_is_read_as_fast_as_the_best_of_ten(memory: Any) -> None:
    of = memory([3.0, 4.0, 3.0, 5.0, 3.0, 3.0, 3.0, 2.0, 3.0, 3.0, 1.0])
    assert processor.memory_rate(3) == processor.STREAM_BYTES / 2 and of.sizes == {processor.STREAM_BYTES}


def test_the_worst_of_two_paces() -> None:
    one, other = processor.Pace(2.0, 0.5), processor.Pace(3.0, 0.75)
    assert one.worst(other) == other.worst(one) == (2.0, 0.75)


def test_the_pace_of_this_machine() -> None:
    pytest.importorskip("sparq_ipu._cpu")
    memory_bytes_per_second, paused = processor.pace(2)
    assert 1e8 < memory_bytes_per_second < 1e13 and 0 <= paused < 1
