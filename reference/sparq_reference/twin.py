# SPDX-License-Identifier: Apache-2.0
"""Attention of one decode step, in the arithmetic of a twin. Equations, steps and Algorithm 1 are those of
arXiv:2312.04985v6.

Both twins share the order of the steps, what they read, and how they select. `exact_twin` and `ideal_twin`
add the arithmetic. Floats below are float32 in the exact twin and float64 in the ideal one.

Padding: a batch element shorter than seq_len has scores -inf and weights 0 beyond its length; key and value
there are never read. Selected positions are padded with -1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sparq_reference import checks, row_codes, window
from sparq_reference.settings import CacheSpec, SparqSettings, WindowSettings


class Steps(NamedTuple):
    """Every intermediate of one SparQ attention call; floats are float32 (exact) or float64 (ideal)."""

    components: np.ndarray  #: (batch, n_kv_heads, rank) int64, ascending
    inv_tau: np.ndarray  #: (batch, n_heads) inverse temperature
    scores: np.ndarray  #: (batch, n_heads, seq_len) approximate scores, after the temperature, before softmax
    weights: np.ndarray  #: (batch, n_heads, seq_len) exp(scores - maximum)
    weight_sum: np.ndarray  #: (batch, n_heads) sum of `weights`
    weight_max: np.ndarray  #: (batch, n_heads) maximum of `scores`
    positions: np.ndarray  #: (batch, n_kv_heads, min(top_k, seq_len)) int64, ascending, padded with -1
    counts: np.ndarray  #: (batch,) int64, positions that are not padding
    attended: np.ndarray  #: (batch, n_heads, head_dim) attention over the selected positions
    alpha: np.ndarray  #: (batch, n_heads) share of the approximate softmax that was selected, in [0, 1]
    mean: np.ndarray | None  #: (batch, n_kv_heads, head_dim) mean value row; None with mean_value off
    output: np.ndarray  #: (batch, n_heads, head_dim); float16 (exact) or float64 (ideal)


def each_kv_head(query: np.ndarray, key: np.ndarray) -> Iterator[tuple[int, int, slice]]:
    """Yield (batch element, KV head, slice of its query heads): one at a time keeps memory small."""
    group_size = query.shape[1] // key.shape[1]
    for b in range(key.shape[0]):
        for kv in range(key.shape[1]):
            yield b, kv, slice(kv * group_size, (kv + 1) * group_size)


def all_lengths(key: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """`lengths` as int64 (batch,), seq_len where it is None; key (batch, n_kv_heads, seq_len, head_dim)."""
    return np.full(key.shape[0], key.shape[2], np.int64) if lengths is None else np.asarray(lengths, np.int64)


class Twin(ABC):
    """The steps of attention, in order, then whole calls."""

    #: float16 in and out, as the contract says; else any floating point in, float64 out
    is_exact: ClassVar[bool]
    #: dtypes of intermediates, of outputs, and of shares of attention
    dtype: ClassVar[type[Any]]
    output_dtype: ClassVar[type[Any]]
    share_dtype: ClassVar[type[Any]]

    @abstractmethod
    def _widen(self, x: np.ndarray) -> np.ndarray:
        """`x` in `dtype`, exactly."""

    @abstractmethod
    def _narrow(self, x: np.ndarray) -> np.ndarray:
        """`x` in `output_dtype`."""

    @abstractmethod
    def _group_sum(self, x: np.ndarray, n_kv_heads: int) -> np.ndarray:
        """Sum over the heads of a group: (batch, n_heads, n) -> (batch, n_kv_heads, n)."""

    def query_components(
        self, query: np.ndarray, *, rank: int, n_kv_heads: int, index_components: int = 0
    ) -> np.ndarray:
        """i1 of Algorithm 1: the `rank` components largest in |q|, equal values by lower index; of
        index_components above 0, among the first of them (E13). For grouped queries, |q| is summed over the
        group first (section 4). query (batch, n_heads, head_dim) -> (batch, n_kv_heads, rank) int64,
        ascending."""
        magnitude = self._group_sum(np.abs(self._widen(query)), n_kv_heads)[..., : index_components or None]
        largest = np.argsort(-magnitude, axis=-1, kind="stable")[..., :rank]
        return np.sort(largest, axis=-1).astype(np.int64)

    @abstractmethod
    def inverse_temperature(self, query: np.ndarray, components: np.ndarray) -> np.ndarray:
        """1 / tau of equation 9: sqrt(|q|_1 / (head_dim * |q[components]|_1)) -> (batch, n_heads); 1 /
        sqrt(head_dim) where the selected components are all 0."""

    def approx_scores(
        self,
        query: np.ndarray,
        key: np.ndarray,
        components: np.ndarray,
        inv_tau: np.ndarray,
        *,
        index_bits: int = 16,
        lengths: np.ndarray | None = None,
    ) -> np.ndarray:
        """The argument of the softmax of equation 7: q[components] . K[:, components] / tau -> (batch,
        n_heads, seq_len), -inf beyond a length. With index_bits below 16, full blocks of K are those of the
        key index (E9)."""
        lengths = all_lengths(key, lengths)
        scores = np.full((*query.shape[:2], key.shape[2]), -np.inf, self.dtype)
        for b, kv, heads in each_kv_head(query, key):
            chosen, length = components[b, kv], lengths[b]
            q, columns = query[b, heads][:, chosen], key[b, kv, :length].T[chosen]
            total = self._scores(self._widen(q), columns, index_bits)
            scores[b, heads, :length] = total * inv_tau[b, heads, None]
        return scores

    @abstractmethod
    def _scores(self, query: np.ndarray, columns: np.ndarray, index_bits: int) -> np.ndarray:
        """query (group_size, rank) . columns (rank, n), as the key index stores them -> (group_size, n)."""

    @abstractmethod
    def softmax_weights(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A softmax before division: exp(scores - maximum) (..., n), their sum and the maximum (...)."""

    def key_topk(
        self,
        weights: np.ndarray,
        weight_sum: np.ndarray,
        *,
        n_kv_heads: int,
        top_k: int,
        n_local: int = 0,
        lengths: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """i2 of Algorithm 1: the last n_local positions, and the best others by the softmax of equation 7
        summed over the group (section 4 of the paper), equal values by lower index.

        Returns:
            positions (batch, n_kv_heads, min(top_k, seq_len)) int64, ascending, padded with -1; and counts
            (batch,) int64, how many are not padding.
        """
        batch, _, seq_len = weights.shape
        lengths = np.full(batch, seq_len, np.int64) if lengths is None else np.asarray(lengths, np.int64)
        merit = self._group_sum(weights / weight_sum[..., None], n_kv_heads)
        positions = np.full((batch, n_kv_heads, min(top_k, seq_len)), -1, np.int64)
        counts = np.minimum(top_k, lengths)
        for b, (length, count) in enumerate(zip(lengths, counts)):
            first_local = length - min(n_local, count)
            n_best = count - (length - first_local)
            best = np.argsort(-merit[b, :, :first_local], axis=-1, kind="stable")[:, :n_best]
            positions[b, :, :n_best] = np.sort(best, axis=-1)
            positions[b, :, n_best:count] = np.arange(first_local, length)
        return positions, counts

    @abstractmethod
    def _attend(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Equation 2: queries (group_size, head_dim) over the rows of key, value (n, head_dim) -> the result
        (group_size, head_dim), the weights before division (group_size, n) and their sums (group_size,)."""

    def gathered_attention(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, positions: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """y3 of equation 8: attention over the selected positions -> (batch, n_heads, head_dim)."""
        attended = np.empty(query.shape, self.dtype)
        for b, kv, heads in each_kv_head(query, key):
            rows = positions[b, kv, : counts[b]]
            attended[b, heads] = self._attend(query[b, heads], key[b, kv][rows], value[b, kv][rows])[0]
        return attended

    @abstractmethod
    def selected_share(
        self, weights: np.ndarray, weight_sum: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """alpha of equation 10: the softmax of equation 7 summed over the selected positions -> (batch,
        n_heads)."""

    @abstractmethod
    def sum_values(
        self, value: np.ndarray, *, lengths: np.ndarray | None = None, initial: np.ndarray | None = None
    ) -> np.ndarray:
        """Running sum of value rows, one addition per position, ascending, from `initial` (default +0). value
        (batch, n_kv_heads, n, head_dim), of which the first lengths are added -> (batch, n_kv_heads,
        head_dim)."""

    def mean_value(self, value_sum: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The mean value row of equation 6, value_sum / length -> (batch, n_kv_heads, head_dim)."""
        mean: np.ndarray = self._widen(value_sum) / np.asarray(lengths).astype(self.dtype)[:, None, None]
        return mean

    def combine(self, attended: np.ndarray, alpha: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Equation 10: alpha * attended + (1 - alpha) * mean -> (batch, n_heads, head_dim)."""
        mean = np.repeat(mean, attended.shape[1] // mean.shape[1], axis=1)
        alpha = alpha[..., None]
        output: np.ndarray = alpha * attended + (self.dtype(1) - alpha) * mean
        return output

    @abstractmethod
    def shares_of(self, weights: np.ndarray, weight_sum: np.ndarray) -> np.ndarray:
        """Shares of attention summed over heads: (n_heads, n), (n_heads,) -> (n,) of `share_dtype`. All of
        one head's attention is 2**16 in the exact twin (E11), 1 in the ideal one."""

    def dense_shares(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """What a step of window attention over all positions adds to the history -> (batch, seq_len)."""
        everything = WindowSettings(key.shape[2], key.shape[2])
        none = np.zeros((key.shape[0], key.shape[2]), self.share_dtype)
        return self.window_steps(query, key, value, none, everything, lengths=lengths).shares

    def dense_attention(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        *,
        lengths: np.ndarray | None = None,
        check_finite: bool = True,
    ) -> np.ndarray:
        """Attention of one decode step over all positions, equation 2: softmax(q . K^T / sqrt(head_dim)) . V.

        Args:
            query: (batch, n_heads, head_dim), n_heads a multiple of n_kv_heads. All tensors are float16 for
                the exact twin, any floating point for the ideal one.
            key, value: (batch, n_kv_heads, seq_len, head_dim).
            lengths: (batch,) integers in [1, seq_len]; None means seq_len. Positions beyond are not read.
            check_finite: refuse NaN and infinity; if False, the result is unspecified for them.

        Returns:
            (batch, n_heads, head_dim): float16 that saturates at 65504 (exact), or float64 (ideal).
        """
        op = "dense_attention"
        lengths = checks.check_attention(
            op, query, key, value, lengths=lengths, check_finite=check_finite, exact=self.is_exact
        )
        return self.dense_unchecked(query, key, value, lengths)

    def dense_unchecked(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """`dense_attention` of arguments that were checked before."""
        output = np.empty(query.shape, self.output_dtype)
        for b, kv, heads in each_kv_head(query, key):
            n = lengths[b]
            attended = self._attend(query[b, heads], key[b, kv, :n], value[b, kv, :n])[0]
            output[b, heads] = self._narrow(attended)
        return output

    def attention(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        settings: SparqSettings | None = None,
        cache: CacheSpec | None = None,
    ) -> np.ndarray:
        """`sparq_attention`, or `dense_attention` without settings, over rows as such a cache stores them."""
        options = {} if cache is None else cache.option_values
        row_bits = options.pop("row_bits", 16)
        key, value = (row_codes.round_rows(rows, row_bits) for rows in (key, value))
        if settings is None:
            return self.dense_attention(query, key, value)
        return self.sparq_attention(query, key, value, **options, **settings.arguments())

    def sparq_attention(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        *,
        index_bits: int = 16,
        index_components: int = 0,
        lengths: np.ndarray | None = None,
        value_sum: np.ndarray | None = None,
        check_finite: bool = True,
        **settings: Any,
    ) -> np.ndarray:
        """SparQ attention of one decode step, Algorithm 1: as `dense_attention`.

        Args:
            settings: see `SparqSettings`. With a top_k of the length or more, the result is that of dense
                attention.
            index_bits, index_components: see `CacheSpec`. With fewer than 16 bits, keys must be float16.
            value_sum: (batch, n_kv_heads, head_dim) float32, `sum_values` of the values, if the caller keeps
                it.
        """
        op = "sparq_attention"
        how: dict[str, Any] = dict(check_finite=check_finite, exact=self.is_exact)
        lengths = checks.check_attention(op, query, key, value, lengths=lengths, value_sum=value_sum, **how)
        head_dim = query.shape[-1]
        index_bits = checks.check_index_bits(op, index_bits, head_dim)
        if index_bits != 16 and key.dtype != np.float16:
            checks.fail(op, "key", f"be float16 with index_bits={index_bits}", key.dtype)
        index_components = checks.check_index_components(op, index_components, head_dim)
        checked = SparqSettings.of(op, head_dim, settings)
        checked.check(op, head_dim, index_components)
        index = dict(index_bits=index_bits, index_components=index_components)
        steps = self.sparq_steps(query, key, value, checked, lengths=lengths, value_sum=value_sum, **index)
        return steps.output

    def sparq_steps(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        settings: SparqSettings,
        *,
        index_bits: int = 16,
        index_components: int = 0,
        lengths: np.ndarray | None = None,
        value_sum: np.ndarray | None = None,
    ) -> Steps:
        """`sparq_attention` with every intermediate, and without checks of the tensors."""
        lengths = all_lengths(key, lengths)
        n_kv_heads = key.shape[1]
        components = self.query_components(
            query, rank=settings.rank, n_kv_heads=n_kv_heads, index_components=index_components
        )
        inv_tau = self.inverse_temperature(query, components)
        scores = self.approx_scores(query, key, components, inv_tau, index_bits=index_bits, lengths=lengths)
        softmax = weights, weight_sum, _ = self.softmax_weights(scores)
        how = dict(n_kv_heads=n_kv_heads, top_k=settings.top_k, n_local=settings.n_local)
        positions, counts = self.key_topk(weights, weight_sum, lengths=lengths, **how)
        attended = self.gathered_attention(query, key, value, positions, counts)
        alpha = self.selected_share(weights, weight_sum, positions)
        mean = None
        output = attended
        if settings.mean_value:
            value_sum = self.sum_values(value, lengths=lengths) if value_sum is None else value_sum
            mean = self.mean_value(value_sum, lengths)
            output = self.combine(attended, alpha, mean)
        output = self._narrow(output)
        selected = positions, counts, attended
        return Steps(components, inv_tau, scores, *softmax, *selected, alpha, mean, output)

    def window_attention(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        history: window.WindowHistory,
        *,
        top_k: int,
        n_local: int | None = None,
        n_recent: int = 32,
        lengths: np.ndarray | None = None,
        check_finite: bool = True,
    ) -> np.ndarray:
        """Window attention of one decode step: Algorithm 1 of ALISA (arXiv:2403.17312), or local or strided.
        As `dense_attention`; top_k, n_local, n_recent: see `WindowSettings`.

        Args:
            history: of the steps before, `WindowHistory(..., exact=False)` for the ideal twin; this step is
                added to it, where the settings ask for a history.
        """
        op = "window_attention"
        lengths = checks.check_attention(
            op, query, key, value, lengths=lengths, check_finite=check_finite, exact=self.is_exact
        )
        settings = WindowSettings(top_k, n_local, n_recent, op=op)  # type: ignore[arg-type]  # None: half
        window.check_history(op, history, settings, query.shape[1])
        steps = self.window_steps(query, key, value, history.sums(key.shape[2]), settings, lengths=lengths)
        if settings.remembers:
            for b, length in enumerate(lengths):
                history.add(b, steps.shares[b, :length])
        return steps.output

    def window_steps(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        sums: np.ndarray,
        settings: WindowSettings,
        *,
        lengths: np.ndarray | None = None,
    ) -> window.WindowSteps:
        """`window_attention` with every intermediate, without checks; sums (batch, seq_len) of history."""
        lengths = all_lengths(key, lengths)
        positions, counts = window.select_positions(sums, settings, lengths)
        shares = np.zeros((key.shape[0], key.shape[2]), self.share_dtype)
        output = np.empty(query.shape, self.output_dtype)
        for b, kv, heads in each_kv_head(query, key):
            rows = positions[b, : counts[b]]
            attended, weights, weight_sum = self._attend(
                query[b, heads], key[b, kv][rows], value[b, kv][rows]
            )
            output[b, heads] = self._narrow(attended)
            shares[b, rows] += self.shares_of(weights, weight_sum)
        return window.WindowSteps(positions, counts, shares, output)
