# SPDX-License-Identifier: Apache-2.0
"""What the tests of vertices share that read or write the key index of 8, 4 or 2 bits (contract E9)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from strategies import tensors
from vertex import WORD_POISON, floats

from sparq_reference import key_index

GROUP, HEAD_DIM = 3, 16
BITS = (8, 4, 2)
INT_POISON = WORD_POISON.view(np.int32)


def record_words(bits: int) -> int:
    return 64 * bits // 32 + 1


def records(columns: np.ndarray, bits: int) -> np.ndarray:
    """(n, positions) float16 -> (n, blocks * record) uint32, written from the comment of key_index.hpp."""
    index = key_index.quantise(columns, bits)
    per_word = 32 // bits
    codes = index.code.reshape(*index.code.shape[:2], -1, per_word).astype(np.uint32)
    packed = (codes << (np.arange(per_word, dtype=np.uint32) * np.uint32(bits))).sum(-1, dtype=np.uint32)
    low = index.low + np.float16(0)  # zero has one sign here
    last = index.step.view(np.uint16) | low.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return np.concatenate([packed, last[..., None]], axis=-1).reshape(len(columns), -1)


def without_sign_of_zero(words_: np.ndarray, bits: int) -> np.ndarray:
    """The lowest value of a block may be either zero (E9)."""
    result = words_.reshape(len(words_), -1, record_words(bits)).copy()
    last = result[..., -1]
    last[last >> np.uint32(16) == 0x8000] &= np.uint32(0xFFFF)
    return result.reshape(words_.shape)


def some_columns(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    columns = tensors(kind, shape, rng)
    columns[0] = columns[0, 0]  # a component that does not vary
    return columns


class Problem(NamedTuple):
    columns: np.ndarray  # (rank, positions) float16
    query: np.ndarray  # (group, rank) float32
    inverse_temperature: np.ndarray  # (group,) float32
    limit: float
    bits: int

    def scores(self) -> np.ndarray:
        index = key_index.quantise(self.columns, self.bits)
        return key_index.block_scores(self.query, index, self.bits) * self.inverse_temperature[:, None]

    def settings(self) -> dict[str, int]:
        rank, positions = self.columns.shape
        return dict(
            groupSize=GROUP,
            rank=rank,
            indexBits=self.bits,
            columnWords=positions // 64 * record_words(self.bits),
        )


def make_problem(kind: str, bits: int, rank: int, n_blocks: int, seed: int, group: int = GROUP) -> Problem:
    rng = np.random.default_rng(seed)
    query = tensors(kind, (group, rank), rng).astype(np.float32)
    query[1] = 0
    return Problem(
        some_columns(kind, (rank, 64 * n_blocks), rng),
        query,
        np.resize(np.array([0.125, 0.3, 1.7], np.float32), group),
        float(key_index.coefficient_limit(bits, rank)),
        bits,
    )


def coefficients(n_blocks: int, rank: int) -> dict[str, np.ndarray]:
    return dict(
        coefficients=np.full((n_blocks, GROUP, rank), INT_POISON),
        units=floats(n_blocks, GROUP),
        offsets=floats(n_blocks, GROUP),
    )
