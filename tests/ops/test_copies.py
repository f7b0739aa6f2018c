# SPDX-License-Identifier: Apache-2.0
"""Copies of a `KVCache` and unpickled ones: the same bits, and nothing shared."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable

import numpy as np
import pytest

import sparq_ipu

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

SETTINGS = dict(rank=4, top_k=12, n_local=2)
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": dict(n_threads=2, isa="portable"),
    "emulator": dict(n_tiles=16),
    "reference": {},
}
DEVICES = [device for device in OPTIONS if device in sparq_ipu.available_devices()]


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def pickled(cache: sparq_ipu.KVCache) -> sparq_ipu.KVCache:
    same: sparq_ipu.KVCache = pickle.loads(pickle.dumps(cache))
    return same


def everything(cache: sparq_ipu.KVCache, seed: int) -> list[bytes]:
    """Bits of what it holds and of what it computes."""
    query = draw(seed, 2, 4, 16)
    outputs = sparq_ipu.sparq_attention(query, cache, **SETTINGS), sparq_ipu.dense_attention(query, cache)
    return [array.tobytes() for array in (*cache.read(), cache.lengths, *outputs)]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_is_the_same_cache(
    device: str, index_bits: int, duplicate: Callable[[sparq_ipu.KVCache], sparq_ipu.KVCache]
) -> None:
    """With a past of several calls, lengths at and beyond the end of a block, before and after attention."""
    cache = sparq_ipu.KVCache(2, 2, 16, 140, device=device, index_bits=index_bits, **OPTIONS[device])
    for seed, counts in enumerate(([40, 63], [30, 1], [0, 60])):
        cache.append(draw(seed, 2, 2, 63, 16), draw(9 + seed, 2, 2, 63, 16), np.array(counts))
    cache.reorder(np.array([1, 0]))
    copies = [duplicate(cache)]
    expected = everything(cache, 50)
    copies.append(duplicate(cache))
    for same in copies:
        assert (same.spec, same.device, same.check_finite) == (cache.spec, device, True)
        assert everything(same, 50) == expected
    token = draw(60, 2, 2, 1, 16)
    for same in (cache, *copies):  # one after the other: what one gets, the others do not have
        assert same.lengths.tolist() == [124, 70]
        same.append(token, token)
        same.append(-token, token, np.array([1, 0]))
    first, *others = (everything(same, 51) for same in (cache, *copies))
    assert others == [first, first] and first != expected
    cache.reset()
    assert copies[0].lengths.tolist() == [126, 71]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@pytest.mark.parametrize("device", DEVICES)
def test_options_are_copied(device: str, duplicate: Callable[[sparq_ipu.KVCache], sparq_ipu.KVCache]) -> None:
    """An empty cache too; NaN where it may be stored."""
    cache = sparq_ipu.KVCache(1, 1, 8, 5, device=device, check_finite=False, **OPTIONS[device])
    same = duplicate(cache)
    assert same.lengths.tolist() == [0] and not same.check_finite
    if device == "cpu":
        assert (same._backends[0].n_threads, same._backends[0].isa) == (2, "portable")
    rows = np.full((1, 1, 3, 8), np.nan, np.float16)
    same.append(rows, rows)
    assert all(x.tobytes() == rows.tobytes() for x in duplicate(same).read())
    assert cache.lengths.tolist() == [0]


def test_a_cache_in_sram() -> None:
    if "emulator" not in DEVICES:
        pytest.skip("emulator is not available here")
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device="emulator", memory="sram", n_tiles=2)
    rows, query = draw(0, 1, 1, 40, 8), draw(1, 1, 1, 8)
    cache.append(rows, rows)
    expected = sparq_ipu.dense_attention(query, cache)
    assert np.array_equal(sparq_ipu.dense_attention(query, copy.deepcopy(cache)), expected)
