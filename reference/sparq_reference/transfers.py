# SPDX-License-Identifier: Apache-2.0
"""Elements moved by one decode step of attention, and what follows from them (arXiv:2312.04985v6).

Numbers of elements, not bytes, for one KV head of one batch element: multiply by batch * n_kv_heads and the
bytes of an element. `seq_len` is the paper's S, `head_dim` d_h, `rank` r, `top_k` k, `d_model` d_m; local
positions are among the `top_k` and cost nothing more.
"""

from __future__ import annotations


def dense_elements(seq_len: int, head_dim: int) -> int:
    """Dense attention, equation 3: 2 S d + 2 d. Reads all keys and values, writes the new key and value."""
    return 2 * seq_len * head_dim + 2 * head_dim


def sparq_elements(seq_len: int, head_dim: int, rank: int, top_k: int) -> int:
    """SparQ attention, equation 11: S r + 2 k d + 4 d.

    Reads `rank` components of all keys, then `top_k` keys and values; writes the new key and value; reads and
    writes the mean value row.
    """
    return seq_len * rank + 2 * top_k * head_dim + 4 * head_dim


def h2o_elements(seq_len: int, head_dim: int, top_k: int) -> int:
    """H2O (heavy hitters), appendix G: 2 k d + 2 d + 2 S. The 2 S are the scores it accumulates."""
    return 2 * top_k * head_dim + 2 * head_dim + 2 * seq_len


def lm_infinite_elements(head_dim: int, top_k: int) -> int:
    """LM-Infinite (first and last positions), appendix G: 2 k d + 2 d, whatever the sequence length."""
    return 2 * top_k * head_dim + 2 * head_dim


def flexgen_elements(seq_len: int, head_dim: int, top_k: int) -> int:
    """FlexGen (exact top-k), appendix G: S d + k d + 2 d. All keys, `top_k` values."""
    return seq_len * head_dim + top_k * head_dim + 2 * head_dim


def compression_ratio(elements: int, seq_len: int, head_dim: int) -> float:
    """`elements` of an algorithm over those of dense attention, appendix G; below 1 is less traffic."""
    return elements / dense_elements(seq_len, head_dim)


def theoretical_speedup(seq_len: int, head_dim: int, rank: int, top_k: int) -> float:
    """Speedup if time went into reading the cache alone: 2 S d / (S r + 2 k d).

    These are the numbers that the paper calls theoretical speedups: at d = 128, r = 32, k = 128, section
    6.1 has 7.53 for S = 16384 and table 4 has 6.4 for S = 4096. The few rows that do not grow with S or k
    are left out: an attention kernel does not write the new key and value, and the mean value stays
    beside it. With them, by equations 3 and 11, the inverse of `compression_ratio` is 7.52 and 6.38.
    """
    return 2 * seq_len * head_dim / (seq_len * rank + 2 * top_k * head_dim)


def _rho(seq_len: int, group_size: int, d_model: int) -> float:
    return seq_len / (group_size * d_model)


def arithmetic_intensity(batch: int, seq_len: int, group_size: int, d_model: int) -> float:
    """Multiply-adds per element moved, equation C2: (6 + rho g) / (6 / B + rho), rho = S / (g d_m)."""
    rho = _rho(seq_len, group_size, d_model)
    return (6 + rho * group_size) / (6 / batch + rho)


def attention_share(batch: int, seq_len: int, group_size: int, d_model: int) -> float:
    """Share of transfers that attention takes, equation 1: rho / (rho + 6 / B), rho = S / (g d_m)."""
    rho = _rho(seq_len, group_size, d_model)
    return rho / (rho + 6 / batch)
