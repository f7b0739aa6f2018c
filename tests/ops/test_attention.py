# SPDX-License-Identifier: Apache-2.0
"""The Poplar programs as a whole, on the emulator, against the exact reference: equal in every bit."""

from __future__ import annotations

import numpy as np
import pytest
from bits import assert_bits
from hypothesis import assume, given
from hypothesis import strategies as st
from rows_in_sram import HELD_IN, held_in
from strategies import KINDS, Attention, lengths_of_batch, make_attention

import sparq_ipu
from sparq_ipu.attention import attention as attend
from sparq_reference import SparqSettings, exact, ideal

SEQ_LENS = (1, 7, 63, 64, 65, 130, 300)
TILES = (1, 2, 7, 64)


def filled_cache(a: Attention, **options: object) -> sparq_ipu.KVCache:
    batch, n_kv_heads, seq_len, head_dim = a.key.shape
    cache = sparq_ipu.KVCache(batch, n_kv_heads, head_dim, seq_len, device="emulator", **options)
    cache.append(np.nan_to_num(a.key), np.nan_to_num(a.value), a.lengths)
    return cache


@st.composite
def problems(draw: st.DrawFn) -> Attention:
    batch = draw(st.integers(1, 3))
    seq_len = draw(st.sampled_from(SEQ_LENS))
    return make_attention(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        batch=batch,
        n_kv_heads=draw(st.integers(1, 3)),
        group_size=draw(st.sampled_from((1, 2, 3))),
        seq_len=seq_len,
        head_dim=draw(st.sampled_from((8, 64, 80))),
        lengths=draw(lengths_of_batch(batch, seq_len)),
        kinds=tuple(draw(st.sampled_from(KINDS)) for _ in range(3)),
    )


@given(problems(), st.sampled_from(TILES), st.data())
def test_sparq_equals_reference(a: Attention, n_tiles: int, data: st.DataObject) -> None:
    head_dim, seq_len = a.query.shape[-1], a.key.shape[2]
    rank = data.draw(st.sampled_from(sorted({1, head_dim // 4, head_dim})), label="rank")
    top_k = data.draw(
        st.sampled_from(sorted({1, 5, 70, max(seq_len - 1, 1), seq_len, seq_len + 1})), label="top_k"
    )
    n_local = data.draw(st.sampled_from(sorted({0, 1, top_k // 3, top_k})), label="n_local")
    mean_value = data.draw(st.booleans(), label="mean_value")
    settings = dict(rank=rank, top_k=top_k, n_local=n_local, mean_value=mean_value)
    index_bits = data.draw(st.sampled_from((16, 8, 4, 2)), label="index_bits")
    cache = filled_cache(a, n_tiles=n_tiles, index_bits=index_bits)
    expected = exact.sparq_attention(*a.qkv, **settings, index_bits=index_bits, lengths=a.lengths)
    assert_bits(sparq_ipu.sparq_attention(a.query, cache, **settings), expected)


@given(a=problems(), n_tiles=st.sampled_from(TILES))
def test_dense_equals_reference(a: Attention, n_tiles: int) -> None:
    cache = filled_cache(a, n_tiles=n_tiles)
    expected = exact.dense_attention(*a.qkv, lengths=a.lengths)
    assert_bits(sparq_ipu.dense_attention(a.query, cache), expected)


@pytest.mark.parametrize("numbers", HELD_IN)
@given(a=problems(), n_tiles=st.sampled_from(TILES))
def test_dense_in_sram_equals_reference(numbers: str, a: Attention, n_tiles: int) -> None:
    # A tile has 624 KiB, also for what is not the cache; what does not fit is refused.
    assume(a.key.nbytes + a.value.nbytes <= n_tiles * 500 * 1024)
    cache = filled_cache(a, n_tiles=n_tiles, memory="sram")
    expected = exact.dense_attention(*a.qkv, lengths=a.lengths)
    with held_in(numbers):
        assert_bits(sparq_ipu.dense_attention(a.query, cache), expected)
    wide = cache._backends[0].session.wide_rows
    assert not wide if numbers == "fp16" else wide or n_tiles < 7


@pytest.mark.parametrize("place", [0, 450, 899])
def test_dense_over_many_tiles(place: int) -> None:
    """The largest score is that of any group of tiles."""
    a = make_attention(np.random.default_rng(place), group_size=2, seq_len=900, head_dim=8)
    a.key[:, :, place] = 4 * a.query[:, :1]
    cache = filled_cache(a, n_tiles=225, memory="sram")
    expected = exact.dense_attention(*a.qkv, lengths=a.lengths)
    assert_bits(sparq_ipu.dense_attention(a.query, cache), expected)


def test_dense_with_more_sums_of_blocks_than_a_tile_may_hold() -> None:
    """One KV head of 71: 256 sums of each, 64 heads to a tile."""
    a = make_attention(np.random.default_rng(7), group_size=71, seq_len=16384, head_dim=8)
    cache = filled_cache(a, n_tiles=61, memory="sram")
    expected = exact.dense_attention(*a.qkv, lengths=a.lengths)
    assert_bits(sparq_ipu.dense_attention(a.query, cache), expected)


@pytest.mark.parametrize("device", ["cpu", "emulator", "reference"])
def test_one_function_for_all_kernels(device: str) -> None:
    """`attention` takes the settings as one object; without them it is dense attention."""
    if device not in sparq_ipu.available_devices():
        pytest.skip(f"{device} is not available here")
    a = make_attention(np.random.default_rng(0), batch=2, group_size=2, seq_len=90, head_dim=16)
    cache = sparq_ipu.KVCache(2, 1, 16, 90, device=device)
    cache.append(a.key, a.value)
    results = []
    for settings in (None, SparqSettings(4, 9, 2), SparqSettings(4, 9, 2, mean_value=False)):
        results.append(attend(a.query, cache, settings))
        assert_bits(results[-1], exact.attention(*a.qkv, settings))
        in_float64 = ideal.attention(*a.qkv, settings)
        assert abs(in_float64).max() < 2  # so the last rounding, to fp16, is at most 2**-11
        np.testing.assert_allclose(results[-1], in_float64, rtol=0, atol=2.0**-10)
    assert len({result.tobytes() for result in results}) == 3  # so one in place of another is seen
    assert_bits(results[0], sparq_ipu.dense_attention(a.query, cache))
    named = SparqSettings(4, 9, 2).arguments()
    assert_bits(results[1], sparq_ipu.sparq_attention(a.query, cache, **named))
    with pytest.raises(ValueError, match=r"^sparq_attention: rank must be in \[1, head_dim=16\], got 17$"):
        attend(a.query, cache, SparqSettings(17, 9))
