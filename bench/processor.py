# SPDX-License-Identifier: Apache-2.0
"""What rows of a bench say of the processor that they were measured on: its name, its memory's pace, and how
long it stood still."""

from __future__ import annotations

import functools
import platform
import statistics
import time
from pathlib import Path
from typing import NamedTuple

CPUINFO = Path("/proc/cpuinfo")
#: read at a time: far beyond any cache of the processor
STREAM_BYTES = 1 << 28
#: stays in any cache; reading it takes microseconds
SMALL_BYTES = 1 << 17
#: a pause is at least as long; what the system does between two reads is shorter
PAUSE_SECONDS = 5e-4


@functools.lru_cache(maxsize=None)
def processor() -> str:
    """Its name, with family and model where the system says them: a virtual machine may call several alike.

    AMD's family 25, model 17 is a Zen 4, family 26 a Zen 5.
    """
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        said.setdefault(key.strip(), value.strip())  # of the first processor
    name = said.get("model name")
    if not name:
        return platform.processor() or platform.machine()
    which = [
        f"{word} {said[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in said
    ]
    return f"{name}, {' '.join(which)}" if which else name


class Pace(NamedTuple):
    """Of a machine that others may share."""

    #: bytes per second at which its memory is read
    memory_bytes_per_second: float
    #: share of the time in which its processors stood still
    paused: float

    def worst(self, other: Pace) -> Pace:
        """Of two moments."""
        slower = min(self.memory_bytes_per_second, other.memory_bytes_per_second)
        return Pace(slower, max(self.paused, other.paused))


def pace(n_threads: int) -> Pace:
    """Of this moment; takes some two seconds."""
    return Pace(memory_rate(n_threads), paused(n_threads))


def memory_rate(n_threads: int) -> float:
    """Bytes per second at which this machine reads memory: the best of ten tries. Weights and cache are too
    large for the processor to keep, so they can not be read faster."""
    return STREAM_BYTES / min(_seconds(n_threads, STREAM_BYTES, n_reads=10))


def paused(n_threads: int, seconds: float = 1.0) -> float:
    """Share of that time in which all of the processors or one of them stood still.

    A host takes them from a virtual machine for some milliseconds again and again, to lend them to others or
    to hold the machine to a budget. Not every system counts this as stolen time, and memory keeps its pace
    between the pauses. So a short read is repeated: some of them take much longer than the others.
    """
    reads = _seconds(n_threads, SMALL_BYTES, for_seconds=seconds)
    usual = statistics.median(reads)
    return sum(read - usual for read in reads if read > usual + PAUSE_SECONDS) / sum(reads)


def _seconds(n_threads: int, n_bytes: int, n_reads: int = 1, for_seconds: float = 0.0) -> list[float]:
    """Of reads of so many bytes, one after another: at least so many, and for at least so long."""
    from sparq_ipu import _cpu

    memory, reads = _cpu.StreamSum(n_bytes, n_threads=n_threads), []
    begin = last = time.perf_counter()
    while len(reads) < n_reads or last < begin + for_seconds:
        memory.run(0, n_bytes)
        now = time.perf_counter()
        reads.append(now - last)
        last = now
    return reads
