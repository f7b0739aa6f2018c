# SPDX-License-Identifier: Apache-2.0
"""A cache over the life of its program: new settings, one device for one session, several threads, and
numbers that are none."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
from bits import assert_bits
from emulated import _core
from strategies import make_attention

import sparq_ipu
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, exact


def filled(a: Any, n_tiles: int = 4, **options: Any) -> sparq_ipu.KVCache:
    batch, n_kv_heads, seq_len, head_dim = a.key.shape
    cache = sparq_ipu.KVCache(
        batch, n_kv_heads, head_dim, seq_len, device="emulator", n_tiles=n_tiles, **options
    )
    cache.append(a.key, a.value)
    return cache


def test_a_device_serves_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with one IPU: a new program must give the device back before it asks for it."""
    alive = weakref.WeakSet()
    session = _core.Session

    class One:
        def __init__(self, *arguments: Any, **options: Any):
            if len(alive):
                raise RuntimeError("device: an IPU must be present and free, got none")
            self._session = session(*arguments, **options)
            alive.add(self)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

    monkeypatch.setattr(_core, "Session", One)
    a = make_attention(np.random.default_rng(0), seq_len=70, head_dim=16, group_size=2)
    cache = filled(a)
    assert_bits(sparq_ipu.dense_attention(a.query, cache), exact.dense_attention(a.query, a.key, a.value))
    for rank in (3, 5):
        expected = exact.sparq_attention(a.query, a.key, a.value, rank=rank, top_k=9)
        assert_bits(sparq_ipu.sparq_attention(a.query, cache, rank=rank, top_k=9), expected)
    with pytest.raises(RuntimeError, match="present and free"):  # negative control
        One(CacheSpec(1, 1, 8, 64), 1)


def test_queries_of_other_numbers_of_heads() -> None:
    """A program is of so many heads; another number takes another program, over the same cache."""
    a = make_attention(np.random.default_rng(2), seq_len=70, n_kv_heads=2, head_dim=16, group_size=2)
    cache = filled(a)
    for query in (a.query, a.query[:, ::2], a.query):
        expected = exact.dense_attention(query, a.key, a.value)
        assert_bits(sparq_ipu.dense_attention(query, cache), expected)


def test_a_cache_goes_on_after_a_program_that_does_not_fit() -> None:
    """The old program is gone by then; what it held is there, and tokens come behind it."""
    cache = sparq_ipu.KVCache(1, 1, 16, 4000, device="emulator", n_tiles=1)
    tokens = np.random.default_rng(3).standard_normal((1, 1, 150, 16)).astype(np.float16)
    cache.append(tokens[:, :, :100], tokens[:, :, :100])
    query = np.ones((1, 256, 16), np.float16)
    sparq_ipu.dense_attention(query[:, :1], cache)
    with pytest.raises(DoesNotFit):
        sparq_ipu.dense_attention(query, cache)
    cache.append(tokens[:, :, 100:], tokens[:, :, 100:])
    assert_bits(cache.read()[0], tokens)
    expected = exact.dense_attention(query[:, :1], tokens, tokens)
    assert_bits(sparq_ipu.dense_attention(query[:, :1], cache), expected)


def test_settings_that_do_not_fit_together() -> None:
    """Programs of all settings so far share the tiles. Where they can not, the new one stands alone."""
    a = make_attention(np.random.default_rng(1), seq_len=2000, n_kv_heads=2, head_dim=128)
    cache = filled(a, n_tiles=8)
    most = 0
    for top_k in range(120, 160):
        output = sparq_ipu.sparq_attention(a.query, cache, rank=32, top_k=top_k)
        programs = len(cache._backends[0]._program.attention)
        if programs < most:
            break
        most = programs
    else:
        pytest.fail(f"all of {most} programs fitted: choose a smaller device")
    assert programs == 1 and most > 1
    assert_bits(output, exact.sparq_attention(a.query, a.key, a.value, rank=32, top_k=top_k))
    again = sparq_ipu.sparq_attention(a.query, cache, rank=32, top_k=120)
    assert_bits(again, exact.sparq_attention(a.query, a.key, a.value, rank=32, top_k=120))


def test_too_much_for_the_tiles_leaves_the_cache_usable() -> None:
    a = make_attention(np.random.default_rng(2), seq_len=2000, n_kv_heads=2, head_dim=128)
    cache = filled(a, n_tiles=2)
    before = sparq_ipu.dense_attention(a.query, cache)
    with pytest.raises(DoesNotFit, match="plan: tile memory: ") as caught:
        sparq_ipu.sparq_attention(a.query, cache, rank=128, top_k=2000)
    assert str(caught.value).startswith(
        "sparq_attention: capacity must be one whose program fits the device, "
        f"got {cache.capacity} with batch=1, n_kv_heads=2, head_dim=128, n_heads={a.query.shape[1]}: plan: "
    )
    assert caught.value.resource == "tile memory" and caught.value.room < caught.value.need
    assert cache.lengths == 2000
    assert_bits(sparq_ipu.dense_attention(a.query, cache), before)


def test_threads_share_a_cache() -> None:
    a = make_attention(np.random.default_rng(3), seq_len=300, head_dim=16, n_kv_heads=2)
    cache = filled(a)
    queries = [a.query, np.ascontiguousarray(-a.query[:, ::-1])]
    settings = [dict(rank=3, top_k=9), dict(rank=5, top_k=20)]  # and new programs in between
    expected = [exact.sparq_attention(q, a.key, a.value, **s) for q, s in zip(queries, settings)]
    wrong = []

    def work(i: int) -> None:
        for _ in range(20):
            output = sparq_ipu.sparq_attention(queries[i], cache, **settings[i])
            if not np.array_equal(output.view(np.uint16), expected[i].view(np.uint16)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i % 2,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_unchecked_nan_does_no_harm(place: str, group_size: int, index_bits: int) -> None:
    """With check_finite=False an element with NaN and infinity has an unspecified result, and no other."""
    a = make_attention(
        np.random.default_rng(4), batch=3, n_kv_heads=2, seq_len=200, head_dim=64, group_size=group_size
    )
    broken = getattr(a, place).copy()
    broken[1, ..., ::3], broken[1, ..., 1::7] = np.nan, -np.inf
    a = a._replace(**{place: broken})
    cache = filled(a, n_tiles=24, check_finite=False, index_bits=index_bits)
    sparq = sparq_ipu.sparq_attention(a.query, cache, rank=16, top_k=20)
    dense = sparq_ipu.dense_attention(a.query, cache)
    for b in (0, 2):
        one = [x[b : b + 1] for x in (a.query, a.key, a.value)]
        assert_bits(sparq[b : b + 1], exact.sparq_attention(*one, rank=16, top_k=20, index_bits=index_bits))
        assert_bits(dense[b : b + 1], exact.dense_attention(*one))


def test_a_kernel_may_be_there_twice() -> None:
    a = make_attention(np.random.default_rng(5), seq_len=70, head_dim=16)
    dense, sparq = Attention("dense-streaming", None), Attention("sparq-streaming", SparqSettings(4, 9))
    session = _core.Session(
        CacheSpec(1, 1, 16, 70), 1, attention=[dense, sparq, dense, sparq], options=DeviceOptions(n_tiles=4)
    )
    session.write(a.key, a.value, [70])
    expected = [exact.dense_attention(*a.qkv), exact.sparq_attention(*a.qkv, rank=4, top_k=9)] * 2
    for index, output in enumerate(expected):
        assert_bits(session.attention(index, a.query), output)
