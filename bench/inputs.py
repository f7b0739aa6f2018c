# SPDX-License-Identifier: Apache-2.0
"""Inputs of the attention benchmarks: random and repeatable, or real ones from a file."""

from __future__ import annotations

import functools
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Inputs(NamedTuple):
    """Tensors of one decode step, float16."""

    query: np.ndarray  #: (batch, n_heads, head_dim)
    key: np.ndarray  #: (batch, n_kv_heads, seq_len, head_dim)
    value: np.ndarray  #: (batch, n_kv_heads, seq_len, head_dim)


def random_inputs(
    batch: int, n_heads: int, n_kv_heads: int, seq_len: int, head_dim: int, seed: int
) -> Inputs:
    """Standard normal values. The same seed gives the same values on any number of threads.

    Raises:
        ValueError: n_heads is not a multiple of n_kv_heads.
    """
    if n_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"inputs: n_heads must be a multiple of n_kv_heads={n_kv_heads}, got {n_heads}")
    key = np.empty((batch, n_kv_heads, seq_len, head_dim), np.float16)
    value = np.empty_like(key)
    seeds = np.random.SeedSequence(seed).spawn(1 + batch * n_kv_heads)

    def fill(task: int) -> None:
        rng = np.random.default_rng(seeds[1 + task])
        b, h = divmod(task, n_kv_heads)
        key[b, h] = rng.standard_normal((seq_len, head_dim), dtype=np.float32)
        value[b, h] = rng.standard_normal((seq_len, head_dim), dtype=np.float32)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(batch * n_kv_heads)))
    query = np.random.default_rng(seeds[0]).standard_normal((batch, n_heads, head_dim), dtype=np.float32)
    return Inputs(query.astype(np.float16), key, value)


@functools.lru_cache(maxsize=1)
def normal_quantiles() -> np.ndarray:
    """The standard normal distribution in 65536 equally likely values, float16."""
    inverse = statistics.NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / 65536) for i in range(65536)], np.float16)


def random_positions(
    element: int, block: int, n_kv_heads: int, n_positions: int, head_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values (n_kv_heads, n_positions, head_dim) of one block of positions of one element of a
    batch: for caches too large to be held twice. A few times faster to make than `random_inputs`."""
    rng = np.random.default_rng((element, block))
    index = rng.integers(0, 65536, (2, n_kv_heads, n_positions, head_dim), np.uint16)
    key, value = normal_quantiles()[index]
    return key, value


def load_inputs(path: Path, layer: int | None = None, seq_len: int | None = None) -> Inputs:
    """Inputs of one layer of a model, from a file with arrays query_L (batch, n_heads, n_queries, head_dim),
    key_L and value_L (batch, n_kv_heads, positions, head_dim), float16. The query is the last one; the
    positions are the last `seq_len`.

    Raises:
        ValueError: no such layer, fewer positions than `seq_len`, or an array of another dtype.
        OSError: the file can not be read.
    """
    with np.load(path) as arrays:
        layers = sorted(int(name[4:]) for name in arrays.files if name.startswith("key_"))
        if not layers:
            raise ValueError(
                f"inputs: {path} must hold arrays query_L, key_L and value_L, got {arrays.files}"
            )
        layer = layers[0] if layer is None else layer
        if layer not in layers:
            raise ValueError(f"inputs: layer must be one of {layers}, got {layer}")
        query, key, value = (arrays[f"{name}_{layer}"] for name in ("query", "key", "value"))
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.dtype != np.float16:
            raise ValueError(f"inputs: {name}_{layer} must be float16, got {array.dtype}")
    if key.ndim == 3:  # one batch element, and query (n_queries, n_heads, head_dim)
        query, key, value = query.transpose(1, 0, 2)[None], key[None], value[None]
    available = key.shape[2]
    seq_len = available if seq_len is None else seq_len
    if not 1 <= seq_len <= available:
        raise ValueError(f"inputs: S must be in [1, {available}], the positions in {path}, got {seq_len}")
    first = available - seq_len
    return Inputs(
        np.ascontiguousarray(query[:, :, -1]),
        np.ascontiguousarray(key[:, :, first:]),
        np.ascontiguousarray(value[:, :, first:]),
    )


def git_revision() -> str | None:
    """The commit of this checkout, with "+" where it has changes; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")
