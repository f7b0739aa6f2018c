# SPDX-License-Identifier: Apache-2.0
"""Inputs of the attention benchmarks: random and repeatable, or real ones from a file."""

from __future__ import annotations

import functools
import statistics
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparq_reference import CacheSpec, checks


class Inputs(NamedTuple):
    """Tensors of one decode step, float16."""

    query: np.ndarray  #: (batch, n_heads, head_dim)
    key: np.ndarray  #: (batch, n_kv_heads, seq_len, head_dim)
    value: np.ndarray  #: (batch, n_kv_heads, seq_len, head_dim)


def random_inputs(spec: CacheSpec, n_heads: int, seed: int) -> Inputs:
    """Standard normal values for a full cache. The same seed gives the same values on any number of threads.

    Raises:
        ValueError: n_heads is not a multiple of n_kv_heads.
    """
    batch, n_kv_heads, seq_len, head_dim = spec.batch, spec.n_kv_heads, spec.capacity, spec.head_dim
    if n_heads < 1 or n_heads % n_kv_heads:
        checks.fail("inputs", "n_heads", f"be a multiple of n_kv_heads={n_kv_heads}", n_heads)
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
    spec: CacheSpec, seed: int, element: int, block: int, n_positions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values (n_kv_heads, n_positions, head_dim) of one block of positions of one element of a
    batch: for caches too large to be held twice. A few times faster to make than `random_inputs`."""
    rng = np.random.default_rng((seed, element, block))
    index = rng.integers(0, 65536, (2, spec.n_kv_heads, n_positions, spec.head_dim), np.uint16)
    key, value = normal_quantiles()[index]
    return key, value


def _npz(path: Path) -> Any:
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):  # NumPy would speak of pickle
            checks.fail("inputs", "file", "be an .npz file", path)
    return np.load(path)


def _array(arrays: Any, name: str) -> np.ndarray:
    try:
        array: np.ndarray = arrays[name]
    except (ValueError, OSError, zipfile.BadZipFile) as error:  # objects; or bytes that are none of NumPy's
        text = "objects" if "allow_pickle" in str(error) else error
        checks.fail("inputs", name, "be an array of numbers", text)
    return array


def load_inputs(path: Path, layer: int | None = None, seq_len: int | None = None) -> Inputs:
    """Inputs of one layer of a model, from a file with arrays query_L (batch, n_heads, n_queries, head_dim),
    key_L and value_L (batch, n_kv_heads, positions, head_dim), float16. The query is the last one; the
    positions are the last `seq_len`.

    Raises:
        ValueError: no .npz file with such arrays, no such layer, fewer positions than `seq_len`, or an array
            of another dtype.
        OSError: the file can not be read.
    """
    names = ("query", "key", "value")
    with _npz(path) as arrays:
        files = set(arrays.files)
        found = (name[4:] for name in files if name.startswith("key_") and name[4:].isdigit())
        layers = sorted(int(number) for number in found if {f"{name}_{number}" for name in names} <= files)
        if not layers:
            rule = "hold arrays query_L, key_L and value_L of a layer L"
            checks.fail("inputs", "file", rule, f"{sorted(files)} in {path}")
        layer = layers[0] if layer is None else layer
        if layer not in layers:
            checks.fail("inputs", "layer", f"be one of {layers}", layer)
        query, key, value = (_array(arrays, f"{name}_{layer}") for name in names)
    axes = key.ndim
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.dtype != np.float16:
            checks.fail("inputs", f"{name}_{layer}", "be float16", array.dtype)
        if array.ndim not in (3, 4) or array.ndim != axes or array.size == 0:
            rule = "have 4 dimensions, or 3 without the batch, as the other arrays do, none of them 0"
            checks.fail("inputs", f"{name}_{layer}", rule, array.shape)
    if key.ndim == 3:  # one batch element, and query (n_queries, n_heads, head_dim)
        query, key, value = query.transpose(1, 0, 2)[None], key[None], value[None]
    available = key.shape[2]
    seq_len = available if seq_len is None else seq_len
    if not 1 <= seq_len <= available:
        checks.fail("inputs", "seq_len", f"be in [1, {available}], the positions in {path}", seq_len)
    first = available - seq_len
    return Inputs(
        np.ascontiguousarray(query[:, :, -1]),
        np.ascontiguousarray(key[:, :, first:]),
        np.ascontiguousarray(value[:, :, first:]),
    )
