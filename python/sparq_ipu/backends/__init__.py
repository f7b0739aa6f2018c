# SPDX-License-Identifier: Apache-2.0
"""One module for each way to run: `reference` (NumPy), `cpu` (SIMD kernels), `ipu` (the Poplar program, on an
IPU or emulated).

A backend module defines

* `unavailable(device) -> str | None`: why `device` can not run here, None if it can;
* `create(device, batch, n_kv_heads, head_dim, capacity, **options) -> Backend`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Backend(Protocol):
    """What `sparq_ipu.KVCache` asks of a backend. Arguments arrive checked; shapes as there."""

    lengths: np.ndarray

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        """Append the first lengths[b] tokens of key, value (batch, n_kv_heads, n_tokens, head_dim)."""

    def dense_attention(self, query: np.ndarray) -> np.ndarray:
        """Dense decode attention, (batch, n_heads, head_dim) float16 in and out."""

    def sparq_attention(
        self, query: np.ndarray, rank: int, top_k: int, n_local: int, mean_value: bool
    ) -> np.ndarray:
        """SparQ decode attention, (batch, n_heads, head_dim) float16 in and out."""

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of positions [start, stop), 0 <= start <= stop <= the longest length; 0 at
        or beyond an element's length."""

    def reset(self) -> None:
        """Forget every position."""

    def reorder(self, index: np.ndarray) -> None:
        """Batch element b becomes a copy of what element index[b] was (beam search)."""
