# SPDX-License-Identifier: Apache-2.0
"""The exact twin: attention as the contract of docs/exactness.md rounds it, bit for bit.

float16 in and out, float32 between. `ideal.py` has the same functions in the same order, in float64 straight
from the paper, so that the two diff by eye. Equations, steps and Algorithm 1 are those of arXiv:2312.04985v6.

Padding: a batch element shorter than seq_len has scores -inf and weights 0 beyond its length; key and value
there are never read. Selected positions are padded with -1.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import checks, key_index, numerics, window
from sparq_reference.layout import Steps, all_lengths, each_kv_head
from sparq_reference.numerics import to_half, widen
from sparq_reference.settings import SparqSettings, WindowSettings


def query_components(
    query: np.ndarray, *, rank: int, n_kv_heads: int, index_components: int = 0
) -> np.ndarray:
    """i1 of Algorithm 1: the `rank` components largest in |q|, equal values by lower index.

    For grouped queries, |q| is summed over the group first (section 4 of the paper). With index_components
    above 0, of the first so many components (E13).
    query (batch, n_heads, head_dim) -> (batch, n_kv_heads, rank) int64, ascending.
    """
    magnitude = numerics.group_sum(np.abs(widen(query)), n_kv_heads)[..., : index_components or None]
    largest = np.argsort(-magnitude, axis=-1, kind="stable")[..., :rank]
    return np.sort(largest, axis=-1).astype(np.int64)


def inverse_temperature(query: np.ndarray, components: np.ndarray) -> np.ndarray:
    """1 / tau of equation 9: sqrt(|q|_1 / (head_dim * |q[components]|_1)) -> (batch, n_heads) float32.

    Where the selected components are all 0 the approximate scores are too, and
    1 / sqrt(head_dim) serves.
    """
    head_dim = query.shape[-1]
    group_size = query.shape[1] // components.shape[1]
    chosen = np.zeros((query.shape[0], components.shape[1], head_dim), bool)
    np.put_along_axis(chosen, components, True, axis=-1)
    chosen = np.repeat(chosen, group_size, axis=1)
    magnitude = np.abs(widen(query))
    everything = numerics.lane_sum(magnitude)
    selected = numerics.lane_sum(np.where(chosen, magnitude, np.float32(0)))
    nothing = selected == 0
    denominator = np.where(nothing, np.float32(1), np.float32(head_dim) * selected)
    ratio = np.where(nothing, np.float32(1), everything / denominator)
    inv_tau: np.ndarray = np.where(nothing, numerics.scale(head_dim), numerics.sqrt(ratio))
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

    With index_bits below 16, full blocks of K are those of the key index (E9).
    -> (batch, n_heads, seq_len) float32, -inf beyond a length.
    """
    lengths = all_lengths(key, lengths)
    scores = np.full((*query.shape[:2], key.shape[2]), -np.inf, np.float32)
    for b, kv, heads in each_kv_head(query, key):
        chosen, length = components[b, kv], lengths[b]
        q = widen(query[b, heads][:, chosen])
        columns = np.ascontiguousarray(key[b, kv, :length].T[chosen])
        n_index = 0 if index_bits == 16 else length // numerics.BLOCK * numerics.BLOCK
        total = np.zeros((q.shape[0], length), np.float32)
        if n_index:
            index = key_index.quantise(columns[:, :n_index], index_bits)
            total[:, :n_index] = key_index.block_scores(q, index, index_bits)
        for j in range(len(chosen)):
            total[:, n_index:] += q[:, j, None] * widen(columns[j, n_index:])
        scores[b, heads, :length] = total * inv_tau[b, heads, None]
    return scores


def softmax_weights(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A softmax before division: exp(scores - maximum) (..., n), their sum and the maximum (...), float32."""
    scores = widen(scores)
    maximum = scores.max(axis=-1)
    weights = numerics.softmax_weight(scores - maximum[..., None])
    return weights, numerics.fold_blocks(numerics.block_sums(weights)), maximum


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
    merit = numerics.group_sum(weights / weight_sum[..., None], n_kv_heads)
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
    """Equation 2: queries (group_size, head_dim) over the rows of key, value (n, head_dim) -> float32."""
    return _attend_with_weights(query, key, value)[0]


def _attend_with_weights(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_attend`, and its softmax before division: weights (group_size, n) and their sums (group_size,)."""
    q = widen(query)
    scores = np.empty((q.shape[0], key.shape[0]), np.float32)
    for start in range(0, key.shape[0], numerics.CHUNK):
        rows = widen(key[start : start + numerics.CHUNK])
        for head in range(q.shape[0]):
            scores[head, start : start + len(rows)] = numerics.dot(q[head], rows)
    weights, weight_sum, _ = softmax_weights(scores * numerics.scale(q.shape[1]))
    attended: np.ndarray = numerics.flush(numerics.weighted_sum(weights, value)) / weight_sum[:, None]
    return attended, weights, weight_sum


def gathered_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, positions: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """y3 of equation 8: attention over the selected positions -> (batch, n_heads, head_dim) float32."""
    attended = np.empty(query.shape, np.float32)
    for b, kv, heads in each_kv_head(query, key):
        rows = positions[b, kv, : counts[b]]
        attended[b, heads] = _attend(query[b, heads], key[b, kv][rows], value[b, kv][rows])
    return attended


def selected_share(weights: np.ndarray, weight_sum: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """alpha of equation 10: the softmax of equation 7 summed over the selected positions.

    -> (batch, n_heads) float32 in [0, 1].
    """
    group_size = weights.shape[1] // positions.shape[1]
    chosen = np.zeros((*positions.shape[:2], weights.shape[-1] + 1), bool)
    np.put_along_axis(chosen, positions, True, axis=-1)  # padding, -1, marks the entry that is cut off
    selected = np.where(np.repeat(chosen[..., :-1], group_size, axis=1), weights, np.float32(0))
    total = numerics.fold_blocks(numerics.block_sums(selected))
    alpha: np.ndarray = np.minimum(np.float32(1), numerics.flush(total / weight_sum))
    return alpha


def sum_values(
    value: np.ndarray, *, lengths: np.ndarray | None = None, initial: np.ndarray | None = None
) -> np.ndarray:
    """Running sum of value rows, one addition per position, ascending, from `initial` (default +0).

    value (batch, n_kv_heads, n, head_dim), of which the first lengths (batch,) are added
    -> (batch, n_kv_heads, head_dim) float32.
    """
    lengths = all_lengths(value, lengths)
    shape = value.shape[:2] + value.shape[3:]
    total = np.zeros(shape, np.float32) if initial is None else np.array(initial, np.float32)
    for start in range(0, value.shape[2], numerics.BLOCK):
        block = value[:, :, start : start + numerics.BLOCK]
        real = np.arange(start, start + block.shape[2]) < lengths[:, None]
        if not real.all():
            block = np.where(real[:, None, :, None], block, np.float16(0))  # adding +0 changes no bit
        rows = np.ascontiguousarray(np.moveaxis(widen(block), 2, 0))
        for row in rows:
            total += row
    return total


def mean_value(value_sum: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The mean value row of equation 6, value_sum / length -> (batch, n_kv_heads, head_dim) float32."""
    mean: np.ndarray = widen(value_sum) / np.asarray(lengths).astype(np.float32)[:, None, None]
    return mean


def combine(attended: np.ndarray, alpha: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Equation 10: alpha * attended + (1 - alpha) * mean -> (batch, n_heads, head_dim) float32."""
    mean = np.repeat(mean, attended.shape[1] // mean.shape[1], axis=1)
    alpha = alpha[..., None]
    output: np.ndarray = alpha * attended + (np.float32(1) - alpha) * mean
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

    Args:
        query: (batch, n_heads, head_dim) float16.
        key, value: (batch, n_kv_heads, seq_len, head_dim) float16; n_heads is a multiple of n_kv_heads.
        lengths: (batch,) integers in [1, seq_len]; None means seq_len. Positions beyond are not read.
        check_finite: refuse NaN and infinity; if False, what they do is unspecified.

    Returns:
        (batch, n_heads, head_dim) float16; overflow saturates at 65504.

    Raises:
        ValueError: `dense_attention: <argument> must <rule>, got <value>`.
    """
    lengths = checks.check_attention(
        "dense_attention", query, key, value, lengths=lengths, check_finite=check_finite
    )
    return dense_unchecked(query, key, value, lengths)


def dense_unchecked(query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`dense_attention` of arguments that were checked before."""
    output = np.empty(query.shape, np.float16)
    for b, kv, heads in each_kv_head(query, key):
        n = lengths[b]
        output[b, heads] = to_half(_attend(query[b, heads], key[b, kv, :n], value[b, kv, :n]))
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

    Args:
        query: (batch, n_heads, head_dim) float16.
        key, value: (batch, n_kv_heads, seq_len, head_dim) float16; n_heads is a multiple of n_kv_heads.
        rank: components of the query used for approximate scores, in [1, head_dim] (the paper's r).
        top_k: positions attended to, at least 1 (the paper's k); from the length on, the result is that of
            dense attention, bit for bit.
        n_local: how many of them are the last positions, in [0, top_k] (the paper's l).
        mean_value: add (1 - alpha) times the mean value row for the positions not selected.
        index_bits: 16, or 8, 4 or 2: positions are scored from a key index of so few bits (E9).
        index_components: above 0, the query chooses among the first so many components alone, a multiple of 8
            and at least `rank` (E13); `component_order.by_prompt` says which should be first.
        lengths: (batch,) integers in [1, seq_len]; None means seq_len. Positions beyond are not read.
        value_sum: (batch, n_kv_heads, head_dim) float32, the running sum of value rows (`sum_values`), if the
            caller keeps it.
        check_finite: refuse NaN and infinity; if False, what they do is unspecified.

    Returns:
        (batch, n_heads, head_dim) float16; overflow saturates at 65504.

    Raises:
        ValueError: `sparq_attention: <argument> must <rule>, got <value>`.
    """
    lengths = checks.check_attention(
        "sparq_attention", query, key, value, lengths=lengths, value_sum=value_sum, check_finite=check_finite
    )
    index_bits = checks.check_index_bits("sparq_attention", index_bits, query.shape[-1])
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
        to_half(output),
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

    Args:
        query, key, value, lengths, check_finite: as of `dense_attention`.
        history: of the steps before; this step is added to it, where the settings ask for a history.
        top_k, n_local, n_recent: see `WindowSettings`.

    Returns:
        (batch, n_heads, head_dim) float16; overflow saturates at 65504.

    Raises:
        ValueError: `window_attention: <argument> must <rule>, got <value>`, the history unchanged.
    """
    op = "window_attention"
    lengths = checks.check_attention(op, query, key, value, lengths=lengths, check_finite=check_finite)
    settings = WindowSettings(top_k, n_local, n_recent, op=op)  # type: ignore[arg-type]  # None: half
    window.check_history(op, history, settings, query.shape[1])
    steps = window_steps(query, key, value, history.sums(key.shape[2]), settings, lengths=lengths)
    if settings.remembers:
        for b, length in enumerate(lengths):
            history.add(b, steps.shares[b, :length])
    return steps.output


def shares_of(weights: np.ndarray, weight_sum: np.ndarray) -> np.ndarray:
    """Shares of attention in units of 2**-16, summed over heads (E11).

    weights (n_heads, n), weight_sum (n_heads,) -> (n,) uint32.
    """
    units = weights / weight_sum[:, None] * np.float32(window.UNITS)
    total: np.ndarray = key_index.round_to_integer(units).astype(np.uint32).sum(axis=0, dtype=np.uint32)
    return total


def dense_shares(query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """What a step of window attention over all positions adds to the history: (batch, seq_len) uint32."""
    everything = WindowSettings(key.shape[2], key.shape[2])
    none = np.zeros((key.shape[0], key.shape[2]), np.uint32)
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
    shares = np.zeros((key.shape[0], key.shape[2]), np.uint32)
    output = np.empty(query.shape, np.float16)
    for b, kv, heads in each_kv_head(query, key):
        rows = positions[b, : counts[b]]
        attended, weights, weight_sum = _attend_with_weights(
            query[b, heads], key[b, kv][rows], value[b, kv][rows]
        )
        output[b, heads] = to_half(attended)
        shares[b, rows] += shares_of(weights, weight_sum)
    return window.WindowSteps(positions, counts, shares, output)
