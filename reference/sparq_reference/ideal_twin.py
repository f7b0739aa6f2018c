# SPDX-License-Identifier: Apache-2.0
"""The ideal twin: attention in float64, straight from the paper, with NumPy's own sums, exp and sqrt.

Any floating point and any head_dim in, float64 out, not saturated. `exact_twin` rounds the same steps as the
contract of docs/exactness.md says.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import key_index, numerics
from sparq_reference.twin import Twin, all_lengths


def _double(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64)


class Ideal(Twin):
    """The arithmetic of the paper."""

    is_exact = False
    dtype = output_dtype = share_dtype = np.float64

    def _widen(self, x: np.ndarray) -> np.ndarray:
        return _double(x)

    def _narrow(self, x: np.ndarray) -> np.ndarray:
        return x

    def _group_sum(self, x: np.ndarray, n_kv_heads: int) -> np.ndarray:
        total: np.ndarray = _double(x).reshape(x.shape[0], n_kv_heads, -1, x.shape[2]).sum(axis=2)
        return total

    def inverse_temperature(self, query: np.ndarray, components: np.ndarray) -> np.ndarray:
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

    def _scores(self, query: np.ndarray, columns: np.ndarray, index_bits: int) -> np.ndarray:
        if index_bits != 16:
            n_index = columns.shape[1] // numerics.BLOCK * numerics.BLOCK
            index = key_index.quantise(columns[:, :n_index], index_bits)
            stored = _double(index.low)[..., None] + _double(index.step)[..., None] * _double(index.code)
            stored = stored.reshape(len(columns), n_index)
            columns = np.concatenate([stored, _double(columns[:, n_index:])], 1)
        scores: np.ndarray = query @ _double(columns)
        return scores

    def softmax_weights(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = _double(scores)
        maximum = scores.max(axis=-1)
        weights = np.exp(scores - maximum[..., None])
        return weights, weights.sum(axis=-1), maximum

    def _attend(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = _double(query) @ _double(key).T / np.sqrt(query.shape[1])
        weights, weight_sum, _ = self.softmax_weights(scores)
        attended: np.ndarray = (weights @ _double(value)) / weight_sum[:, None]
        return attended, weights, weight_sum

    def selected_share(
        self, weights: np.ndarray, weight_sum: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        rows = np.repeat(positions, weights.shape[1] // positions.shape[1], axis=1)
        selected = np.take_along_axis(weights, np.maximum(rows, 0), axis=-1)
        total = np.where(rows < 0, 0.0, selected).sum(axis=-1)
        alpha: np.ndarray = np.minimum(1.0, total / weight_sum)
        return alpha

    def sum_values(
        self, value: np.ndarray, *, lengths: np.ndarray | None = None, initial: np.ndarray | None = None
    ) -> np.ndarray:
        lengths = all_lengths(value, lengths)
        total = np.stack([_double(value[b, :, :n]).sum(axis=1) for b, n in enumerate(lengths)])
        return total if initial is None else total + initial

    def shares_of(self, weights: np.ndarray, weight_sum: np.ndarray) -> np.ndarray:
        total: np.ndarray = (weights / weight_sum[:, None]).sum(axis=0)
        return total


ideal = Ideal()
