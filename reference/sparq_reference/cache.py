# SPDX-License-Identifier: Apache-2.0
"""A KV cache of fixed capacity for the exact twin, with the running sum of values that SparQ needs."""

from __future__ import annotations

import numpy as np

from sparq_reference import checks, exact


class KVCache:
    """Keys, values and their running sum, with a length per batch element.

    Positions at or beyond a length hold NaN: whatever looks at them shows.

    Args:
        batch, n_kv_heads: at least 1.
        head_dim: positive multiple of 8.
        capacity: most positions of one batch element, in [1, 2**24].

    Raises:
        ValueError: `KVCache: <argument> must <rule>, got <value>`.
    """

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int, capacity: int) -> None:
        checks.check_cache("KVCache", batch, n_kv_heads, head_dim, capacity)
        self._key = np.empty((batch, n_kv_heads, capacity, head_dim), np.float16)
        self._value = np.empty((batch, n_kv_heads, capacity, head_dim), np.float16)
        self._value_sum = np.empty((batch, n_kv_heads, head_dim), np.float32)
        self._lengths = np.empty(batch, np.int64)
        self.reset()

    @property
    def batch(self) -> int:
        """Batch elements."""
        return self._key.shape[0]

    @property
    def n_kv_heads(self) -> int:
        """Key and value heads of an element."""
        return self._key.shape[1]

    @property
    def head_dim(self) -> int:
        """Components of a key or value row."""
        return self._key.shape[3]

    @property
    def capacity(self) -> int:
        """Most positions of one batch element."""
        return self._key.shape[2]

    @property
    def lengths(self) -> np.ndarray:
        """(batch,) int64: positions held. A copy."""
        return self._lengths.copy()

    @property
    def key(self) -> np.ndarray:
        """(batch, n_kv_heads, max(lengths), head_dim) float16, a read-only view, NaN beyond a length."""
        return self._held(self._key)

    @property
    def value(self) -> np.ndarray:
        """(batch, n_kv_heads, max(lengths), head_dim) float16, a read-only view, NaN beyond a length."""
        return self._held(self._value)

    @property
    def value_sum(self) -> np.ndarray:
        """(batch, n_kv_heads, head_dim) float32: the sum of the value rows held, added one by one. A copy."""
        return self._value_sum.copy()

    def _held(self, rows: np.ndarray) -> np.ndarray:
        view = rows[:, :, : self._lengths.max()]
        view.flags.writeable = False
        return view

    def reset(self) -> None:
        """Forget every position."""
        self._key.fill(np.nan)
        self._value.fill(np.nan)
        self._value_sum.fill(0)
        self._lengths.fill(0)

    def append(
        self,
        key: np.ndarray,
        value: np.ndarray,
        lengths: np.ndarray | None = None,
        *,
        check_finite: bool = True,
    ) -> None:
        """Add tokens; one by one or all at once gives the same bits.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
            lengths: (batch,) integers in [0, n_tokens]: so many of the tokens are real; None means all.
            check_finite: refuse NaN and infinity among the real tokens.

        Raises:
            ValueError: `append: <argument> must <rule>, got <value>`, the cache unchanged.
        """
        n_new = checks.check_append(
            "append",
            key,
            value,
            batch=self.batch,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            cache_lengths=self._lengths,
            capacity=self.capacity,
            lengths=lengths,
            check_finite=check_finite,
        )
        for b in range(self.batch):
            start, stop = self._lengths[b], self._lengths[b] + n_new[b]
            self._key[b, :, start:stop] = key[b, :, : n_new[b]]
            self._value[b, :, start:stop] = value[b, :, : n_new[b]]
        self._value_sum = exact.sum_values(value, lengths=n_new, initial=self._value_sum)
        self._lengths = self._lengths + n_new

    def reorder(self, index: np.ndarray) -> None:
        """Batch element i becomes what element index[i] was, for beam search; elements may repeat.

        Raises:
            ValueError: `reorder: index must <rule>, got <value>`; the cache is then unchanged.
        """
        index = checks.check_reorder("reorder", index, self.batch)
        self._key = self._key[index]
        self._value = self._value[index]
        self._value_sum = self._value_sum[index]
        self._lengths = self._lengths[index]

    def _check(self, op: str, query: np.ndarray, check_finite: bool) -> None:
        if self._lengths.min() == 0:
            checks.fail(op, "length", f"be in [1, capacity={self.capacity}]", 0)
        checks.check_attention(op, query, self.key, self.value, lengths=self._lengths, check_finite=False)
        if check_finite:  # keys and values were when they came
            checks.check_finite(op, "query", query)

    def dense_attention(self, query: np.ndarray, *, check_finite: bool = True) -> np.ndarray:
        """`exact.dense_attention` over the positions held; query (batch, n_heads, head_dim) float16."""
        self._check("dense_attention", query, check_finite)
        return exact.dense_attention(query, self.key, self.value, lengths=self._lengths, check_finite=False)

    def sparq_attention(
        self,
        query: np.ndarray,
        *,
        rank: int,
        top_k: int,
        n_local: int = 0,
        mean_value: bool = True,
        check_finite: bool = True,
    ) -> np.ndarray:
        """`exact.sparq_attention` over the positions held; query (batch, n_heads, head_dim) float16."""
        self._check("sparq_attention", query, check_finite)
        return exact.sparq_attention(
            query,
            self.key,
            self.value,
            rank=rank,
            top_k=top_k,
            n_local=n_local,
            mean_value=mean_value,
            lengths=self._lengths,
            value_sum=self._value_sum,
            check_finite=False,
        )
