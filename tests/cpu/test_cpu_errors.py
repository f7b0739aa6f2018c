# SPDX-License-Identifier: Apache-2.0
"""What device "cpu" refuses: the messages, and that a refusal changes nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sparq_ipu
from sparq_ipu import _cpu
from sparq_reference import CacheSpec, SparqSettings

X = np.zeros((2, 3, 4, 16), np.float16)
AXES = "(batch, n_kv_heads, n_tokens, head_dim)"
ALL = np.array([4, 4])


def module_cache() -> _cpu.KVCache:
    return _cpu.KVCache(CacheSpec(2, 3, 16, 8), n_threads=1)


def refusal(message: str) -> pytest.RaisesExc:
    return pytest.raises(ValueError, match="^" + re.escape(message) + "$")


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(n_threads=0), "KVCache: n_threads must be in [1, 1024], got 0"),
        (dict(n_threads=1025), "KVCache: n_threads must be in [1, 1024], got 1025"),
        (dict(n_threads=1.5), "KVCache: n_threads must be an integer in [1, 1024], got 1.5"),
        (
            dict(n_thread=2),
            "KVCache: options must be among ['index_bits', 'row_bits', 'index_components', "
            "'n_layers', 'device', 'check_finite', 'n_threads', 'isa'], got 'n_thread'",
        ),
        (dict(index_components=8), "KVCache: index_components must be 0 on device 'cpu', got 8"),
        (dict(isa="sse"), f"KVCache: isa must be one of {['auto', *_cpu.available_isas()]}, got 'sse'"),
        (dict(isa=512), f"KVCache: isa must be one of {['auto', *_cpu.available_isas()]}, got 512"),
    ],
)
def test_options(options: dict, message: str) -> None:
    with refusal(message):
        sparq_ipu.KVCache(1, 1, 8, 8, device="cpu", **options)


def test_a_cache_has_the_kernels_that_it_asked_for() -> None:
    isas = _cpu.available_isas()
    assert [_cpu.KVCache(CacheSpec(1, 1, 8, 8), isa=isa).isa for isa in isas] == isas
    assert _cpu.KVCache(CacheSpec(1, 1, 8, 8)).isa == isas[0]


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(n_threads=1025), "n_threads must be in [1, 1024], got 1025"),
        (dict(n_threads=-1), "n_threads must be in [1, 1024], got -1"),
        (dict(isa="sse"), f"isa must be one of {['auto', *_cpu.available_isas()]}, got 'sse'"),
    ],
)
def test_options_refused_by_the_module(options: dict, message: str) -> None:
    with refusal("KVCache: " + message):
        _cpu.KVCache(CacheSpec(1, 1, 8, 8), **options)


def test_no_memory() -> None:
    with pytest.raises(MemoryError):
        _cpu.KVCache(CacheSpec(2**12, 2**12, 2**24, 2**24), n_threads=1)


def test_append_refused_by_the_module() -> None:
    cache = module_cache()
    for key, value, lengths, message in (
        (X.astype(np.float32), X, ALL, "append: key must be float16 with 4 dimensions, got float32 with 4"),
        (X, X[0], ALL, "append: value must be float16 with 4 dimensions, got float16 with 3"),
        (X[:1], X, ALL, f"append: key must have shape {AXES}, got (1, 3, 4, 16)"),
        (X, X[:, :, :3], ALL, f"append: value must have shape {AXES}, got (2, 3, 3, 16)"),
        (X, X, ALL[:1], "append: lengths must have shape (batch=2,), got (1,)"),
        (X, X, ALL + 1, "append: lengths must be in [0, n_tokens=4], got 5"),
        (X, X, ALL - 5, "append: lengths must be in [0, n_tokens=4], got -1"),
    ):
        with refusal(message):
            cache.append(key, value, lengths)
    assert cache.lengths == [0, 0]


def test_calls_refused_by_the_module() -> None:
    cache = module_cache()
    query = np.zeros((2, 6, 16), np.float16)
    empty = "cache must hold at least one position of every batch element, got none of element"
    with refusal(f"dense_attention: {empty} 0"):
        cache.attend(query)
    cache.append(X, X, np.array([4, 0]))
    with refusal(f"sparq_attention: {empty} 1"):
        cache.attend(query, SparqSettings(1, 1))
    cache.append(X, X, np.array([0, 4]))
    with refusal("dense_attention: query must have shape (batch, n_heads, head_dim), got (1, 6, 16)"):
        cache.attend(query[:1])
    with refusal("dense_attention: query must be float16 with 3 dimensions, got float64 with 3"):
        cache.attend(query.astype(np.float64))
    for index, message in (
        ([0, 2], "reorder: index must be in [0, batch=2), got 2"),
        ([-1, 0], "reorder: index must be in [0, batch=2), got -1"),
        ([0], "reorder: index must have shape (batch=2,), got (1,)"),
    ):
        with refusal(message):
            cache.reorder(np.array(index))
    assert cache.lengths == [4, 4]


def test_histories_refused_by_the_module() -> None:
    cache = module_cache()
    with refusal("add_step: cache must have a history, got none"):
        cache.add_step(0, [1])
    with refusal("begin_history: n_recent must be at least 1, got 0"):
        cache.begin_history(0)
    cache.begin_history(2)
    for call, message in (
        (lambda: cache.add_step(2, [1]), "add_step: element must be in [0, batch=2), got 2"),
        (lambda: cache.history(2), "history: element must be in [0, batch=2), got 2"),
        (
            lambda: cache.add_step(1, [1] * 9),
            "add_step: a step must have at most capacity=8 positions, got 9",
        ),
    ):
        with refusal(message):
            call()
    cache.add_step(1, [3] * 8)
    assert [[s.tolist() for s in cache.history(b)] for b in (0, 1)] == [[], [[3] * 8]]


@pytest.mark.parametrize(("offset", "n_bytes"), [(100, 4096), (-4096, 4096), (0, 100), (4096, 8192)])
def test_what_a_benchmark_does_not_read(offset: int, n_bytes: int) -> None:
    stream = _cpu.StreamSum(5000, n_threads=1)  # rounded up to 8192
    with refusal("StreamSum: what is read must be whole pages of its memory"):
        stream.run(offset, n_bytes)
    assert stream.run(4096, 4096) == 1024  # float32 ones
