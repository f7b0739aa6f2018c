# SPDX-License-Identifier: Apache-2.0
"""Whether the machine was a bench's own: what others had of its processors, how long these stood still, and
how fast its memory is read."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

#: share of the processors that other programs may take while something is timed
QUIET_SHARE = 0.05
#: share of the time in which the processors may stand still meanwhile
PAUSED_SHARE = 0.1
#: read at a time: far beyond any cache of the processor
STREAM_BYTES = 1 << 28
#: stays in any cache; reading it takes microseconds
SMALL_BYTES = 1 << 17
#: a pause is at least as long; what the system does between two reads is shorter
PAUSE_SECONDS = 5e-4


def _busy() -> tuple[float, float]:
    """Seconds that all processors worked, and seconds that there were."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[:8]]  # guests are in "user"
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, iowait


class Others:
    """What other programs had of the processors, or other machines (steal): all but this one and `pids`.

    A load average would say what was a minute ago.
    """

    def __init__(self, pids: Sequence[int] = ()):
        self._pids = pids
        #: seconds that others worked by each look, and seconds that there were
        self.samples: list[tuple[float, float]] = []

    def look(self) -> None:
        """Take a sample."""
        try:
            busy, total = _busy()
            own = time.process_time()
            for pid in self._pids:
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                own += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):  # a system without that, or a process that has ended
            return
        self.samples.append((busy - own, total))

    def share_of_all(self) -> float | None:
        """Their share from the first look to the last."""
        if len(self.samples) < 2:
            return None
        (first, before), (last, now) = self.samples[0], self.samples[-1]
        return max(last - first, 0.0) / max(now - before, 1e-9)


def forget_peak() -> None:
    """What this process has from now on is what counts as the most that it had."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int | None:
    """The most memory that a process has had at once; None where the system is silent."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


@contextlib.contextmanager
def others(pids: Sequence[int] = ()) -> Iterator[Others]:
    """Two looks: `share_of_all` is what others had meanwhile."""
    seen = Others(pids)
    seen.look()
    yield seen
    seen.look()


def noise(others: float | None, paused: float) -> str | None:
    """Why what was timed is refused, or None.

    Args:
        others: share of the processors that other programs had; None where the system is silent.
        paused: share of the time in which the processors stood still.
    """
    if others is None or others > QUIET_SHARE:
        got = "what this system does not say" if others is None else f"{others:.2f}"
        return (
            f"the machine must be quiet: other programs may take {QUIET_SHARE} of its processors, got {got}"
        )
    if paused > PAUSED_SHARE:
        rule = f"the machine must be its own: its processors may stand still for {PAUSED_SHARE} of the time"
        return f"{rule}, got {paused:.2f}; --rest SECONDS helps where long work is slowed"
    return None


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


class Watch:
    """What the machine was like while something was timed; it says so when that is over."""

    def __init__(self, pace: Pace):
        #: share of the processors that other programs had; None where the system is silent
        self.others: float | None = None
        #: the worst of before and after
        self.pace = pace


@contextlib.contextmanager
def watched(n_threads: int, pids: Sequence[int] = ()) -> Iterator[Watch]:
    """Watch the machine. `pids`: of processes that are not others."""
    watch = Watch(pace(n_threads))
    with others(pids) as seen:
        yield watch
    watch.others, watch.pace = seen.share_of_all(), watch.pace.worst(pace(n_threads))


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
