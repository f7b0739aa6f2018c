# SPDX-License-Identifier: Apache-2.0
"""The ideal twin: attention in float64, straight from the paper, with NumPy's own sums, exp and sqrt.

Any floating point in, float64 out. `exact.py` has the same functions in the same order, as the contract of
docs/exactness.md rounds them, so that the two diff by eye. Equations, steps and Algorithm 1 are those of
arXiv:2312.04985v6.

Padding: a batch element shorter than seq_len has scores -inf and weights 0 beyond its length; key and value
there are never read. Selected positions are padded with -1.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import checks, key_index, numerics, window
from sparq_reference.layout import Steps, all_lengths, each_kv_head
from sparq_reference.settings import SparqSettings, WindowSettings


def _double(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64)


def _group_sum(x: np.ndarray, n_kv_heads: int) -> np.ndarray:
    total: np.ndarray = _double(x).reshape(x.shape[0], n_kv_heads, -1, x.shape[2]).sum(axis=2)
    return total


def query_components(
    query: np.ndarray, *, rank: int, n_kv_heads: int, index_components: int = 0
) -> np.ndarray:
    """i1 of Algorithm 1: the `rank` components largest in |q|, equal values by lower index.

    For grouped queries, |q| is summed over the group first (section 4 of the paper). With index_components
    above 0, of the first so many components (E13).
    query (batch, n_heads, head_dim) -> (batch, n_kv_heads, rank) int64, ascending.
    """
    magnitude = _group_sum(np.abs(_double(query)), n_kv_heads)[..., : index_components or None]
    largest = np.argsort(-magnitude, axis=-1, kind="stable")[..., :rank]
    return np.sort(largest, axis=-1).astype(np.int64)


def inverse_temperature(query: np.ndarray, components: np.ndarray) -> np.ndarray:
    """1 / tau of equation 9: sqrt(|q|_1 / (head_dim * |q[components]|_1)) -> (batch, n_heads) float64.

    Where the selected components are all 0 the approximate scores are too, and
    1 / sqrt(head_dim) serves.
    """
    head_dim = query.shape[-1]
    group_size = query.shape[1] // components.shape[1]
    magnitude = np.abs(_double(query))
    everything = magnitude.sum(axis=-1)
    rows = np.repeat(components, group_size, axis=1)
    selected = np.take_along_axis(magnitude, rows, axis=-1).sum(axis=-1)
    nothing = selected == 0
    ratio = everything / np.where(nothing, 1.0, selected)
    inv_tau: np.ndarray = np.sqrt(np.where(nothing, 1.0, ratio) / head_dim)
    return inv_tau


def approx_scores(
    query: np.ndarray,
    key: np.ndarray,
    components: np.ndarray,
    inv_tau: np.ndarray,
    *,
    index_bits: int = 16,
    lengths: np.ndarray | None = None,
) -> np.ndarray:
    """The argument of the softmax of equation 7: q[components] . K[:, components] / tau.

    With index_bits below 16, full blocks of K are those of the key index (E9; key must be float16); q is not
    rounded.
    -> (batch, n_heads, seq_len) float64, -inf beyond a length.
    """
    lengths = all_lengths(key, lengths)
    scores = np.full((*query.shape[:2], key.shape[2]), -np.inf)
    for b, kv, heads in each_kv_head(query, key):
        chosen, length = components[b, kv], lengths[b]
        q = _double(query[b, heads][:, chosen])
        columns = key[b, kv, :length].T[chosen]
        if index_bits != 16:
            n_index = length // numerics.BLOCK * numerics.BLOCK
            index = key_index.quantise(columns[:, :n_index], index_bits)
            stored = _double(index.low)[..., None] + _double(index.step)[..., None] * _double(index.code)
            columns = np.concatenate([stored.reshape(len(chosen), n_index), _double(columns[:, n_index:])], 1)
        scores[b, heads, :length] = (q @ _double(columns)) * inv_tau[b, heads, None]
    return scores


def softmax_weights(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A softmax before division: exp(scores - maximum) (..., n), their sum and the maximum (...), float64."""
    scores = _double(scores)
    maximum = scores.max(axis=-1)
    weights = np.exp(scores - maximum[..., None])
    return weights, weights.sum(axis=-1), maximum


def key_topk(
    weights: np.ndarray,
    weight_sum: np.ndarray,
    *,
    n_kv_heads: int,
    top_k: int,
    n_local: int = 0,
    lengths: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """i2 of Algorithm 1: the last n_local positions and the best of the others, equal values by lower index.

    Best by the softmax of equation 7, summed over the group (section 4 of the paper).

    Returns:
        positions (batch, n_kv_heads, min(top_k, seq_len)) int64, ascending, padded with -1;
        counts (batch,) int64, how many are not padding: min(top_k, length).
    """
    batch, _, seq_len = weights.shape
    lengths = np.full(batch, seq_len, np.int64) if lengths is None else np.asarray(lengths, np.int64)
    merit = _group_sum(weights / weight_sum[..., None], n_kv_heads)
    positions = np.full((batch, n_kv_heads, min(top_k, seq_len)), -1, np.int64)
    counts = np.minimum(top_k, lengths)
    for b, (length, count) in enumerate(zip(lengths, counts)):
        first_local = length - min(n_local, count)
        n_best = count - (length - first_local)
        best = np.argsort(-merit[b, :, :first_local], axis=-1, kind="stable")[:, :n_best]
        positions[b, :, :n_best] = np.sort(best, axis=-1)
        positions[b, :, n_best:count] = np.arange(first_local, length)
    return positions, counts


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Equation 2: queries (group_size, head_dim) over the rows of key, value (n, head_dim) -> float64."""
    return _attend_with_weights(query, key, value)[0]


def _attend_with_weights(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_attend`, and its softmax before division: weights (group_size, n) and their sums (group_size,)."""
    scores = _double(query) @ _double(key).T / np.sqrt(query.shape[1])
    weights, weight_sum, _ = softmax_weights(scores)
    attended: np.ndarray = (weights @ _double(value)) / weight_sum[:, None]
    return attended, weights, weight_sum


def gathered_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, positions: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """y3 of equation 8: attention over the selected positions -> (batch, n_heads, head_dim) float64."""
    attended = np.empty(query.shape)
    for b, kv, heads in each_kv_head(query, key):
        rows = positions[b, kv, : counts[b]]
        attended[b, heads] = _attend(query[b, heads], key[b, kv][rows], value[b, kv][rows])
    return attended


def selected_share(weights: np.ndarray, weight_sum: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """alpha of equation 10: the softmax of equation 7 summed over the selected positions.

    -> (batch, n_heads) float64 in [0, 1].
    """
    rows = np.repeat(positions, weights.shape[1] // positions.shape[1], axis=1)
    selected = np.take_along_axis(weights, np.maximum(rows, 0), axis=-1)
    total = np.where(rows < 0, 0.0, selected).sum(axis=-1)
    alpha: np.ndarray = np.minimum(1.0, total / weight_sum)
    return alpha


def sum_values(
    value: np.ndarray, *, lengths: np.ndarray | None = None, initial: np.ndarray | None = None
) -> np.ndarray:
    """Running sum of value rows from `initial` (default 0).

    value (batch, n_kv_heads, n, head_dim), of which the first lengths (batch,) are added
    -> (batch, n_kv_heads, head_dim) float64.
    """
    lengths = all_lengths(value, lengths)
    total = np.stack([_double(value[b, :, :n]).sum(axis=1) for b, n in enumerate(lengths)])
    return total if initial is None else total + initial


def mean_value(value_sum: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The mean value row of equation 6, value_sum / length -> (batch, n_kv_heads, head_dim) float64."""
    mean: np.ndarray = _double(value_sum) / np.asarray(lengths)[:, None, None]
    return mean


def combine(attended: np.ndarray, alpha: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Equation 10: alpha * attended + (1 - alpha) * mean -> (batch, n_heads, head_dim) float64."""
    mean = np.repeat(mean, attended.shape[1] // mean.shape[1], axis=1)
    alpha = alpha[..., None]
    output: np.ndarray = alpha * attended + (1.0 - alpha) * mean
    return output


def dense_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    check_finite: bool = True,
) -> np.ndarray:
    """Attention of one decode step over all positions, equation 2: softmax(q . K^T / sqrt(head_dim)) . V.

    Arguments as of `exact.dense_attention`, of any floating dtype and any head_dim; float64, not saturated.

    Raises:
        ValueError: `dense_attention: <argument> must <rule>, got <value>`.
    """
    lengths = checks.check_attention(
        "dense_attention", query, key, value, lengths=lengths, check_finite=check_finite, exact=False
    )
    return dense_unchecked(query, key, value, lengths)


def dense_unchecked(query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`dense_attention` of arguments that were checked before."""
    output = np.empty(query.shape)
    for b, kv, heads in each_kv_head(query, key):
        n = lengths[b]
        output[b, heads] = _attend(query[b, heads], key[b, kv, :n], value[b, kv, :n])
    return output


def sparq_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    rank: int,
    top_k: int,
    n_local: int = 0,
    mean_value: bool = True,
    index_bits: int = 16,
    index_components: int = 0,
    lengths: np.ndarray | None = None,
    value_sum: np.ndarray | None = None,
    check_finite: bool = True,
) -> np.ndarray:
    """SparQ attention of one decode step, Algorithm 1.

    Arguments as of `exact.sparq_attention`, of any floating dtype and any head_dim; float64, not saturated.
    With index_bits below 16 the keys must be float16.

    Raises:
        ValueError: `sparq_attention: <argument> must <rule>, got <value>`.
    """
    lengths = checks.check_attention(
        "sparq_attention",
        query,
        key,
        value,
        lengths=lengths,
        value_sum=value_sum,
        check_finite=check_finite,
        exact=False,
    )
    index_bits = checks.check_index_bits("sparq_attention", index_bits, query.shape[-1])
    if index_bits != 16 and key.dtype != np.float16:
        checks.fail("sparq_attention", "key", f"be float16 with index_bits={index_bits}", key.dtype)
    index_components = checks.check_index_components("sparq_attention", index_components, query.shape[-1])
    settings = SparqSettings(rank, top_k, n_local, mean_value, op="sparq_attention", head_dim=query.shape[-1])
    settings.check("sparq_attention", query.shape[-1], index_components)
    return sparq_steps(
        query,
        key,
        value,
        settings,
        index_bits=index_bits,
        index_components=index_components,
        lengths=lengths,
        value_sum=value_sum,
    ).output


def sparq_steps(
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
    components = query_components(
        query, rank=settings.rank, n_kv_heads=n_kv_heads, index_components=index_components
    )
    inv_tau = inverse_temperature(query, components)
    scores = approx_scores(query, key, components, inv_tau, index_bits=index_bits, lengths=lengths)
    weights, weight_sum, weight_max = softmax_weights(scores)
    positions, counts = key_topk(
        weights,
        weight_sum,
        n_kv_heads=n_kv_heads,
        top_k=settings.top_k,
        n_local=settings.n_local,
        lengths=lengths,
    )
    attended = gathered_attention(query, key, value, positions, counts)
    alpha = selected_share(weights, weight_sum, positions)
    mean = None
    output = attended
    if settings.mean_value:
        mean = mean_value(sum_values(value, lengths=lengths) if value_sum is None else value_sum, lengths)
        output = combine(attended, alpha, mean)
    return Steps(
        components,
        inv_tau,
        scores,
        weights,
        weight_sum,
        weight_max,
        positions,
        counts,
        attended,
        alpha,
        mean,
        output,
    )


def window_attention(
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

    Arguments as of `exact.window_attention`, of any floating dtype and any head_dim, with a history that is
    `WindowHistory(..., exact=False)`; float64, not saturated.

    Raises:
        ValueError: `window_attention: <argument> must <rule>, got <value>`, the history unchanged.
    """
    op = "window_attention"
    lengths = checks.check_attention(
        op, query, key, value, lengths=lengths, check_finite=check_finite, exact=False
    )
    settings = WindowSettings(top_k, n_local, n_recent, op=op)  # type: ignore[arg-type]  # None: half
    window.check_history(op, history, settings, query.shape[1])
    steps = window_steps(query, key, value, history.sums(key.shape[2]), settings, lengths=lengths)
    if settings.remembers:
        for b, length in enumerate(lengths):
            history.add(b, steps.shares[b, :length])
    return steps.output


def shares_of(weights: np.ndarray, weight_sum: np.ndarray) -> np.ndarray:
    """Shares of attention, all of one head's being 1, summed over heads: (n_heads, n), (n_heads,) -> (n,)."""
    total: np.ndarray = (weights / weight_sum[:, None]).sum(axis=0)
    return total


def dense_shares(query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """What a step of window attention over all positions adds to the history: (batch, seq_len) float64."""
    everything = WindowSettings(key.shape[2], key.shape[2])
    none = np.zeros((key.shape[0], key.shape[2]))
    return window_steps(query, key, value, none, everything, lengths=lengths).shares


def window_steps(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    sums: np.ndarray,
    settings: WindowSettings,
    *,
    lengths: np.ndarray | None = None,
) -> window.WindowSteps:
    """`window_attention` with every intermediate, without checks; sums (batch, seq_len) of the history."""
    lengths = all_lengths(key, lengths)
    positions, counts = window.select_positions(sums, settings, lengths)
    shares = np.zeros((key.shape[0], key.shape[2]))
    output = np.empty(query.shape)
    for b, kv, heads in each_kv_head(query, key):
        rows = positions[b, : counts[b]]
        attended, weights, weight_sum = _attend_with_weights(
            query[b, heads], key[b, kv][rows], value[b, kv][rows]
        )
        output[b, heads] = attended
        shares[b, rows] += shares_of(weights, weight_sum)
    return window.WindowSteps(positions, counts, shares, output)
