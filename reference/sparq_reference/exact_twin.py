# SPDX-License-Identifier: Apache-2.0
"""The exact twin: attention as the contract of docs/exactness.md rounds it, bit for bit.

float16 in and out, float32 between. `ideal_twin` computes the same steps in float64.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import key_index, numerics, window
from sparq_reference.numerics import to_half, widen
from sparq_reference.twin import Twin, all_lengths


class Exact(Twin):
    """The arithmetic of the contract."""

    is_exact = True
    dtype = np.float32
    output_dtype = np.float16
    share_dtype = np.uint32

    def _widen(self, x: np.ndarray) -> np.ndarray:
        return widen(x)

    def _narrow(self, x: np.ndarray) -> np.ndarray:
        return to_half(x)

    def _group_sum(self, x: np.ndarray, n_kv_heads: int) -> np.ndarray:
        return numerics.group_sum(x, n_kv_heads)

    def inverse_temperature(self, query: np.ndarray, components: np.ndarray) -> np.ndarray:
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

    def _scores(self, query: np.ndarray, columns: np.ndarray, index_bits: int) -> np.ndarray:
        columns = np.ascontiguousarray(columns)
        n_index = 0 if index_bits == 16 else columns.shape[1] // numerics.BLOCK * numerics.BLOCK
        total = np.zeros((query.shape[0], columns.shape[1]), np.float32)
        if n_index:
            index = key_index.quantise(columns[:, :n_index], index_bits)
            total[:, :n_index] = key_index.block_scores(query, index, index_bits)
        for j in range(len(columns)):
            total[:, n_index:] += query[:, j, None] * widen(columns[j, n_index:])
        return total

    def softmax_weights(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = widen(scores)
        maximum = scores.max(axis=-1)
        weights = numerics.softmax_weight(scores - maximum[..., None])
        return weights, numerics.fold_blocks(numerics.block_sums(weights)), maximum

    def _attend(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q = widen(query)
        scores = np.empty((q.shape[0], key.shape[0]), np.float32)
        for start in range(0, key.shape[0], numerics.CHUNK):
            rows = widen(key[start : start + numerics.CHUNK])
            for head in range(q.shape[0]):
                scores[head, start : start + len(rows)] = numerics.dot(q[head], rows)
        weights, weight_sum, _ = self.softmax_weights(scores * numerics.scale(q.shape[1]))
        attended: np.ndarray = numerics.flush(numerics.weighted_sum(weights, value)) / weight_sum[:, None]
        return attended, weights, weight_sum

    def selected_share(
        self, weights: np.ndarray, weight_sum: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        group_size = weights.shape[1] // positions.shape[1]
        chosen = np.zeros((*positions.shape[:2], weights.shape[-1] + 1), bool)
        np.put_along_axis(chosen, positions, True, axis=-1)  # padding, -1, marks the entry that is cut off
        selected = np.where(np.repeat(chosen[..., :-1], group_size, axis=1), weights, np.float32(0))
        total = numerics.fold_blocks(numerics.block_sums(selected))
        alpha: np.ndarray = np.minimum(np.float32(1), numerics.flush(total / weight_sum))
        return alpha

    def sum_values(
        self, value: np.ndarray, *, lengths: np.ndarray | None = None, initial: np.ndarray | None = None
    ) -> np.ndarray:
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

    def shares_of(self, weights: np.ndarray, weight_sum: np.ndarray) -> np.ndarray:
        units = weights / weight_sum[:, None] * np.float32(window.UNITS)
        total: np.ndarray = key_index.round_to_integer(units).astype(np.uint32).sum(axis=0, dtype=np.uint32)
        return total


exact = Exact()
