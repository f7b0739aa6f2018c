# SPDX-License-Identifier: Apache-2.0
"""The cache on the device: tokens appended by the device, by the host or by both are one cache."""

from __future__ import annotations

import numpy as np
import pytest
from bits import assert_bits
from calls import refusal
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_attention

import sparq_ipu
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings, exact

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

SETTINGS = dict(rank=4, top_k=20, n_local=3)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_tiles=st.sampled_from((1, 3, 8)),
    start=st.sampled_from((1, 60, 62, 63, 64, 126, 128)),
    n_steps=st.integers(1, 5),
    batch=st.integers(1, 3),
    index_bits=st.sampled_from((16, 8, 4, 2)),
)
def test_decode_across_chunks_equals_reference(
    seed: int, n_tiles: int, start: int, n_steps: int, batch: int, index_bits: int
) -> None:
    """Capacity 140 has chunks of 64 or 128 positions: steps from 62 or 126 fill one, and flush it."""
    rng = np.random.default_rng(seed)
    capacity = 140
    a = make_attention(rng, batch=batch, n_kv_heads=2, group_size=2, seq_len=capacity, head_dim=16)
    options = dict(index_bits=index_bits)
    cache = sparq_ipu.KVCache(batch, 2, 16, capacity, device="emulator", n_tiles=n_tiles, **options)
    lengths = np.maximum(1, start - rng.integers(0, 3, batch))
    cache.append(a.key[:, :, : lengths.max()], a.value[:, :, : lengths.max()], lengths)
    key, value = np.zeros_like(a.key), np.zeros_like(a.value)
    for b, n in enumerate(lengths):
        key[b, :, :n], value[b, :, :n] = a.key[b, :, :n], a.value[b, :, :n]
    sparq_ipu.sparq_attention(a.query, cache, **SETTINGS)  # compiles: from here, appends run on the device
    for _ in range(n_steps):
        active = rng.integers(0, 2, batch)
        new = make_attention(rng, batch=batch, n_kv_heads=2, group_size=2, seq_len=1, head_dim=16)
        cache.append(new.key, new.value, active)
        for b in np.flatnonzero(active):
            key[b, :, lengths[b]], value[b, :, lengths[b]] = new.key[b, :, 0], new.value[b, :, 0]
        lengths = lengths + active
        np.testing.assert_array_equal(cache.lengths, lengths)
        assert_bits(
            sparq_ipu.sparq_attention(a.query, cache, **SETTINGS),
            exact.sparq_attention(a.query, key, value, lengths=lengths, **SETTINGS, **options),
        )
    assert_bits(
        sparq_ipu.dense_attention(a.query, cache), exact.dense_attention(a.query, key, value, lengths=lengths)
    )


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_bulk_on_top_of_single_tokens(index_bits: int) -> None:
    rng = np.random.default_rng(0)
    a = make_attention(rng, n_kv_heads=1, group_size=1, seq_len=300, head_dim=8)
    cache = sparq_ipu.KVCache(1, 1, 8, 300, device="emulator", n_tiles=4, index_bits=index_bits)
    sizes = (61, 1, 1, 1, 1, 150, 1, 40, 44)
    assert sum(sizes) == 300
    held = 0
    for i, n in enumerate(sizes):
        cache.append(a.key[:, :, held : held + n], a.value[:, :, held : held + n])
        held += n
        output = sparq_ipu.sparq_attention(a.query, cache, rank=3, top_k=10 + i % 2)  # also new programs
        held_now = (a.query, a.key[:, :, :held], a.value[:, :, :held])
        expected = exact.sparq_attention(*held_now, rank=3, top_k=10 + i % 2, index_bits=index_bits)
        assert_bits(output, expected)


@pytest.mark.parametrize("index_bits", [8, 4, 2])
@pytest.mark.parametrize("n_tiles", [1, 3, 64])
def test_blocks_fill_chunks_of_an_index(index_bits: int, n_tiles: int) -> None:
    """Chunks of 512, 1024 or 2048 positions: the device quantises every block, and the last of a chunk."""
    rng = np.random.default_rng(n_tiles)
    capacity = 1200
    spec = CacheSpec(2, 2, 16, capacity, index_bits=index_bits)
    sparq = Attention("sparq-streaming", SparqSettings(**SETTINGS))
    mapping = _core.emulator_plan(spec, 2, sparq, [500, 1022], options=DeviceOptions(n_tiles))["mapping"]
    assert mapping["chunk"] == {8: 512, 4: 1024, 2: 2048}[index_bits]
    a = make_attention(
        rng, batch=2, n_kv_heads=2, seq_len=capacity, head_dim=16, lengths=np.array([500, 1022])
    )
    cache = sparq_ipu.KVCache(2, 2, 16, capacity, device="emulator", n_tiles=n_tiles, index_bits=index_bits)
    cache.append(np.nan_to_num(a.key), np.nan_to_num(a.value), a.lengths)
    key, value, lengths = np.nan_to_num(a.key), np.nan_to_num(a.value), a.lengths.copy()
    for step in range(70):
        if step % 6 == 0 or step in (1, 2, 3, 11, 12, 13):
            expected = exact.sparq_attention(
                a.query, key, value, lengths=lengths, **SETTINGS, index_bits=index_bits
            )
            assert_bits(sparq_ipu.sparq_attention(a.query, cache, **SETTINGS), expected)
        new = make_attention(rng, batch=2, n_kv_heads=2, seq_len=1, head_dim=16)
        cache.append(new.key, new.value)
        for b in range(2):
            key[b, :, lengths[b]], value[b, :, lengths[b]] = new.key[b, :, 0], new.value[b, :, 0]
        lengths = lengths + 1
    # The same tokens at once are the same cache.
    other = sparq_ipu.KVCache(2, 2, 16, capacity, device="emulator", n_tiles=5, index_bits=index_bits)
    other.append(key[:, :, : lengths.max()], value[:, :, : lengths.max()], lengths)
    assert_bits(
        sparq_ipu.sparq_attention(a.query, cache, **SETTINGS),
        sparq_ipu.sparq_attention(a.query, other, **SETTINGS),
    )
    # Another rule is another result.
    wrong = exact.sparq_attention(a.query, key, value, lengths=lengths, **SETTINGS)
    assert (wrong != sparq_ipu.sparq_attention(a.query, cache, **SETTINGS)).any()


@pytest.mark.parametrize("index_bits", [16, 4])
def test_a_long_cache_is_filled_in_few_calls(index_bits: int) -> None:
    """A call of the host a row would be tens of thousands of them: minutes on an IPU."""
    n_kv_heads, head_dim, capacity = 8, 128, 4096
    session = _core.Session(CacheSpec(1, n_kv_heads, head_dim, capacity, index_bits=index_bits), n_kv_heads,
                            attention=[Attention("sparq-streaming", SparqSettings(32, 128))])  # fmt: skip
    numbers = np.arange(n_kv_heads * capacity * head_dim, dtype=np.uint32) % 40961 % 31743  # finite halves
    key = numbers.astype(np.uint16).view(np.float16).reshape(1, n_kv_heads, capacity, head_dim)
    value = -key

    def calls() -> dict[str, int]:
        return _core.emulator_host_calls(session)

    before = calls()
    session.write(key[:, :, :2300].copy(), value[:, :, :2300].copy(), [2300])
    session.write(key[:, :, 2300:].copy(), value[:, :, 2300:].copy(), [capacity - 2300])
    filled = calls()
    assert filled["row_writes"] == filled["row_reads"] == 0
    assert sum(filled.values()) - sum(before.values()) <= 100
    for got, expected in zip(session.read(capacity), (key, value)):
        assert_bits(got, expected)
    assert sum(calls().values()) - sum(filled.values()) <= 55


@pytest.mark.parametrize(("kind", "append"), [("dense", True), ("dense", False), ("sparq", True)])
def test_bulk_on_bulk(kind: str, append: bool) -> None:
    """Without appends on the device several positions share a row, and a second write begins within one;
    with key columns the tail of every element is written, of those too that get nothing."""
    a = make_attention(np.random.default_rng(7), batch=2, n_kv_heads=3, group_size=2, seq_len=90, head_dim=16)
    settings = SparqSettings(5, 7, 1) if kind == "sparq" else None
    attention = Attention(f"{kind}-streaming", settings)
    session = _core.Session(
        CacheSpec(2, 3, 16, 90), 6, attention=[attention], append=append, options=DeviceOptions(n_tiles=8)
    )
    lengths = np.zeros(2, np.int64)
    for counts in ([5, 33], [0, 2], [40, 1], [1, 31]):
        pieces = [np.zeros((2, 3, 40, 16), np.float16) for _ in range(2)]
        for piece, whole in zip(pieces, (a.key, a.value)):
            for b, n in enumerate(counts):
                piece[b, :, :n] = whole[b, :, lengths[b] : lengths[b] + n]
        session.write(*pieces, counts)
        lengths += counts
        if settings:
            expected = exact.sparq_attention(*a.qkv, lengths=lengths, **settings.arguments())
        else:
            expected = exact.dense_attention(*a.qkv, lengths=lengths)
        assert_bits(session.attention(0, a.query), expected)
        for got, whole in zip(session.read(90), (a.key, a.value)):
            for b, n in enumerate(lengths):
                assert_bits(got[b, :, :n], whole[b, :, :n])
                assert not got[b, :, n:].any()


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_reorder_and_reset(index_bits: int) -> None:
    rng = np.random.default_rng(1)
    a = make_attention(rng, batch=3, seq_len=70, head_dim=8, lengths=np.array([5, 70, 33]))
    options = dict(index_bits=index_bits)
    cache = sparq_ipu.KVCache(3, 1, 8, 80, device="emulator", n_tiles=4, **options)
    cache.append(np.nan_to_num(a.key), np.nan_to_num(a.value), a.lengths)
    index = np.array([2, 0, 0])
    for compiled in (False, True):
        if compiled:
            cache.reset()
            cache.append(np.nan_to_num(a.key), np.nan_to_num(a.value), a.lengths)
        cache.reorder(index)
        np.testing.assert_array_equal(cache.lengths, a.lengths[index])
        output = sparq_ipu.sparq_attention(a.query, cache, rank=2, top_k=9)
        expected = exact.sparq_attention(
            a.query, a.key[index], a.value[index], lengths=a.lengths[index], rank=2, top_k=9, **options
        )
        assert_bits(output, expected)


@pytest.mark.parametrize("device", ["emulator", "emulator-sram", "cpu", "reference"])
def test_read(device: str) -> None:
    """What was appended comes back, zeros where an element ends, also after attention and reordering."""
    if device == "cpu":
        pytest.importorskip("sparq_ipu._cpu")
    name, _, memory = device.partition("-")
    options = {"n_tiles": 4, "memory": memory or "streaming"} if name == "emulator" else {}
    rng = np.random.default_rng(3)
    lengths = np.array([5, 33, 70])
    a = make_attention(rng, batch=3, n_kv_heads=2, seq_len=70, head_dim=8, lengths=lengths)
    cache = sparq_ipu.KVCache(3, 2, 8, 80, device=name, **options)
    assert [x.shape for x in cache.read()] == [(3, 2, 0, 8)] * 2
    cache.append(a.key, a.value, lengths)
    held = (np.arange(70) < lengths[:, None])[:, None, :, None]
    key, value = np.where(held, a.key, np.float16(0)), np.where(held, a.value, np.float16(0))
    for index in ([0, 1, 2], [0, 1, 2], [2, 0, 0]):
        cache.reorder(np.array(index))
        key, value = key[index], value[index]
        for start, stop in ((0, 70), (0, 0), (3, 40), (60, 70)):
            got = cache.read(start, stop)
            assert_bits(got[0], key[:, :, start:stop])
            assert_bits(got[1], value[:, :, start:stop])
        assert_bits(cache.read()[1], value)
        sparq_ipu.dense_attention(a.query, cache)  # from here on, there is a program
    got[0][:] = 1  # a copy
    assert_bits(cache.read()[0], key)
    for arguments, text in (
        ((0, 71), "stop must be in [0, 70], got 71"),
        ((9, 8), "start must be in [0, 8], got 9"),
        ((-1, 8), "start must be in [0, 8], got -1"),
        ((0.5, 8), "start must be an integer in [0, 8], got 0.5"),
    ):
        assert refusal(cache.read, *arguments) == f"read: {text}"


def test_several_appends_are_held_before_there_is_a_program() -> None:
    """Of each element one behind the other; a program is first compiled for attention."""
    cache = sparq_ipu.KVCache(2, 1, 8, 40, device="emulator")
    tokens = np.random.default_rng(0).standard_normal((3, 2, 1, 6, 8)).astype(np.float16)
    expected = np.zeros((2, 1, 40, 8), np.float16)
    held = np.zeros(2, np.int64)
    for new, counts in zip(tokens, ([4, 1], [0, 6], [5, 3])):
        cache.append(new, -new, np.array(counts))
        for b, n in enumerate(counts):
            expected[b, :, held[b] : held[b] + n] = new[b, :, :n]
        held += counts
    for index in ([0, 1], [1, 0]):
        cache.reorder(np.array(index))
        assert cache.lengths.tolist() == held[index].tolist()
        assert_bits(cache.read()[0], expected[index][:, :, :10])
        assert_bits(
            cache.read()[1], np.where(expected[index] == 0, np.float16(0), -expected[index])[:, :, :10]
        )
    with pytest.raises(ValueError, match=r"append: length must be at most capacity=40 .* got 41"):
        cache.append(*np.zeros((2, 2, 1, 31, 8), np.float16), np.array([31, 31]))
    assert cache.lengths.tolist() == [10, 9]
    cache.lengths[:] = 0  # of a copy
    assert cache.lengths.tolist() == [10, 9]
    cache.reset()
    cache.append(tokens[0], tokens[1], np.array([6, 2]))
    assert_bits(cache.read()[0][0], tokens[0, 0])
    assert_bits(cache.read()[1][1, :, :2], tokens[1, 1, :, :2])


@pytest.mark.parametrize("which", ["key", "value", "lengths"])
@pytest.mark.parametrize("device", ["emulator", "emulator-sram", "cpu", "reference"])
def test_the_caller_may_use_his_arrays_again(device: str, which: str) -> None:
    """Once `append` is back, what he does to his arrays changes nothing; also before there is a program."""
    if device == "cpu":
        pytest.importorskip("sparq_ipu._cpu")
    name, _, memory = device.partition("-")
    options = {"n_tiles": 2, "memory": memory or "streaming"} if name == "emulator" else {}
    rng = np.random.default_rng(5)
    a = make_attention(rng, batch=2, seq_len=20, head_dim=8, lengths=np.array([3, 20]))
    cache = sparq_ipu.KVCache(2, 1, 8, 64, device=name, **options)
    mine = {"key": np.nan_to_num(a.key), "value": np.nan_to_num(a.value), "lengths": a.lengths.copy()}
    cache.append(**mine)
    mine[which][:] = 1
    np.testing.assert_array_equal(cache.lengths, a.lengths)
    expected = exact.dense_attention(*a.qkv, lengths=a.lengths)
    for _ in range(2):
        assert_bits(sparq_ipu.dense_attention(a.query, cache), expected)
        mine[which][:] = 2
    assert_bits(cache.read()[0][1], a.key[1])
    assert_bits(cache.read()[1][1], a.value[1])
