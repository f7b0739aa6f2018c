# SPDX-License-Identifier: Apache-2.0
"""The key index in planes of bits, of which a query reads those that it needs (index_read_bits above 0).

Rule E12 of docs/exactness.md. The numbers stored are those of `key_index`; here are the words that hold them,
how many planes of each component a query reads, and what is known of the codes then. Both twins share all of
it but the weights of components, which each of them adds up for itself.
"""

from __future__ import annotations

import numpy as np

from sparq_reference.numerics import BLOCK

#: positions of a word
WORD = 32


def store(code: np.ndarray, index_bits: int) -> np.ndarray:
    """The planes of codes: words of one bit of 32 consecutive positions each.

    Bit i of word w in plane t of a block is bit index_bits - 1 - t of the code of position 32 w + i. So
    plane 0 is the most significant.

    Args:
        code: (n_components, n_blocks, 64) uint8, of `key_index.quantise`.

    Returns:
        (n_components, index_bits, n_blocks, 2) uint32: a component's first planes are one run of words.
    """
    plane = np.arange(index_bits)[:, None, None]
    bits = (code[:, None] >> (index_bits - 1 - plane)) & 1
    places = np.left_shift(
        bits.reshape(*bits.shape[:-1], BLOCK // WORD, WORD).astype(np.int64), np.arange(WORD)
    )
    words: np.ndarray = places.sum(axis=-1).astype(np.uint32)
    return words


def largest_steps(step: np.ndarray) -> np.ndarray:
    """What a component's weight is made with: the largest step of its full blocks, 1 where there are none.

    step (n_components, n_blocks) float16 -> (n_components,) float16. A cache keeps it: a block that becomes
    full can only raise it.
    """
    if step.shape[1] == 0:
        return np.ones(step.shape[0], np.float16)
    largest: np.ndarray = step.max(axis=1)
    return largest


def depths(weight: np.ndarray, *, rank: int, index_bits: int, read_bits: int) -> np.ndarray:
    """How many planes of each component a query reads: the `read_bits` that count most.

    Of the `rank` components with the largest weights, plane t counts weight * 2**-t: each halves what is
    unknown. Equal ones by lower component, then the plane above first. Where there are no more planes than
    `read_bits`, all are read.

    weight (..., head_dim), of any floating dtype, 0 or more -> (..., head_dim) int64 in [0, index_bits].
    """
    offered = np.argsort(-weight, axis=-1, kind="stable")[..., :rank]
    offered = np.sort(offered, axis=-1)
    count = np.ldexp(np.take_along_axis(weight, offered, axis=-1)[..., None], -np.arange(index_bits))
    count = count.reshape(*weight.shape[:-1], -1)
    taken = np.argsort(-count, axis=-1, kind="stable")[..., :read_bits]
    read = np.zeros(count.shape, np.int64)
    np.put_along_axis(read, taken, 1, axis=-1)
    depth = np.zeros(weight.shape, np.int64)
    np.put_along_axis(depth, offered, read.reshape(*offered.shape, index_bits).sum(axis=-1), axis=-1)
    return depth


def components(depth: np.ndarray, rank: int) -> np.ndarray:
    """Those that are read: (..., head_dim) -> (..., rank) int64, ascending, padded with -1."""
    head_dim = depth.shape[-1]
    index = np.sort(np.where(depth > 0, np.arange(head_dim), head_dim), axis=-1)[..., :rank]
    return np.where(index < head_dim, index, -1)


def read(words: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Codes of which the first `depth` planes were read, with 0 for the other bits.

    Args:
        words: (n_components, index_bits, n_blocks, 2) uint32, of `store`.
        depth: (n_components,) planes in [0, index_bits]; words behind them are not looked at.

    Returns:
        (n_components, n_blocks, 64) uint8.
    """
    n_components, index_bits, n_blocks, _ = words.shape
    code = np.zeros((n_components, n_blocks, BLOCK), np.uint8)
    for c, planes in enumerate(depth):
        for t in range(planes):
            bit = (words[c, t, :, :, None] >> np.arange(WORD, dtype=np.uint32)) & np.uint32(1)
            code[c] |= (bit.reshape(n_blocks, BLOCK) << np.uint32(index_bits - 1 - t)).astype(np.uint8)
    return code


def unread(depth: np.ndarray, index_bits: int) -> np.ndarray:
    """By how much a code may be above what was read of it: 2**(index_bits - depth) - 1, int64."""
    most: np.ndarray = (1 << (index_bits - depth)) - 1
    return most
