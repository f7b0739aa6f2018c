# SPDX-License-Identifier: Apache-2.0
"""Elements and bytes moved by one decode step of attention, and speedups from them (arXiv:2312.04985v6).

All for one KV head of one batch element: multiply by batch * n_kv_heads. The paper counts elements. A key
index of 8, 4 or 2 bits (docs/exactness.md E9) has smaller elements, so compare bytes there. `seq_len`
is the paper's S, `head_dim` d_h, `rank` r, `top_k` k, `d_model` d_m, and `index_bits` b; local positions are
among the `top_k` and cost nothing more.
"""

from __future__ import annotations

from sparq_reference.checks import check_index_bits, check_row_bits
from sparq_reference.numerics import BLOCK

#: of keys, values and the mean value row: fp16
ELEMENT_BYTES = 2
#: of low and step, which a component of a full block stores beside its codes
SCALE_BYTES = 4


def dense_elements(seq_len: int, head_dim: int) -> int:
    """Dense attention, equation 3: 2 S d + 2 d. Reads all keys and values, writes the new key and value."""
    return 2 * seq_len * head_dim + 2 * head_dim


def sparq_elements(seq_len: int, head_dim: int, rank: int, top_k: int) -> int:
    """SparQ attention, equation 11: S r + 2 k d + 4 d.

    Reads `rank` components of all keys, then `top_k` keys and values; writes the new key and value; reads and
    writes the mean value row.
    """
    return seq_len * rank + 2 * top_k * head_dim + 4 * head_dim


def dense_bytes(seq_len: int, head_dim: int, row_bits: int = 16) -> int:
    """Dense attention in bytes: `row_bytes` of all positions + 2 (2 d) for the new key and value."""
    return seq_len * row_bytes(head_dim, row_bits) + ELEMENT_BYTES * dense_elements(0, head_dim)


def index_bytes(seq_len: int, n_components: int, index_bits: int = 16) -> int:
    """n_components of the key index, n below, of all positions. 16 bits: 2 S n. b = 8, 4 or 2 bits, F =
    floor(S / 64) full blocks: F n (64 b / 8 + 4) + 2 (S - 64 F) n, of which the 4 are `low` and `step`."""
    bits = check_index_bits("index_bytes", index_bits, n_components)
    n_blocks = 0 if bits == 16 else seq_len // BLOCK
    of_component = n_blocks * (BLOCK // 8 * bits + SCALE_BYTES) + ELEMENT_BYTES * (seq_len - n_blocks * BLOCK)
    return n_components * of_component


def sparq_bytes(
    seq_len: int, head_dim: int, rank: int, top_k: int, index_bits: int = 16, row_bits: int = 16
) -> int:
    """SparQ attention in bytes: `index_bytes` of `rank` components + `row_bytes` of k positions + 2 (4 d).
    That the new key enters the index too is not counted, as in equation 11, where keys are kept in two
    layouts."""
    of_rows = top_k * row_bytes(head_dim, row_bits) + ELEMENT_BYTES * sparq_elements(0, head_dim, 0, 0)
    return index_bytes(seq_len, rank, index_bits) + of_rows


def row_bytes(head_dim: int, row_bits: int = 16) -> int:
    """Key and value of a position: 4 d, or with 8 bits 2 d and, as a device keeps them, 2 scales of 2 bytes
    for every 32 components of the key and of the value."""
    bits = check_row_bits("row_bytes", row_bits)
    return 2 * head_dim * ELEMENT_BYTES if bits == 16 else 2 * (head_dim + 4 * -(-head_dim // 32))


def theoretical_speedup(seq_len: int, head_dim: int, rank: int, top_k: int, index_bits: int = 16) -> float:
    """Speedup if time went into reading the cache alone: 2 S d / (S r + 2 k d), both in bytes.

    These are the numbers that the paper calls theoretical speedups: 7.53 for S = 16384, r = 32, k = 128
    (section 6.1). Rows that do not grow with S or k are left out; with them, `dense_elements` over
    `sparq_elements` is 7.52. A key index of 8 and 4 bits gives 13.47 and 23.27.
    """
    dense = 2 * seq_len * head_dim * ELEMENT_BYTES
    index = index_bytes(seq_len, rank, index_bits)
    return dense / (index + 2 * top_k * head_dim * ELEMENT_BYTES)
