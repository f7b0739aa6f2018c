# SPDX-License-Identifier: Apache-2.0
"""docs/error_bound.md in code: how far the exact twin may be from the ideal one, section by section."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparq_reference import ideal, key_index, numerics

U = 2.0**-24
EPS = U / (1 - U)
EXP_ERROR, SQRT_ERROR = 2.2, 1.6  #: in units of EPS
FLUSHED = 2.0**-48


def k(n: float) -> float:
    """K(n): the relative error of n roundings in a row."""
    return float(np.expm1(n * EPS))


def n_blocks(n: int) -> int:
    """Blocks of n entries."""
    return -(-n // numerics.BLOCK)


def lane(d: int) -> int:
    """Roundings that a term of a lane sum meets."""
    return -(-d // numerics.LANES) - 1 + 3


def weights(n: int) -> int:
    """Roundings that a weight of n meets in their sum."""
    return lane(numerics.BLOCK) + n_blocks(n) - 1


def values(n: int) -> int:
    """Roundings that a value of n meets in the weighted sum."""
    return 1 + (numerics.BLOCK - 1) + n_blocks(n) - 1


def inv_tau_error(head_dim: int) -> float:
    """Section 1: the relative error of the inverse temperature."""
    return k(lane(head_dim) + 1 + SQRT_ERROR)


def score_error(q: np.ndarray, keys: np.ndarray, factor: float) -> np.ndarray:
    """Section 2, full scores: D, (n,), for q (d,) and keys (n, d)."""
    return k(lane(q.shape[0]) + 2) * (np.abs(keys.astype(float)) @ np.abs(q.astype(float))) * factor


def approx_score_error(q: np.ndarray, keys: np.ndarray, inv_tau: float, head_dim: int) -> np.ndarray:
    """Section 2, approximate scores: D, (n,), for the selected components q (r,) and keys (n, r)."""
    roundings = q.shape[0] - 1 + 1 + lane(head_dim) + 1 + SQRT_ERROR
    return k(roundings) * (np.abs(keys.astype(float)) @ np.abs(q.astype(float))) * inv_tau


def stored_error(index: key_index.KeyIndex, keys: np.ndarray, index_bits: int) -> np.ndarray:
    """Section 2, key index: e, (r, n_blocks), how far a key (r, n) may be from what is stored of it."""
    most = 2**index_bits - 1
    blocks = keys.astype(float).reshape(len(keys), -1, numerics.BLOCK)
    spread = blocks.max(axis=-1) - blocks.min(axis=-1)
    e = np.maximum(index.step.astype(float) / 2, most * 2.0**-25) + k(3) * spread
    return np.where(spread == 0, 0, e)


def coefficient_error(q: np.ndarray, index: key_index.KeyIndex, index_bits: int) -> np.ndarray:
    """Section 2, key index: Q, (n_blocks, 64), from rounding q (r,) times the steps to coefficients."""
    limit = min({8: 2047, 4: 127, 2: 127}[index_bits], (2**24 - 1) // ((2**index_bits - 1) * len(q)))
    v = np.abs(q.astype(float)[:, None] * index.step.astype(float))
    unit = v.max(axis=0) / limit
    return unit[:, None] * (0.5 + limit * k(2)) * index.code.astype(float).sum(axis=0)


def index_score_error(
    q: np.ndarray, index: key_index.KeyIndex, index_bits: int, inv_tau: float, head_dim: int
) -> np.ndarray:
    """Section 2, key index: D, (n,), for the selected components q (r,), from scores with what is stored."""
    size = np.abs(q.astype(float))
    low, step = np.abs(index.low.astype(float)), index.step.astype(float)
    terms = (size @ low)[:, None] + np.einsum("j,jb,jbp->bp", size, step, index.code.astype(float))
    roundings = max(q.shape[0] - 1, 3) + 2 + lane(head_dim) + 1 + SQRT_ERROR
    error = k(roundings) * terms + (1 + k(roundings)) * coefficient_error(q, index, index_bits)
    return (error * inv_tau).reshape(-1)


class Softmax(NamedTuple):
    """Section 3: ends of the logarithm of each weight, up to a common shift, and the ideal probabilities."""

    log_low: np.ndarray  #: (n,), -inf where the weight may be cut to 0
    log_high: np.ndarray  #: (n,)
    p: np.ndarray  #: (n,) ideal probabilities


def softmax(scores: np.ndarray, d: np.ndarray) -> Softmax:
    """Section 3: E and the cut, for ideal scores (n,) and their errors D (n,)."""
    e = d + (54 + EXP_ERROR) * EPS
    may_be_cut = scores - d - (scores + d).max() < -54 * (1 - U)
    p = np.exp(scores - scores.max())
    return Softmax(np.where(may_be_cut, -np.inf, scores - e), scores + e, p / p.sum())


def _others(log: np.ndarray) -> np.ndarray:
    """log of the sum of exp(log) over all entries but one, for each one."""
    before = np.concatenate([[-np.inf], np.logaddexp.accumulate(log)[:-1]])
    after = np.concatenate([np.logaddexp.accumulate(log[::-1])[:-1][::-1], [-np.inf]])
    return np.logaddexp(before, after)


def _share(log_a: np.ndarray, log_rest: np.ndarray) -> np.ndarray:
    """exp(log_a) / (exp(log_a) + exp(log_rest)), without overflow; 0 if both are nothing."""
    with np.errstate(invalid="ignore", over="ignore"):
        share = 1 / (1 + np.exp(log_rest - log_a))
    return np.where(np.isneginf(log_a), 0.0, share)


def position_error(soft: Softmax) -> np.ndarray:
    """Section 3: R, (n,), for each position."""
    low = _share(soft.log_low, _others(soft.log_high))
    high = _share(soft.log_high, _others(soft.log_low))
    return np.maximum(high - soft.p, soft.p - low)


def set_error(soft: Softmax, chosen: np.ndarray) -> float:
    """Section 3: R of a set of positions, given as a mask (n,)."""
    if chosen.all():
        return 0.0
    low_in, high_in = (np.logaddexp.reduce(x[chosen], initial=-np.inf) for x in (soft.log_low, soft.log_high))
    low_out, high_out = (
        np.logaddexp.reduce(x[~chosen], initial=-np.inf) for x in (soft.log_low, soft.log_high)
    )
    p = soft.p[chosen].sum()
    return float(max(_share(high_in, low_out) - p, p - _share(low_in, high_out)))


def attended_error(q: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Section 4: F, (d,), for q (d,), keys and rows of values (n, d)."""
    n, head_dim = keys.shape
    scale = 1 / np.sqrt(head_dim)
    soft = softmax(keys.astype(float) @ q.astype(float) * scale, score_error(q, keys, scale))
    r = position_error(soft)
    v = rows.astype(float)
    middle, half_range = (v.max(axis=0) + v.min(axis=0)) / 2, (v.max(axis=0) - v.min(axis=0)) / 2
    selection = np.minimum(r @ np.abs(v - middle), 2 * half_range)
    rounding = k(values(n) + weights(n) + 1) * (np.minimum(1, soft.p + r) @ np.abs(v))
    return selection + rounding + 2 * FLUSHED


def alpha_error(soft: Softmax, chosen: np.ndarray) -> float:
    """Section 5: C, for the approximate softmax of one head and a mask of the selected positions (n,)."""
    r = set_error(soft, chosen)
    roundings = 2 * weights(len(chosen)) + 1
    return r + k(roundings) * min(1.0, soft.p[chosen].sum() + r) + FLUSHED


def mean_error(rows: np.ndarray) -> np.ndarray:
    """Section 6: M, (d,), for all rows of values (n, d)."""
    return k(len(rows)) * np.abs(rows.astype(float)).mean(axis=0)


def combine_error(
    attended: np.ndarray, alpha: float, mean: np.ndarray, f: np.ndarray, c: float, m: np.ndarray
) -> np.ndarray:
    """Section 7, before narrowing: (d,), from the ideal y3, alpha and mean and their errors F, C and M."""
    a, b = min(1.0, alpha + c), min(1.0, 1 - alpha + c)
    moved = a * f + c * np.abs(attended - mean) + b * m
    return moved + k(2) * a * (np.abs(attended) + f) + k(3) * b * (np.abs(mean) + m)


def narrowing_error(y: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Section 7: `error` of y, plus that of rounding a number so near y to fp16."""
    return error + np.maximum(2.0**-25, 2.0**-11 * (np.abs(y) + error))


class Bounds(NamedTuple):
    """The ideal numbers, given the selections of the exact twin, and bounds of the difference."""

    ideal: dict[str, np.ndarray]
    error: dict[str, np.ndarray]


def sparq(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    lengths: np.ndarray,
    components: np.ndarray,
    positions: np.ndarray,
    with_mean: bool,
    index_bits: int = 16,
) -> Bounds:
    """All sections, for a whole call and the selections of the exact twin.

    The keys of both dictionaries: inv_tau (relative error), scores, attended, alpha, mean, output, with
    shapes as in `layout.Steps`; and merit, the softmax summed over the group with T of section 8, (batch,
    n_kv_heads, seq_len). Beyond a length: nan.
    """
    batch, n_heads, head_dim = query.shape
    n_kv_heads, seq_len = key.shape[1:3]
    group_size = n_heads // n_kv_heads
    inv_tau = ideal.inverse_temperature(query, components)
    scores = ideal.approx_scores(query, key, components, inv_tau, index_bits=index_bits, lengths=lengths)
    soft_weights, soft_sum, _ = ideal.softmax_weights(scores)
    counts = (positions[:, 0] >= 0).sum(axis=-1)
    attended = ideal.gathered_attention(query, key, value, positions, counts)
    alpha = ideal.selected_share(soft_weights, soft_sum, positions)
    mean = ideal.mean_value(ideal.sum_values(value, lengths=lengths), lengths)
    output = ideal.combine(attended, alpha, mean) if with_mean else attended

    merit = np.full((batch, n_kv_heads, seq_len), np.nan)
    numbers = dict(
        inv_tau=inv_tau, scores=scores, attended=attended, alpha=alpha, mean=mean, output=output, merit=merit
    )
    error = {name: np.full(x.shape, np.nan) for name, x in numbers.items()}
    error["inv_tau"][:] = inv_tau_error(head_dim)
    for b, n in enumerate(lengths):
        for h in range(n_heads):
            kv = h // group_size
            chosen = components[b, kv]
            keys, rows = key[b, kv, :n], value[b, kv, :n]
            d = approx_score_error(query[b, h, chosen], keys[:, chosen], inv_tau[b, h], head_dim)
            full = 0 if index_bits == 16 else n // numerics.BLOCK * numerics.BLOCK
            if full:
                index = key_index.quantise(keys[:full].T[chosen], index_bits)
                d[:full] = index_score_error(query[b, h, chosen], index, index_bits, inv_tau[b, h], head_dim)
            soft = softmax(scores[b, h, :n], d)
            r = position_error(soft)
            selected = positions[b, kv, : counts[b]]
            mask = np.zeros(n, bool)
            mask[selected] = True
            f = attended_error(query[b, h], keys[selected], rows[selected])
            c = alpha_error(soft, mask)
            m = mean_error(rows)
            error["scores"][b, h, :n] = d
            error["attended"][b, h] = f
            error["alpha"][b, h] = c
            error["mean"][b, kv] = m
            y = combine_error(attended[b, h], alpha[b, h], mean[b, kv], f, c, m) if with_mean else f
            error["output"][b, h] = narrowing_error(output[b, h], y)
            t = r + k(weights(n) + 1 + group_size - 1) * np.minimum(1, soft.p + r)
            for total, x in ((merit, soft.p), (error["merit"], t)):
                total[b, kv, :n] = np.where(np.isnan(total[b, kv, :n]), 0, total[b, kv, :n]) + x
    return Bounds(numbers, error)
