# SPDX-License-Identifier: Apache-2.0
"""How many bytes decoding moved, by the formulas of the kernels: counted, not measured."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from sparq_ipu import KVCache
from sparq_ipu.kernels import BASELINE, KERNELS, Settings, attention_over
from sparq_reference.settings import CacheSpec


@dataclasses.dataclass
class Traffic:
    """What the decode steps of one layer moved.

    Attributes:
        n_steps: decode steps.
        bytes_read: bytes of the KV cache, queries and outputs that they moved.
        bytes_dense: what dense attention would have moved.
    """

    n_steps: int = 0
    bytes_read: int = 0
    bytes_dense: int = 0

    def count(self, cache: KVCache, lengths: np.ndarray, is_dense: np.ndarray, settings: Settings) -> None:
        """Add one decode step.

        Args:
            cache: what attention reads.
            lengths: (batch,) positions of each row.
            is_dense: (batch,) bool: rows that attended densely; the others had `settings`.
        """
        for seq_len, dense in zip(lengths.tolist(), is_dense.tolist()):
            of_dense = _bytes(cache.spec, cache.memory, seq_len, None)
            self.bytes_dense += of_dense
            of_row = of_dense if dense else _bytes(cache.spec, cache.memory, seq_len, settings)
            self.bytes_read += of_row
        self.n_steps += 1


@functools.lru_cache(maxsize=256)  # the layers of a model, one after another, ask the same
def _bytes(spec: CacheSpec, memory: str, seq_len: int, settings: Settings) -> int:
    """Of one query of a batch element."""
    kernel = BASELINE if settings is None else KERNELS[attention_over(memory, settings).kernel]
    held = dataclasses.replace(spec, batch=1, capacity=seq_len)
    return held.n_kv_heads * kernel.transfer_bytes(held, settings)
