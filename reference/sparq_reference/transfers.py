# SPDX-License-Identifier: Apache-2.0
"""Elements moved by one decode step of attention, and what follows from them (arXiv:2312.04985, section 2 and appendix G).

Numbers of elements, not bytes, for one KV head of one batch element; multiply by `n_kv_heads * batch` and the bytes of an element.
`seq_len` is the paper's S, `head_dim` d, `rank` r, `top_k` k; `n_local` positions are among the `top_k` and cost nothing more.
"""

from __future__ import annotations


def dense_elements(seq_len: int, head_dim: int) -> int:
    """Dense attention: 2 S d + 2 d. Keys and values of all positions, the query and the output (or the new key and value)."""
    return 2 * seq_len * head_dim + 2 * head_dim


def sparq_elements(seq_len: int, head_dim: int, rank: int, top_k: int) -> int:
    """SparQ attention: S r + 2 k d + 4 d. `rank` components of all keys, `top_k` keys and values, and four rows."""
    return seq_len * rank + 2 * top_k * head_dim + 4 * head_dim


def h2o_elements(seq_len: int, head_dim: int, top_k: int) -> int:
    """H2O (heavy hitters): 2 k d + 2 d + 2 S. The kept keys and values, and a score per position read and written."""
    return 2 * top_k * head_dim + 2 * head_dim + 2 * seq_len


def lm_infinite_elements(head_dim: int, top_k: int) -> int:
    """LM-Infinite (first and last positions): 2 k d + 2 d, whatever the sequence length."""
    return 2 * top_k * head_dim + 2 * head_dim


def flexgen_elements(seq_len: int, head_dim: int, top_k: int) -> int:
    """FlexGen (exact top-k of values): S d + k d + 2 d. All keys, `top_k` values."""
    return seq_len * head_dim + top_k * head_dim + 2 * head_dim


def compression_ratio(elements: int, seq_len: int, head_dim: int) -> float:
    """`elements` of an algorithm over those of dense attention: below 1 is less traffic."""
    return elements / dense_elements(seq_len, head_dim)


def theoretical_speedup(seq_len: int, head_dim: int, rank: int, top_k: int) -> float:
    """Dense over SparQ elements: the speedup if time went into transfers alone."""
    return dense_elements(seq_len, head_dim) / sparq_elements(seq_len, head_dim, rank, top_k)


def _rho(seq_len: int, group_size: int, d_model: int) -> float:
    return seq_len / (group_size * d_model)


def arithmetic_intensity(batch: int, seq_len: int, group_size: int, d_model: int) -> float:
    """Multiply-adds per element moved in a transformer layer: (6 + rho g) / (6 / B + rho), rho = S / (g d_model)."""
    rho = _rho(seq_len, group_size, d_model)
    return (6 + rho * group_size) / (6 / batch + rho)


def attention_share(batch: int, seq_len: int, group_size: int, d_model: int) -> float:
    """Share of a layer's transfers that the KV cache takes: rho / (rho + 6 / B), rho = S / (g d_model)."""
    rho = _rho(seq_len, group_size, d_model)
    return rho / (rho + 6 / batch)
