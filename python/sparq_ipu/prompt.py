# SPDX-License-Identifier: Apache-2.0
"""Causal dense attention of the tokens of a prompt, on a CPU."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from sparq_reference import checks
from sparq_reference.prompt import OP, check


def prompt_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    scale: float | None = None,
    integers: bool = False,
    window: int = 0,
    blocks: float = 0.0,
    blocks_from: int = 0,
    starts: Sequence[int] | None = None,
    n_threads: int = 0,
    isa: str = "auto",
) -> np.ndarray:
    """Attention of the last n tokens of a text, each to all positions up to its own, by the CPU kernels: bit
    for bit `sparq_reference.prompt.prompt_attention`, which lists the other arguments and the result.

    A row has the same bits however the text is cut into calls, on any number of threads and any instruction
    set (docs/exactness.md, E14).

    Args:
        n_threads: 0: OMP_NUM_THREADS, else all processors.
        isa: instruction set, as of `KVCache`.

    Raises:
        ValueError: shapes, dtypes or settings that do not fit, NaN or infinity.
    """
    from sparq_ipu import _cpu

    factor = check(query, key, value, scale, window, blocks, blocks_from, starts)
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
        blocks=float(blocks),
        blocks_from=blocks_from,
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
