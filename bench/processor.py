# SPDX-License-Identifier: Apache-2.0
"""What rows of a bench say of the processor that they were measured on: its name, and its memory's pace."""

from __future__ import annotations

import functools
import platform
import time
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
#: read at a time: far beyond any cache of the processor
STREAM_BYTES = 1 << 28


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


def memory_rate(n_threads: int) -> float:
    """Bytes per second at which this machine reads memory: the best of ten tries. Weights and cache are too
    large for the processor to keep, so they can not be read faster."""
    from sparq_ipu import _cpu

    memory, seconds = _cpu.StreamSum(STREAM_BYTES, n_threads=n_threads), []
    for _ in range(10):
        start = time.perf_counter()
        memory.run(0, STREAM_BYTES)
        seconds.append(time.perf_counter() - start)
    return STREAM_BYTES / min(seconds)
