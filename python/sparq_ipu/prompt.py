# SPDX-License-Identifier: Apache-2.0
"""Causal dense attention of the tokens of a prompt, on a CPU."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from sparq_reference import checks
from sparq_reference.prompt import OP, below, check


def prompt_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    scale: float | None = None,
    integers: bool = False,
    window: int = 0,
    blocks: float = 0.0,
    starts: Sequence[int] | None = None,
    n_threads: int = 0,
    isa: str = "auto",
) -> np.ndarray:
    """Attention of the last n tokens of a text, each to all positions up to its own.

    A row has the same bits however the text is cut into calls, on any number of threads and any instruction
    set (docs/exactness.md, E14).

    Args:
        query: (batch, n_heads, n, head_dim) float32 or float16: of the last n positions.
        key, value: (batch, n_kv_heads, seq_len, head_dim) of the same dtype, seq_len >= n; magnitudes up to
            65504. head_dim is a multiple of 8 of at most 256.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        integers: round queries to integers of 14 bits, keys and values to 13, which is as accurate as
            bfloat16 and about twice as fast; else compute in float32.
        window: most recent positions that a token sees, itself included; 0: all.
        blocks: a row leaves out a block of 64 positions none of which has this share of the sum of its
            weights (E16), e.g. 0.0003: faster, and other bits. 0: no block is left out.
        starts: (batch,) tokens of padding before the text of each batch element; None: none.
        n_threads: 0: OMP_NUM_THREADS, else all processors.
        isa: instruction set, as of `KVCache`.

    Returns:
        (batch, n, n_heads, head_dim) of the same dtype, bit for bit that of `sparq_reference.prompt`; 0 where
        padding is.

    Raises:
        ValueError: shapes, dtypes or settings that do not fit, NaN or infinity.
    """
    from sparq_ipu import _cpu

    factor = check(query, key, value, scale, window, blocks, starts)
    for name, x in (("query", query), ("key", key), ("value", value)):
        checks.check_finite(OP, name, x)
    query, key, value = (x if x.strides[-1] == x.itemsize else x.copy() for x in (query, key, value))
    batch, n_heads, n, head_dim = query.shape
    output = np.zeros((batch, n, n_heads, head_dim), query.dtype)
    _cpu.prompt_attention(
        query.dtype.name,
        _place(query),
        _place(key),
        _place(value),
        (batch, n_heads, key.shape[1], n, key.shape[2], head_dim),
        integers=integers,
        scale=float(factor),
        window=window,
        below=float(below(blocks)),
        starts=[] if starts is None else [int(start) for start in starts],
        output=output.ctypes.data,
        n_threads=n_threads,
        isa=isa,
    )
    return output


def _place(x: np.ndarray) -> tuple[int, int, int, int]:
    """Address, and bytes from one batch element, head and token to the next."""
    batch, head, token = x.strides[:3]
    return x.ctypes.data, batch, head, token
