# SPDX-License-Identifier: Apache-2.0
"""How many bytes decoding moved, by the formulas of the kernels: counted, not measured."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Sequence

from sparq_ipu import KVCache
from sparq_ipu.kernels import BASELINE, KERNELS, Settings, attention_over
from sparq_reference.settings import CacheSpec

#: steps that are kept before they are summed: a sum takes longer than the rest of a step of a small model
_MOST_STEPS = 256


class Traffic:
    """The bytes that the decode steps of one layer moved.

    Attributes:
        n_steps: decode steps.
    """

    def __init__(self) -> None:
        self.n_steps = 0
        self._bytes_read = self._bytes_dense = 0
        #: steps not yet summed: cache, lengths of the rows, and which are dense
        self._steps: list[tuple[CacheSpec, str, Sequence[int], Sequence[bool], Settings]] = []

    @property
    def bytes_read(self) -> int:
        """Bytes of the KV cache, queries and outputs that they moved."""
        self._sum()
        return self._bytes_read

    @property
    def bytes_dense(self) -> int:
        """Bytes that dense attention would have moved."""
        self._sum()
        return self._bytes_dense

    def count(
        self,
        cache: KVCache,
        lengths: Sequence[int],
        is_dense: Sequence[bool],
        settings: Settings,
        window: int | None = None,
    ) -> None:
        """Add one decode step.

        Args:
            cache: what attention reads.
            lengths: positions of each row.
            is_dense: rows that attended densely; the others had `settings`.
            window: most recent positions that the layer sees; None: all.
        """
        if window is not None:
            lengths = [min(length, window) for length in lengths]
        self.n_steps += 1
        self._steps.append((cache.spec, cache.memory, lengths, is_dense, settings))
        if len(self._steps) == _MOST_STEPS:
            self._sum()

    def _sum(self) -> None:
        before: tuple[int, str, int] | None = None
        for spec, memory, lengths, is_dense, settings in self._steps:
            now = id(spec), memory, id(settings)  # the same, mostly: quicker than to look them up
            if now != before:
                dense_bytes, own_bytes = _bytes(spec, memory, None), _bytes(spec, memory, settings)
                before = now
            for seq_len, dense in zip(lengths, is_dense):
                of_dense = dense_bytes(int(seq_len))
                self._bytes_dense += of_dense
                self._bytes_read += of_dense if dense else own_bytes(int(seq_len))
        self._steps.clear()


@functools.lru_cache(maxsize=64)
def _bytes(spec: CacheSpec, memory: str, settings: Settings) -> Callable[[int], int]:
    """Bytes of one query of a batch element, by its length."""
    kernel = BASELINE if settings is None else KERNELS[attention_over(memory, settings).kernel]

    # The layers of a model, one after another, ask the same.
    @functools.lru_cache(maxsize=4 * _MOST_STEPS)
    def of_length(seq_len: int) -> int:
        held = dataclasses.replace(spec, batch=1, capacity=seq_len)
        return held.n_kv_heads * kernel.transfer_bytes(held, settings)

    return of_length
