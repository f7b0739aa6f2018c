# SPDX-License-Identifier: Apache-2.0
"""Rows that attention asks for ahead of their use: the environment variables, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_caches import assert_same_bits, filled_cache
from strategies import make_attention

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_reference import exact

VARIABLE = "SPARQ_CPU_READ_AHEAD"
LEVEL = "SPARQ_CPU_FETCH_LEVEL"
#: bytes ahead where nothing is said and nothing is known
USUAL = 4096


def read_ahead(cache: KVCache) -> int:
    return cache._backends[0]._cache.read_ahead


@pytest.mark.parametrize("ahead", ["", "0", "200", "65536"])
def test_bits_and_distance(isa: str, ahead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of the reference at any distance. The one that is named stays, else there are two."""
    monkeypatch.setenv(VARIABLE, ahead)
    tensors = make_attention(np.random.default_rng(5), n_kv_heads=8, group_size=5, seq_len=600, head_dim=128)
    cache = filled_cache(tensors, isa=isa, n_threads=1)
    assert read_ahead(cache) == (int(ahead) if ahead else USUAL)
    expected = exact.dense_attention(*tensors.qkv)
    for _ in range(3):  # the first sixteen runs over a head's rows are timed
        assert_same_bits(dense_attention(tensors.query, cache), expected, f"{ahead} ahead")
    assert read_ahead(cache) in ((int(ahead),) if ahead else (0, USUAL))


@pytest.mark.parametrize("value", ["-1", "65537", "4k", "x", " 1", "99999999999999999999"])
def test_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError) as error:
        KVCache(1, 1, 8, 64, device="cpu")
    assert str(error.value) == f"KVCache: {VARIABLE} must be in [0, 65536], got '{value}'"


def fetch_level(cache: KVCache) -> int:
    return cache._backends[0]._cache.fetch_level


@pytest.mark.parametrize("level", ["", "1", "2"])
def test_bits_and_level(isa: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of the reference, whichever cache selected rows come into. The one that is named stays."""
    monkeypatch.setenv(LEVEL, level)
    tensors = make_attention(np.random.default_rng(6), n_kv_heads=8, group_size=2, seq_len=300, head_dim=128)
    cache = filled_cache(tensors, isa=isa, n_threads=1)
    assert fetch_level(cache) == int(level or 1)
    expected = exact.sparq_attention(*tensors.qkv, rank=16, top_k=60)
    for _ in range(9):  # the first 64 runs over a head's rows are timed
        found = sparq_attention(tensors.query, cache, rank=16, top_k=60)
        assert_same_bits(found, expected, f"level {level}")
    assert fetch_level(cache) in ((int(level),) if level else (1, 2))


@pytest.mark.parametrize("value", ["0", "3", "L2", "2 "])
def test_refused_levels(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, value)
    with pytest.raises(ValueError) as error:
        KVCache(1, 1, 8, 64, device="cpu")
    assert str(error.value) == f"KVCache: {LEVEL} must be in [1, 2], got '{value}'"
