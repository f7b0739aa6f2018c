# SPDX-License-Identifier: Apache-2.0
"""The NumPy reference as a backend: slow, and right by definition."""

from __future__ import annotations

import numpy as np

from sparq_reference import KVCache


def unavailable(device: str) -> str | None:
    """Always available."""
    return None


def create(device: str, batch: int, n_kv_heads: int, head_dim: int, capacity: int) -> ReferenceBackend:
    """A reference cache; see `sparq_ipu.backends.Backend`."""
    return ReferenceBackend(batch, n_kv_heads, head_dim, capacity)


class ReferenceBackend:
    """`sparq_reference.KVCache` behind the backend protocol.

    `sparq_ipu.KVCache` looks for NaN and infinity, or not, as its `check_finite` says: not again here.
    """

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int, capacity: int):
        self._cache = KVCache(batch, n_kv_heads, head_dim, capacity)

    @property
    def lengths(self) -> np.ndarray:
        return self._cache.lengths

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        self._cache.append(key, value, lengths, check_finite=False)

    def dense_attention(self, query: np.ndarray) -> np.ndarray:
        return self._cache.dense_attention(query, check_finite=False)

    def sparq_attention(
        self, query: np.ndarray, rank: int, top_k: int, n_local: int, mean_value: bool
    ) -> np.ndarray:
        return self._cache.sparq_attention(
            query, rank=rank, top_k=top_k, n_local=n_local, mean_value=mean_value, check_finite=False
        )

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        held = (np.arange(start, stop) < self._cache.lengths[:, None])[:, None, :, None]
        zero = np.float16(0)
        key, value = self._cache.key[:, :, start:stop], self._cache.value[:, :, start:stop]
        return np.where(held, key, zero), np.where(held, value, zero)

    def reset(self) -> None:
        self._cache.reset()

    def reorder(self, index: np.ndarray) -> None:
        self._cache.reorder(index)
