# SPDX-License-Identifier: Apache-2.0
"""The intermediates that the twins return, and the way they walk over heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


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
