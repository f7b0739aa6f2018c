# SPDX-License-Identifier: Apache-2.0
"""How many bytes decoding moved, by the formulas of the kernels: counted, not measured."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from sparq_ipu.kernels import BASELINE, DEFAULT, Settings, window_elements
from sparq_reference.settings import CacheSpec, WindowSettings
from sparq_reference.transfers import ELEMENT_BYTES


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

    def count(self, spec: CacheSpec, lengths: np.ndarray, is_dense: np.ndarray, settings: Settings) -> None:
        """Add one decode step.

        Args:
            lengths: (batch,) positions of each row.
            is_dense: (batch,) bool: rows that attended densely; the others had `settings`.
        """
        for seq_len, dense in zip(lengths.tolist(), is_dense.tolist()):
            of_settings = None if dense else settings
            self.bytes_dense += spec.n_kv_heads * _bytes(seq_len, spec.head_dim, None, spec.index_bits)
            self.bytes_read += spec.n_kv_heads * _bytes(seq_len, spec.head_dim, of_settings, spec.index_bits)
        self.n_steps += 1


@functools.lru_cache(maxsize=256)  # the layers of a model, one after another, ask the same
def _bytes(seq_len: int, head_dim: int, settings: Settings, bits: int) -> int:
    """Of one query and KV head."""
    if settings is None:
        return BASELINE.transfer_bytes(seq_len, head_dim, None)
    if isinstance(settings, WindowSettings):
        return ELEMENT_BYTES * window_elements(seq_len, head_dim, settings)
    return DEFAULT.transfer_bytes(seq_len, head_dim, settings, bits)
