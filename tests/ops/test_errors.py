# SPDX-License-Identifier: Apache-2.0
"""Bad input: one message, whether Python's checks or C++'s meet it, and the state stays."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

import sparq_ipu
from sparq_reference import checks

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")


def message(function: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as caught:
        function()
    return str(caught.value).split(": ", 1)[1]  # without the name of the op


@pytest.mark.parametrize(
    "shape",
    [
        dict(batch=0),
        dict(n_kv_heads=0),
        dict(head_dim=0),
        dict(head_dim=12),
        dict(capacity=0),
        dict(capacity=2**24 + 1),
    ],
)
def test_shapes(shape: dict[str, int]) -> None:
    full = dict(batch=1, n_kv_heads=1, head_dim=8, capacity=64)
    full.update(shape)
    cpp = message(lambda: _core.Session(_core.Shape(n_heads=full["n_kv_heads"] or 1, **full), n_tiles=1))
    assert cpp == message(lambda: checks.check_cache("KVCache", **full))


@pytest.mark.parametrize("settings", [(0, 5, 0), (9, 5, 0), (4, 0, 0), (4, 5, 6), (4, 2**24 + 1, 0)])
def test_settings(settings: tuple[int, int, int]) -> None:
    shape = _core.Shape(1, 1, 1, 8, 64)
    cpp = message(lambda: _core.Session(shape, sparq=[(*settings, True)], n_tiles=1))
    assert cpp == message(lambda: checks.check_sparq_settings("sparq_attention", *settings, 8))


def test_heads_that_do_not_divide() -> None:
    cpp = message(lambda: _core.Session(_core.Shape(1, 3, 2, 8, 64), n_tiles=1))
    query = np.zeros((1, 3, 8), np.float16)
    assert cpp == message(
        lambda: checks.check_query("dense_attention", query, batch=1, n_kv_heads=2, head_dim=8)
    )


def test_heads_past_what_is_counted() -> None:
    with pytest.raises(ValueError, match=r"^plan: batch \* n_kv_heads must be at most 16777216, got 335\d+"):
        _core.Session(_core.Shape(65536, 512, 512, 8, 64), n_tiles=1)
    with pytest.raises(ValueError, match=r"^plan: rows of streaming memory must be at most 4294967295"):
        _core.Session(_core.Shape(256, 1, 1, 8, 2**24), n_tiles=1)


def test_append_past_capacity() -> None:
    session = _core.Session(_core.Shape(1, 1, 1, 8, 64), sparq=[(4, 5, 0, True)], n_tiles=1)
    key = np.zeros((1, 1, 60, 8), np.float16)
    session.write(key, key, [60])
    for n, append in ((5, session.write), (6, session.write)):
        more = np.zeros((1, 1, n, 8), np.float16)
        cpp = message(lambda append=append, more=more, n=n: append(more, more, [n]))
        python = message(
            lambda more=more: checks.check_append(
                "append",
                more,
                more,
                batch=1,
                n_kv_heads=1,
                head_dim=8,
                cache_lengths=np.array([60]),
                capacity=64,
            )
        )
        assert cpp == python
        assert session.lengths == [60]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s, q: s.sparq(1, q), "index must be in [0, 1), got 1"),
        (lambda s, q: s.dense(q), "the session must have been made with a dense program, got one without"),
        (lambda s, q: s.sparq(0, q[:, :, :4]), "query.shape must be"),
        (lambda s, q: s.sparq(0, q.astype(np.float32)), "query must be float16, got float32"),
        (lambda s, q: s.sparq(0, np.zeros((1, 1, 16), np.float16)[:, :, ::2]), "query must be C-contiguous"),
        (lambda s, q: s.write(q[:, None], q[:, None], [2]), "lengths must be in [0, n_tokens=1], got 2"),
        (lambda s, q: s.append(q[:, None], q[:, None], [2]), "lengths must be in [0, n_tokens=1], got 2"),
        (
            lambda s, q: s.append(q[:, None], q[:, None], [1, 1]),
            "have shape (batch=1,), got (2,)",
        ),
    ],
)
def test_sessions_refuse(call: Callable[[Any, np.ndarray], Any], text: str) -> None:
    session = _core.Session(_core.Shape(1, 1, 1, 8, 64), sparq=[(4, 5, 0, True)], n_tiles=1)
    assert text in message(lambda: call(session, np.zeros((1, 1, 8), np.float16)))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(device="gpu"), ValueError, "device must be one of"),
        (dict(device=["cpu"]), ValueError, "device must be one of"),
        (
            dict(device="emulator", memory="disk"),
            ValueError,
            "must be 'streaming' or 'sram', got 'disk'",
        ),
        (
            dict(device="emulator", n_tile=1),
            ValueError,
            "options must be among ['n_tiles', 'memory'], got 'n_tile'",
        ),
        (dict(device="reference", n_tiles=1), ValueError, "options must be among [], got 'n_tiles'"),
        (dict(device="emulator", n_tiles=-1), ValueError, "n_tiles must be in [0, 16777216], got -1"),
        (
            dict(device="emulator", n_tiles=1.5),
            ValueError,
            "n_tiles must be an integer in [0, 16777216], got 1.5",
        ),
        (
            dict(device="emulator", n_tiles="3"),
            ValueError,
            "n_tiles must be an integer in [0, 16777216], got '3'",
        ),
        (dict(device="ipu"), RuntimeError, "device 'ipu' is not available here"),
    ],
)
def test_caches_refuse(options: dict[str, Any], error: type, text: str) -> None:
    if options["device"] == "ipu" and "ipu" in sparq_ipu.available_devices():
        pytest.skip("an IPU is present")
    with pytest.raises(error, match="KVCache: ") as caught:
        sparq_ipu.KVCache(1, 1, 8, 64, **options)
    assert text in str(caught.value)


def test_empty_elements_and_dense_only_memory() -> None:
    cache = sparq_ipu.KVCache(2, 1, 8, 64, device="emulator", memory="sram", n_tiles=2)
    query = np.zeros((2, 1, 8), np.float16)
    with pytest.raises(ValueError, match="cache must hold at least one position of every batch element"):
        sparq_ipu.dense_attention(query, cache)
    rows = np.ones((2, 1, 3, 8), np.float16)
    cache.append(rows, rows)
    with pytest.raises(ValueError, match="sparq_attention: memory must be 'streaming', got 'sram'"):
        sparq_ipu.sparq_attention(query, cache, rank=2, top_k=2)
    with pytest.raises(ValueError, match="append: a cache in SRAM must be empty, got length 3"):
        cache.append(rows, rows)
    assert (sparq_ipu.dense_attention(query, cache) == 1).all()


def test_too_much_for_the_tiles() -> None:
    """64 MiB of keys and values do not fit in the SRAM of 16 tiles; the message says how much they need."""
    with pytest.raises(RuntimeError, match=r"(?s)638976"):
        _core.Session(_core.Shape(1, 4, 4, 128, 32768), dense_sram=True, append=False, n_tiles=16)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_arguments_that_are_no_arrays(device: str) -> None:
    if device not in sparq_ipu.available_devices():
        pytest.skip(f"{device} is not available here")
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device=device)
    key, query = np.ones((1, 1, 3, 8), np.float16), np.ones((1, 1, 8), np.float16)
    cache.append(key, key)
    sparq = dict(rank=2, top_k=2)
    for call, text in (
        (lambda: cache.append(key.tolist(), key), "append: key must be a NumPy array, got list"),
        (lambda: cache.append(key, None), "append: value must be a NumPy array, got NoneType"),
        (
            lambda: sparq_ipu.dense_attention(None, cache),
            "dense_attention: query must be a NumPy array, got ",
        ),
        (
            lambda: sparq_ipu.sparq_attention(query.tolist(), cache, **sparq),
            "sparq_attention: query must be a NumPy array, got list",
        ),
        (
            lambda: sparq_ipu.dense_attention(query, None),
            "dense_attention: cache must be a sparq_ipu.KVCache, got NoneType",
        ),
        (
            lambda: sparq_ipu.sparq_attention(cache, query, **sparq),
            "sparq_attention: cache must be a sparq_ipu.KVCache, got ndarray",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith(text)
    assert cache.lengths == [3]


@pytest.mark.parametrize("device", ["cpu", "emulator", "reference"])
def test_nan_and_infinity_where_they_are_not_looked_for(device: str) -> None:
    """`check_finite=False` on every device; the negative control is the default."""
    if device not in sparq_ipu.available_devices():
        pytest.skip(f"{device} is not available here")
    bad = np.full((1, 1, 1, 8), np.inf, np.float16)
    query = np.full((1, 1, 8), np.nan, np.float16)
    caches = [sparq_ipu.KVCache(1, 1, 8, 64, device=device, check_finite=check) for check in (False, True)]
    caches[0].append(bad, bad)
    sparq_ipu.dense_attention(query, caches[0])
    sparq_ipu.sparq_attention(query, caches[0], rank=2, top_k=1)
    with pytest.raises(ValueError, match=r"^append: key must be finite, got inf at \[0, 0, 0, 0\]"):
        caches[1].append(bad, bad)
    caches[1].append(np.ones_like(bad), np.ones_like(bad))
    with pytest.raises(ValueError, match=r"^dense_attention: query must be finite, got nan at \[0, 0, 0\]"):
        sparq_ipu.dense_attention(query, caches[1])
