# SPDX-License-Identifier: Apache-2.0
"""Chooses the components of a head for a key index that holds some of them (docs/exactness.md, E13).

Such an index holds the first components. A dot product does not depend on the order of its components, so
keys and queries are put in the order that is wanted before they come to the cache; values stay as they are.
"""

from __future__ import annotations

import numpy as np


def by_prompt(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The components that matter most to the queries of a prompt come first: by the mean of |q|, summed over
    the heads of a group, times the standard deviation of the keys, which is what a component adds to the
    differences between scores.

    Args:
        query: (batch, n_heads, n_tokens, head_dim), of any tokens of the prompt; the last few hundred do.
        key: (batch, n_kv_heads, seq_len, head_dim), of all positions.

    Returns:
        (batch, n_kv_heads, head_dim) int64, each head's components in the new order; equal ones by lower
        index.
    """
    batch, n_kv_heads, _, head_dim = key.shape
    magnitude = np.abs(query.astype(np.float64)).mean(axis=2)
    magnitude = magnitude.reshape(batch, n_kv_heads, -1, head_dim).sum(axis=2)
    spread = key.astype(np.float64).std(axis=2)
    return np.argsort(-magnitude * spread, axis=-1, kind="stable").astype(np.int64)


def reorder(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Keys or queries (batch, heads, ..., head_dim) with their components in the order of `by_prompt`."""
    order = np.repeat(order, rows.shape[1] // order.shape[1], axis=1)
    shape = (*order.shape[:2], *(1,) * (rows.ndim - 3), order.shape[2])
    return np.take_along_axis(rows, order.reshape(shape), axis=-1)
