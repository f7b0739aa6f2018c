# SPDX-License-Identifier: Apache-2.0
"""Bad input: a message that says which argument, and the state stays. That Python and C++ use the same words:
test_words.py."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from calls import refusal

import sparq_ipu
from sparq_ipu.backends import ipu
from sparq_ipu.backends.room import host_memory
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, DoesNotFit, NotFinite, SparqSettings, checks

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")


def message(function: Callable[[], Any]) -> str:
    return refusal(function).split(": ", 1)[1]  # without the name of the op


def session_of(n_tokens: int, **options: Any) -> Any:
    """A session for 64 positions with SparQ attention, that holds so many."""
    sparq = Attention("sparq-streaming", SparqSettings(4, 5))
    session = _core.Session(
        CacheSpec(1, 1, 8, 64), 1, attention=[sparq], options=DeviceOptions(n_tiles=1), **options
    )
    if n_tokens:
        rows = np.zeros((1, 1, n_tokens, 8), np.float16)
        session.write(rows, rows, [n_tokens])
    return session


@pytest.mark.parametrize(
    ("call", "held", "n"),
    [("write", 60, 5), ("write", 60, 6), ("write", 64, 1), ("append", 64, 1)],  # by the host; by the device
)
def test_append_past_capacity(call: str, held: int, n: int) -> None:
    session = session_of(held)
    more = np.zeros((1, 1, n, 8), np.float16)
    cpp = message(lambda: getattr(session, call)(more, more, [n]))
    spec = CacheSpec(1, 1, 8, 64)
    assert cpp == message(lambda: checks.check_append("append", more, more, spec, np.array([held])))
    assert session.lengths() == [held]
    getattr(session, call)(more, more, [0])  # negative control: what adds nothing fits
    assert session.lengths() == [held]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s, q: s.attention(1, q), "index must be in [0, 1), got 1"),
        (lambda s, q: s.attention(-1, q), "index must be in [0, 1), got -1"),
        (lambda s, q: s.attention(0, q[:, :, :4]), "query must have shape (1, 1, 8), got (1, 1, 4)"),
        (lambda s, q: s.attention(0, q.astype(np.float32)), "query must be float16, got float32"),
        (
            lambda s, q: s.attention(0, np.zeros((1, 1, 16), np.float16)[:, :, ::2]),
            "query must be C-contiguous",
        ),
        (lambda s, q: s.write(q[:, None], q[:, None], [2]), "lengths must be in [0, n_tokens=1], got 2"),
        (lambda s, q: s.append(q[:, None], q[:, None], [2]), "lengths must be in [0, n_tokens=1], got 2"),
        (lambda s, q: s.append(q[:, None], q[:, None], [1, 1]), "have shape (batch=1,), got (2,)"),
    ],
)
def test_sessions_refuse(call: Callable[[Any, np.ndarray], Any], text: str) -> None:
    session = session_of(0)
    assert text in message(lambda: call(session, np.zeros((1, 1, 8), np.float16)))
    assert session.lengths() == [0]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(device="gpu"), ValueError, "device must be one of"),
        (dict(device=["cpu"]), ValueError, "device must be one of"),
        (
            dict(device="emulator", n_tile=1),
            ValueError,
            "'memory', 'n_ipus', 'split', 'hot_rows'], got 'n_tile'",
        ),
        (
            dict(device="reference", n_tiles=1),
            ValueError,
            "KVCache: n_tiles must be left out on device 'reference': it is for 'ipu' and 'emulator', got 1",
        ),
        (
            dict(device="emulator", n_tiles="3"),
            ValueError,
            "n_tiles must be an integer in [0, 1472], got '3'",
        ),
        (dict(check_finite="no"), ValueError, "check_finite must be True or False, got 'no'"),
        (dict(device="ipu"), RuntimeError, "device 'ipu' is not available here"),
    ],
)
def test_caches_refuse(options: dict[str, Any], error: type, text: str) -> None:
    if options.get("device") == "ipu" and "ipu" in sparq_ipu.available_devices():
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
    with pytest.raises(
        ValueError, match="sparq_attention: memory must be 'streaming' or 'tiered', got 'sram'"
    ):
        sparq_ipu.sparq_attention(query, cache, rank=2, top_k=2)
    assert (sparq_ipu.dense_attention(query, cache) == 1).all()


def test_too_much_for_the_tiles() -> None:
    """64 MiB of keys and values do not fit in the SRAM of 16 tiles; the message says how much they need."""
    dense = Attention("dense-sram", None)
    with pytest.raises(DoesNotFit, match=r"(?s)638976"):
        _core.Session(
            CacheSpec(1, 4, 128, 32768), 4, attention=[dense], append=False, options=DeviceOptions(n_tiles=16)
        )


def test_arguments_that_are_no_cache() -> None:
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device="reference")
    key, query = np.ones((1, 1, 3, 8), np.float16), np.ones((1, 1, 8), np.float16)
    cache.append(key, key)
    sparq = dict(rank=2, top_k=2)
    for call, text in (
        (
            lambda: sparq_ipu.dense_attention(query, None),
            "dense_attention: cache must be a sparq_ipu.KVCache, got NoneType",
        ),
        (
            lambda: sparq_ipu.sparq_attention(cache, query, **sparq),
            "sparq_attention: cache must be a sparq_ipu.KVCache, got ndarray",
        ),
    ):
        assert refusal(call).startswith(text)
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
    with pytest.raises(NotFinite, match=r"^append: key must be finite, got inf at \[0, 0, 0, 0\]"):
        caches[1].append(bad, bad)
    caches[1].append(np.ones_like(bad), np.ones_like(bad))
    with pytest.raises(NotFinite, match=r"^dense_attention: query must be finite, got nan at \[0, 0, 0\]"):
        sparq_ipu.dense_attention(query, caches[1])


@pytest.mark.parametrize(
    ("shape", "options", "room", "resource"),
    [
        ((64, 64, 128), dict(device="emulator"), 64_000_000_000, "streaming memory"),
        ((1, 4, 128), dict(device="emulator", memory="sram", n_tiles=16), 16 * 638976, "tile memory"),
        ((64, 64, 128), dict(device="cpu"), None, "memory of this machine"),
        ((64, 64, 128), dict(device="reference"), None, "memory of this machine"),
    ],
)
def test_caches_that_can_never_be_full(
    shape: tuple[int, int, int], options: dict[str, Any], room: int | None, resource: str
) -> None:
    """Refused when they are made. The largest that is taken is the one that the message names."""
    if options["device"] not in sparq_ipu.available_devices():
        pytest.skip(f"{options['device']} is not available here")
    with pytest.raises(DoesNotFit) as caught:
        sparq_ipu.KVCache(*shape, 1 << 24, **options)
    room = host_memory() if room is None else room
    of_position = 4 * shape[0] * shape[1] * shape[2]
    sizes = "batch={}, n_kv_heads={}, head_dim={}".format(*shape)
    most = room // of_position
    assert str(caught.value) == (
        f"KVCache: capacity must be at most {most} ({room} bytes of {resource}; keys and values of {sizes} "
        f"take {of_position} a position), got 16777216"
    )
    error = caught.value
    assert (error.resource, error.need, error.room) == (resource, of_position << 24, room)
    if options["device"] == "emulator":  # takes memory only when it runs
        assert sparq_ipu.KVCache(*shape, most, **options).capacity == most
        with pytest.raises(DoesNotFit, match=f"capacity must be at most {most} "):
            sparq_ipu.KVCache(*shape, most + 1, **options)
    with pytest.raises(
        DoesNotFit, match=r"^KVCache: batch \* n_kv_heads \* head_dim must leave room for a pos"
    ):
        sparq_ipu.KVCache(4096, 4096, 1 << 24, 1, **options)


def test_memory_that_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = pytest.importorskip("sparq_ipu._cpu")

    def full(*arguments: Any, **options: Any) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(cpu, "KVCache", full)
    with pytest.raises(
        MemoryError, match=r"^KVCache: memory must be free for a cache, got too little for Cach"
    ):
        sparq_ipu.KVCache(1, 1, 8, 64, device="cpu")


@pytest.mark.skipif("emulator" not in sparq_ipu.available_devices(), reason="there is no emulator here")
def test_rows_of_8_bits_take_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = pytest.importorskip("sparq_ipu.backends.cpu")
    if "cpu" not in sparq_ipu.available_devices():
        pytest.skip("cpu is not available here")
    monkeypatch.setattr(cpu, "host_memory", lambda: 500_000)
    assert sparq_ipu.KVCache(1, 1, 128, 1500, device="cpu", row_bits=8).capacity == 1500
    with pytest.raises(DoesNotFit, match=r"capacity must be at most 976 .* take 512 a position"):
        sparq_ipu.KVCache(1, 1, 128, 1500, device="cpu")


def test_an_emulated_cache_larger_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused when memory is taken, not when it is made: it may never be used."""
    row = np.ones((1, 1, 1, 8), np.float16)
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device="emulator", n_tiles=4)
    cache.append(row, row)
    with monkeypatch.context() as patch:
        patch.setattr(ipu, "host_memory", lambda: 1000)
        words = r"^dense_attention: capacity must be one whose program fits the device, got 64 .* at most 31 "
        with pytest.raises(
            DoesNotFit, match=words + r"\(1000 bytes of memory of this machine, which emulates"
        ):
            sparq_ipu.dense_attention(row[:, :, 0], cache)

    def no_memory(*_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(ipu.Program, "_compile", no_memory)
    words = (
        "dense_attention: memory of this machine must be free for the streaming memory of a device, got too "
    )
    with pytest.raises(
        MemoryError, match=words + "little for capacity=64, batch=1, n_kv_heads=1, head_dim=8"
    ):
        sparq_ipu.dense_attention(row[:, :, 0], cache)
    monkeypatch.undo()
    assert np.array_equal(sparq_ipu.dense_attention(row[:, :, 0], cache), row[:, :, 0])


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_what_is_behind_the_real_tokens_may_be_anything(device: str) -> None:
    """Rows of 8 bits too are made of real tokens, without a warning."""
    options = dict(memory="tiered", n_tiles=4) if device == "emulator" else {}
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device=device, index_bits=4, row_bits=8, **options)  # type: ignore[arg-type]
    rows = np.ones((1, 1, 3, 8), np.float16)
    rows[:, :, 2] = np.nan
    cache.append(rows, rows, np.array([2]))
    assert cache.lengths.tolist() == [2] and np.array_equal(cache.read()[0], rows[:, :, :2])


def test_codelets_are_taken_from_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sparq_codelets.gp").write_text("none", encoding="utf-8")
    monkeypatch.setenv("SPARQ_CODELETS", str(tmp_path))
    with pytest.raises(RuntimeError, match=re.escape(str(tmp_path))):
        session_of(0)


def test_no_code_of_another_library_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that exports no codelets is refused before its constructors run."""
    ran = tmp_path / "ran"
    source = (
        f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fclose(fopen("{ran}", "w")); }}\n'
    )
    (tmp_path / "other.c").write_text(source, encoding="utf-8")
    library = tmp_path / "sparq_codelets.gp"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    monkeypatch.setenv("SPARQ_CODELETS", str(tmp_path))
    with pytest.raises(RuntimeError, match="it is not a codelet object made by popc"):
        session_of(0)
    assert not ran.exists()
