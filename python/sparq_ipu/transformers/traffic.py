# SPDX-License-Identifier: Apache-2.0
"""How many bytes decoding moved, by the formulas of the kernels: counted, not measured."""

from __future__ import annotations

import dataclasses

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
        bits, head_dim = spec.index_bits, spec.head_dim
        for seq_len, dense in zip(lengths.tolist(), is_dense.tolist()):
            full = BASELINE.transfer_bytes(seq_len, head_dim, None)
            part = full if dense else _bytes(seq_len, head_dim, settings, bits)
            self.bytes_dense += spec.n_kv_heads * full
            self.bytes_read += spec.n_kv_heads * part
        self.n_steps += 1


def _bytes(seq_len: int, head_dim: int, settings: Settings, bits: int) -> int:
    """Of one query and KV head."""
    if isinstance(settings, WindowSettings):
        return ELEMENT_BYTES * window_elements(seq_len, head_dim, settings)
    return DEFAULT.transfer_bytes(seq_len, head_dim, settings, bits)
