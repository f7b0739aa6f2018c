# SPDX-License-Identifier: Apache-2.0
"""Prefill on the device: leaves the cache as appending the tokens one by one does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import make_attention

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, exact

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint16)


DENSE, DENSE_SRAM = Attention("dense-streaming", None), Attention("dense-sram", None)


def sparq(*settings: int | bool) -> Attention:
    return Attention("sparq-streaming", SparqSettings(*settings))


def random_halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


class Caches:
    """One cache, filled by the device, beside the arrays that say what it should hold."""

    def __init__(
        self,
        rng,
        batch,
        n_kv_heads,
        group_size,
        head_dim,
        capacity,
        n_tokens,
        n_tiles,
        more=(),
        index_bits=16,
    ):
        self.index_bits = index_bits
        self.rng, self.shape = rng, (batch, n_kv_heads, head_dim)
        self.n_heads, self.n_tokens = n_kv_heads * group_size, n_tokens
        self.attention = [DENSE, *more]
        self.session = _core.Session(
            CacheSpec(batch, n_kv_heads, head_dim, capacity, index_bits=index_bits),
            self.n_heads,
            attention=self.attention,
            options=DeviceOptions(n_tiles=n_tiles),
            fill_tokens=n_tokens,
        )
        self.key = np.zeros((batch, n_kv_heads, capacity, head_dim), np.float16)
        self.value = np.zeros_like(self.key)
        self.lengths = np.zeros(batch, np.int64)

    def fill(self, lengths: list[int], beyond: float = np.nan) -> None:
        batch, n_kv_heads, head_dim = self.shape
        key = random_halves(self.rng, batch, n_kv_heads, self.n_tokens, head_dim)
        value = random_halves(self.rng, batch, n_kv_heads, self.n_tokens, head_dim)
        for b, n in enumerate(lengths):
            key[b, :, max(n, 0) :] = beyond  # no bit of it may show
            value[b, :, max(n, 0) :] = beyond
            if n >= 0:
                self.key[b, :, :n], self.value[b, :, :n], self.lengths[b] = key[b, :, :n], value[b, :, :n], n
        self.session.fill(key, value, lengths)

    def append(self, active: list[int]) -> None:
        batch, n_kv_heads, head_dim = self.shape
        key = random_halves(self.rng, batch, n_kv_heads, 1, head_dim)
        value = random_halves(self.rng, batch, n_kv_heads, 1, head_dim)
        for b in np.flatnonzero(active):
            self.key[b, :, self.lengths[b]], self.value[b, :, self.lengths[b]] = key[b, :, 0], value[b, :, 0]
            self.lengths[b] += 1
        self.session.append(key, value, active)

    def check(self) -> None:
        """What the session holds and computes is what the reference computes from the arrays."""
        assert list(self.session.lengths()) == list(self.lengths)
        key, value = self.session.read(self.key.shape[2])
        for b, n in enumerate(self.lengths):
            np.testing.assert_array_equal(bits(key[b, :, :n]), bits(self.key[b, :, :n]))
            np.testing.assert_array_equal(bits(value[b, :, :n]), bits(self.value[b, :, :n]))
        batch, _, head_dim = self.shape
        query = random_halves(self.rng, batch, self.n_heads, head_dim)
        held = (query, self.key, self.value)
        for index, attention in enumerate(self.attention):
            if attention.settings is None:
                expected = exact.dense_attention(*held, lengths=self.lengths)
            else:
                settings = attention.settings.arguments()
                settings["index_bits"] = self.index_bits
                expected = exact.sparq_attention(*held, lengths=self.lengths, **settings)
            np.testing.assert_array_equal(bits(self.session.attention(index, query)), bits(expected))


@given(data=st.data())
def test_fill_equals_reference(data: st.DataObject) -> None:
    draw = data.draw
    batch, n_kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    head_dim = draw(st.sampled_from((8, 24, 64)))
    n_tokens = draw(st.sampled_from((1, 5, 63, 64, 65, 128, 150)))
    with_sparq = draw(st.booleans())
    rng, group_size = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(1, 2))
    n_tiles = draw(st.sampled_from((1, 2, 7, 32)))
    attention = [sparq(min(4, head_dim), 10, 3)] if with_sparq else []
    sizes = (batch, n_kv_heads, group_size, head_dim, n_tokens + 70, n_tokens, n_tiles)
    try:
        caches = Caches(rng, *sizes, attention, draw(st.sampled_from((16, 8, 4, 2))))
    except DoesNotFit:
        assert n_tiles < 7  # one tile holds little
        reject()
    lengths = st.lists(st.sampled_from((1, n_tokens // 2 + 1, n_tokens)), min_size=batch, max_size=batch)
    caches.fill(draw(lengths))
    caches.check()
    # Continues as if the tokens had come one by one: over the next chunk's end.
    for _ in range(draw(st.sampled_from((0, 2, 66)))):
        caches.append([1] * batch)
    caches.check()
    again = draw(lengths)
    again[draw(st.integers(0, batch - 1))] = -1
    caches.fill(again)
    caches.check()
    caches.append([1] * batch)
    caches.check()


@pytest.mark.parametrize(
    "n_tiles, index_bits",  # a tail of 2,048 positions fits no single tile beside the code
    [(n, bits) for n in (1, 3, 64) for bits in (16, 8, 4, 2) if (n, bits) != (1, 2)],
)
def test_long_prompt_in_full_chunks(n_tiles: int, index_bits: int) -> None:
    """A chunk of 2,048 positions, or several of 512 or 1,024, over one part or many, and one token more."""
    heads = 2 if n_tiles > 3 else 1  # each row of 32 bytes takes a packet: code for two fits no single tile
    shape = 1, heads, 2, 16, 1600, 1536
    caches = Caches(np.random.default_rng(1), *shape, n_tiles, [sparq(5, 40, 8)], index_bits)
    for length in (1536, 1535, 1471, 1088, 1025, 1024, 512, 63, 1):
        caches.fill([length])
        caches.append([1])
        caches.check()


def test_zero_empties() -> None:
    caches = Caches(np.random.default_rng(2), 2, 1, 1, 8, 200, 130, 4, [sparq(3, 5, 1)])
    caches.fill([130, 70])
    caches.fill([0, -1])
    assert list(caches.session.lengths()) == [0, 70]
    for _ in range(70):  # v_sum and the tail begin anew
        caches.append([1, 0])
    caches.check()


def test_control_a_wrong_oracle_fails() -> None:
    """One bit of one token of the tail, or one order of the sum, and the comparison sees it."""
    caches = Caches(np.random.default_rng(3), 1, 1, 1, 8, 200, 130, 4, [sparq(3, 200)])
    caches.fill([130])
    caches.check()
    caches.value[0, 0, 129, 0] += np.float16(1)
    with pytest.raises(AssertionError):
        caches.check()


def test_the_sum_is_in_order() -> None:
    """Values of which another order has another sum: great ones, then small ones, then those negated."""
    caches = Caches(np.random.default_rng(5), 1, 1, 1, 8, 200, 130, 4, [sparq(8, 1)])
    value = random_halves(caches.rng, 1, 1, 130, 8)
    value[:, :, 1:10], value[:, :, -10:-1] = 60000, -60000  # 0 stays: equal keys, so it is selected
    caches.value[:, :, :130], caches.lengths[:] = value, 130
    caches.session.fill(np.zeros_like(value), value, [130])
    caches.check()
    rows = value[0, 0].astype(np.float32)
    forwards, backwards = (np.float16(np.cumsum(r, axis=0)[-1] / 130) for r in (rows, rows[::-1]))
    assert (forwards != backwards).any()  # so the check would see another order


def test_same_as_the_host_wrote() -> None:
    a = make_attention(
        np.random.default_rng(4), batch=2, n_kv_heads=3, seq_len=150, head_dim=16, group_size=2
    )
    spec, attention = CacheSpec(2, 3, 16, 150), [sparq(4, 20, 5, True)]
    by_host = _core.Session(spec, 6, attention=attention, options=DeviceOptions(n_tiles=8))
    by_device = _core.Session(spec, 6, attention=attention, options=DeviceOptions(n_tiles=8), fill_tokens=150)
    by_host.write(a.key, a.value, [150, 99])
    by_device.fill(a.key, a.value, [150, 99])
    np.testing.assert_array_equal(bits(by_host.attention(0, a.query)), bits(by_device.attention(0, a.query)))


@pytest.mark.parametrize(
    "lengths, message",
    [
        ([6], r"fill: lengths must be in \[-1, n_tokens=5\], got 6"),
        ([-2], r"fill: lengths must be in \[-1, n_tokens=5\], got -2"),
        ([1, 1], r"fill: lengths must have shape \(batch=1,\), got \(2,\)"),
    ],
)
def test_messages(lengths: list[int], message: str) -> None:
    session = _core.Session(
        CacheSpec(1, 1, 8, 10), 1, attention=[DENSE], options=DeviceOptions(n_tiles=1), fill_tokens=5
    )
    token = np.zeros((1, 1, 5, 8), np.float16)
    with pytest.raises(ValueError, match=f"^{message}$"):
        session.fill(token, token, lengths)
    assert session.lengths() == [0]


def test_messages_of_the_builder() -> None:
    token = np.zeros((1, 1, 5, 8), np.float16)
    with pytest.raises(ValueError, match=r"^fill: n_tokens must be in \[1, capacity=10\], got 11$"):
        _core.Session(
            CacheSpec(1, 1, 8, 10), 1, attention=[DENSE], options=DeviceOptions(n_tiles=1), fill_tokens=11
        )
    with pytest.raises(ValueError, match=r"^fill: cache must hold one position a row, got a cache in SRAM$"):
        _core.Session(
            CacheSpec(1, 1, 8, 10), 1, attention=[DENSE_SRAM], options=DeviceOptions(n_tiles=1), fill_tokens=5
        )
    with pytest.raises(ValueError, match=r"^fill: cache must hold one position a row, got 64$"):
        _core.Session(
            CacheSpec(1, 1, 8, 10),
            1,
            attention=[DENSE],
            append=False,
            options=DeviceOptions(n_tiles=1),
            fill_tokens=5,
        )
    session = _core.Session(CacheSpec(1, 1, 8, 10), 1, attention=[DENSE], options=DeviceOptions(n_tiles=1))
    with pytest.raises(ValueError, match=r"^fill: the session must have been made with fill_tokens, got 0$"):
        session.fill(token, token, [1])
    session = _core.Session(
        CacheSpec(1, 1, 8, 10), 1, attention=[DENSE], options=DeviceOptions(n_tiles=1), fill_tokens=5
    )
    with pytest.raises(ValueError, match=r"^fill: key must have shape \(1, 1, 5, 8\), got \(1, 1, 4, 8\)$"):
        session.fill(token[:, :, :4], token, [1])
