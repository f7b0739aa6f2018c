# SPDX-License-Identifier: Apache-2.0
"""A KV cache of fixed capacity for the exact twin, with the running sum of values that SparQ needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparq_reference import checks, row_codes, window
from sparq_reference.exact_twin import exact
from sparq_reference.settings import CacheSpec, HasSpec, Settings, SparqSettings, WindowSettings, op_of


class KVCache(HasSpec):
    """Keys, values and their running sum, with a length per batch element. Arguments: see `CacheSpec`.

    Positions at or beyond a length hold NaN: whatever looks at them shows.
    """

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int, capacity: int, **options: Any) -> None:
        self.spec = CacheSpec(batch, n_kv_heads, head_dim, capacity, op="KVCache", **options)
        shape = (self.spec.batch, self.spec.n_kv_heads, self.spec.capacity, self.spec.head_dim)
        self._key = np.empty(shape, np.float16)
        self._value = np.empty(shape, np.float16)
        self._value_sum = np.empty((shape[0], shape[1], shape[3]), np.float32)
        self._lengths = np.empty(shape[0], np.int64)
        self.reset()

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
        #: the steps of window attention so far; None before the first one that is remembered
        self.history: window.WindowHistory | None = None

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
            lengths: (batch,) integers in [0, n_tokens]: the number of tokens to add; None means all.
        """
        n_new = checks.check_append(
            "append", key, value, self.spec, self._lengths, lengths=lengths, check_finite=check_finite
        )
        key, value = (row_codes.round_rows(rows, self.spec.row_bits) for rows in (key, value))
        for b in range(self.spec.batch):
            start, stop = self._lengths[b], self._lengths[b] + n_new[b]
            self._key[b, :, start:stop] = key[b, :, : n_new[b]]
            self._value[b, :, start:stop] = value[b, :, : n_new[b]]
        self._value_sum = exact.sum_values(value, lengths=n_new, initial=self._value_sum)
        self._lengths = self._lengths + n_new

    def truncate(self, lengths: np.ndarray) -> None:
        """Forget the last positions: element b keeps the first lengths[b], as if no others had been added."""
        kept = checks.check_truncate("truncate", lengths, self._lengths)
        for b in range(self.spec.batch):
            self._key[b, :, kept[b] :] = np.nan
            self._value[b, :, kept[b] :] = np.nan
        self._lengths = kept
        if self.history is not None:
            self.history.truncate(kept)
        self._value_sum = exact.sum_values(self.value, lengths=kept)

    def reorder(self, index: np.ndarray) -> None:
        """Batch element i becomes what element index[i] was, for beam search; elements may repeat."""
        index = checks.check_reorder("reorder", index, self.spec.batch)
        self._key = self._key[index]
        self._value = self._value[index]
        self._value_sum = self._value_sum[index]
        self._lengths = self._lengths[index]
        if self.history is not None:
            self.history.reorder(index)

    def attention(
        self, query: np.ndarray, settings: Settings = None, *, check_finite: bool = True
    ) -> np.ndarray:
        """SparQ or window attention over the positions held, or dense attention where settings is None: query
        (batch, n_heads, head_dim) float16 -> the same, as `exact`."""
        op = op_of(settings)
        checks.check_query(op, query, self.spec, check_finite=check_finite)
        checks.check_not_empty(op, self._lengths)
        if settings is None:
            return exact.dense_unchecked(query, self.key, self.value, self._lengths)
        settings.check(op, self.spec.head_dim, self.spec.index_components)
        if settings.kind == "window":
            return self._window_attention(op, query, settings)
        how: dict[str, Any] = dict(lengths=self._lengths, value_sum=self._value_sum)
        how.update(index_bits=self.spec.index_bits, index_components=self.spec.index_components)
        return exact.sparq_steps(query, self.key, self.value, settings, **how).output

    def _window_attention(self, op: str, query: np.ndarray, settings: WindowSettings) -> np.ndarray:
        window.check_history(op, self.history, settings, query.shape[1])
        seq_len = int(self._lengths.max())
        sums = np.zeros((self.spec.batch, seq_len), np.uint32)
        if settings.remembers and self.history is not None:
            sums = self.history.sums(seq_len)
        steps = exact.window_steps(query, self.key, self.value, sums, settings, lengths=self._lengths)
        if settings.remembers:
            self._remember(settings, steps.shares, self._lengths)
        return steps.output

    def _remember(self, settings: WindowSettings, shares: np.ndarray, lengths: np.ndarray) -> None:
        if self.history is None:
            self.history = window.WindowHistory(self.spec.batch, settings.n_recent)
        for b, length in enumerate(lengths):
            self.history.add(b, shares[b, :length])

    def observe(self, query: np.ndarray, settings: WindowSettings, *, check_finite: bool = True) -> None:
        """Put the dense attention of the last tokens held into the history, each to the positions up to its
        own: query (batch, n_heads, n_tokens, head_dim) float16. Settings without a history change nothing."""
        op = "observe"
        n_tokens = checks.check_tokens(op, query, self.spec, self._lengths, check_finite=check_finite)
        window.check_history(op, self.history, settings, query.shape[1])
        for index in range(n_tokens if settings.remembers else 0):
            lengths = self._lengths - (n_tokens - 1 - index)
            shares = exact.dense_shares(query[:, :, index], self.key, self.value, lengths)
            self._remember(settings, shares, lengths)

    def dense_attention(self, query: np.ndarray, *, check_finite: bool = True) -> np.ndarray:
        """`attention` without settings."""
        return self.attention(query, check_finite=check_finite)

    def sparq_attention(self, query: np.ndarray, *, check_finite: bool = True, **settings: Any) -> np.ndarray:
        """`attention` with `SparqSettings` by name."""
        checked = SparqSettings.of("sparq_attention", self.spec.head_dim, settings)
        return self.attention(query, checked, check_finite=check_finite)
