# SPDX-License-Identifier: Apache-2.0
"""GFLOP/s of calls that are timed by turns, on one processor."""

from __future__ import annotations

import statistics
import time
from typing import Any, Mapping

import torch

from .origin import origin


def rows_of(
    calls: Mapping[str, tuple[float, Any]], repeats: int, command: str, **shape: int
) -> list[dict[str, Any]]:
    """A row for each call, with the median, the least and the most of its rates.

    Args:
        calls: by name, operations and what is called.
        repeats: timed calls of each, after one that is not timed.
        command: the command line of the bench.
        shape: columns that all rows share.
    """
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, (operations, call) in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                rates[name].append(operations / (time.perf_counter() - start) / 1e9)
    return [
        dict(
            method=name,
            **shape,
            n_threads=torch.get_num_threads(),
            gflop_per_s=statistics.median(found),
            least=min(found),
            most=max(found),
            repeats=repeats,
            **origin(command),
            torch=torch.__version__,
        )
        for name, found in rates.items()
    ]
