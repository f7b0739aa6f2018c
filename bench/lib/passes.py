# SPDX-License-Identifier: Apache-2.0
"""Attention calls that are timed one by one, each with as many rows hot as its row of results says."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import time
from typing import Any

import numpy as np

from sparq_ipu.kernels import Attention, Kernel

from .common import Workload, device_options

_core: Any = importlib.import_module("sparq_ipu._core")


def of_rate(workload: Workload, rate: float) -> Any:
    """Settings that select this share of the rows that the workload's do: its best ones.

    Raises:
        ValueError: the share is less than what is always selected.
    """
    settings = workload.settings
    assert settings is not None
    top_k = round(rate * min(settings.top_k, workload.seq_len))
    least = max(1, settings.n_local)
    if top_k < least:
        rule = f"be 0 or at least {least} of top_k={settings.top_k} rows"
        raise ValueError(f"ipu_sparq: hit_rate must {rule}, got {rate:g}")
    return dataclasses.replace(settings, top_k=top_k)


class Passes:
    """A session, and calls of it from the same state: of a cache in three tiers no row is hot before a call,
    or exactly the share --hit-rate of those that it selects: another program of the session, with a smaller
    top_k and so of the best of these rows, makes them hot. Of other kernels a call changes nothing."""

    def __init__(self, kernel: Kernel, workload: Workload, a: argparse.Namespace, device: str) -> None:
        self.device, self._tiered = device, kernel.memory == "tiered"
        programs = [Attention(kernel.name, workload.settings)]
        if self._tiered and a.hit_rate:
            programs.append(Attention(kernel.name, of_rate(workload, a.hit_rate)))
        self._warms = len(programs) == 2
        self._n_selected = 0
        if workload.settings is not None:
            heads = workload.spec.batch * workload.spec.n_kv_heads
            self._n_selected = heads * min(workload.settings.top_k, workload.seq_len)
        self.session = _core.Session(
            workload.spec,
            workload.n_heads,
            attention=programs,
            options=device_options(a, kernel),
            append=False,
            device=device,
            timed=device == "ipu",
        )

    def _prepare(self, query: np.ndarray) -> None:
        if self._tiered:
            self.session.forget_hot()
        if self._warms:
            self.session.attention(1, query)

    def run(self, query: np.ndarray) -> np.ndarray:
        """One call, from that state."""
        self._prepare(query)
        output: np.ndarray = self.session.attention(0, query)
        return output

    def hit_rate(self) -> float | None:
        """Of the rows that the last call selected, the share that was hot; None where none can be."""
        return 1 - sum(self.session.misses()) / self._n_selected if self._tiered else None

    def timed(
        self, query: np.ndarray, output: np.ndarray, warmup: int, reps: int
    ) -> tuple[list[float], float]:
        """Seconds of so many calls, as the device counts its cycles; and the median of what the host waited
        for one, with what it takes to launch it.

        Raises:
            RuntimeError: a call gives another output than this one.
        """
        seconds, waited = [], []
        for i in range(warmup + reps):
            self._prepare(query)
            start = time.perf_counter()
            again = self.session.attention(0, query)
            if i >= warmup:
                waited.append(time.perf_counter() - start)
                seconds.append(self.session.cycles() / self.session.clock_hz)
            if again.tobytes() != output.tobytes():
                raise RuntimeError(f"call {i + 1} gave another result than the first")
        return seconds, float(np.median(waited))
