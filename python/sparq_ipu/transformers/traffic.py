# SPDX-License-Identifier: Apache-2.0
"""How many bytes decoding moved, by the formulas of the kernels: counted, not measured."""

from __future__ import annotations

import dataclasses

import numpy as np

from sparq_ipu.kernels import BASELINE, DEFAULT
from sparq_reference.numerics import BLOCK
from sparq_reference.settings import CacheSpec, SparqSettings

#: bytes of a float16 element
_BYTES = 2
#: bytes that a block of the key index has beside its codes, for each component: low and step, float16
_BYTES_BESIDE_CODES = 2 * _BYTES


def sparq_bytes(seq_len: int, spec: CacheSpec, settings: SparqSettings) -> int:
    """Bytes that one query moves for one KV head: the elements of the paper's formula, float16, but those of
    full blocks in the key index as this stores them."""
    elements = DEFAULT.transfer_elements(seq_len, spec.head_dim, settings)
    if spec.index_bits == 16:
        return _BYTES * elements
    n_blocks = seq_len // BLOCK
    of_block = BLOCK * spec.index_bits // 8 + _BYTES_BESIDE_CODES
    in_blocks = settings.rank * n_blocks
    return _BYTES * (elements - in_blocks * BLOCK) + in_blocks * of_block


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

    def count(
        self, spec: CacheSpec, lengths: np.ndarray, is_dense: np.ndarray, settings: SparqSettings | None
    ) -> None:
        """Add one decode step.

        Args:
            lengths: (batch,) positions of each row.
            is_dense: (batch,) bool: rows that attended densely; the others had `settings`.
        """
        for seq_len, dense in zip(lengths.tolist(), is_dense.tolist()):
            full = BASELINE.transfer_elements(seq_len, spec.head_dim, None)
            part = _BYTES * full if dense or settings is None else sparq_bytes(seq_len, spec, settings)
            self.bytes_dense += _BYTES * spec.n_kv_heads * full
            self.bytes_read += spec.n_kv_heads * part
        self.n_steps += 1
