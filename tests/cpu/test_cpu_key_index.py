# SPDX-License-Identifier: Apache-2.0
"""A key index of 8, 4 or 2 bits on device "cpu": the bits of the reference, on any instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_caches import ISAS, assert_bits, check_attention, expected_attention, filled_cache, make_cache
from hypothesis import given
from hypothesis import strategies as st
from near_ties import columns_with_a_step_near_a_tie
from strategies import GROUP_SIZES, KINDS, attentions, fewer, make_attention, sparq_settings

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_reference import exact

#: around blocks of 64 positions and cells of 1024
SEQ_LENS = (1, 63, 64, 65, 127, 128, 129, 193, 1023, 1024, 1025, 1100)


@pytest.fixture(scope="module", params=(8, 4, 2))
def index_bits(request: pytest.FixtureRequest) -> int:
    """Each size of a number of the index."""
    return request.param


@pytest.fixture(scope="module", params=(16, 8, 4, 2))
def any_bits(request: pytest.FixtureRequest) -> int:
    """These, and the keys themselves."""
    return request.param


@fewer(3, least=20)
@given(data=st.data())
def test_bits(index_bits: int, data: st.DataObject) -> None:
    tensors = data.draw(attentions(seq_lens=SEQ_LENS))
    settings = data.draw(sparq_settings(tensors)).arguments()
    more = data.draw(st.sampled_from((0, 1, 63, 64, 1024, 20000)))
    check_attention(tensors, index_bits, settings, threads=(1, 3), more_capacity=more)


@pytest.mark.parametrize("seed", range(2))
def test_many_outputs(index_bits: int, seed: int) -> None:
    """A wrong last bit of a score changes one fp16 output in some thousands: so look at 65536 of them."""
    tensors = make_attention(
        np.random.default_rng(seed), batch=4, n_kv_heads=8, group_size=8, seq_len=400, head_dim=256
    )
    settings = dict(rank=24, top_k=20, n_local=10, mean_value=True)
    check_attention(tensors, index_bits, settings, threads=(2,))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 6, 7, 31, 32, 33, 64, 67, 128])
def test_every_rank(index_bits: int, rank: int) -> None:
    """Components are taken in groups of two and four; sums in 16 bits are widened in between; above rank 32
    the coefficients of 8 bits are smaller."""
    tensors = make_attention(
        np.random.default_rng(rank), n_kv_heads=2, group_size=3, seq_len=1300, head_dim=128
    )
    check_attention(tensors, index_bits, dict(rank=rank, top_k=40), threads=(1,))


@pytest.mark.parametrize("group_size", [*GROUP_SIZES, 5, 6, 7])
def test_every_group_size(index_bits: int, group_size: int) -> None:
    """Heads share the unpacking of codes, four or two at a time."""
    tensors = make_attention(
        np.random.default_rng(group_size), n_kv_heads=2, group_size=group_size, seq_len=700, head_dim=24
    )
    check_attention(tensors, index_bits, dict(rank=10, top_k=30, n_local=3), threads=(1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_largest_sums(index_bits: int, kind: str) -> None:
    """Codes and coefficients at their largest at the same place: nothing saturates, nothing overflows."""
    tensors = make_attention(
        np.random.default_rng(3), n_kv_heads=4, seq_len=640, head_dim=128, kinds=(kind, kind, "normal")
    )
    tensors.key[:, :, 100:200] = np.float16(60000)
    tensors.query[:, :, ::2] = np.abs(tensors.query[:, :, ::2]).max()
    check_attention(tensors, index_bits, dict(rank=96, top_k=40), threads=(1,))
    tensors.query[...] = np.abs(tensors.query).max()  # and at all components
    check_attention(tensors, index_bits, dict(rank=128, top_k=40), threads=(1,))


def test_steps_near_a_tie(index_bits: int) -> None:
    """Ranges whose step is another one where it is divided, and not multiplied by an inverse."""
    tensors = make_attention(np.random.default_rng(4), n_kv_heads=4, group_size=2, seq_len=64, head_dim=64)
    tensors.key[...] = columns_with_a_step_near_a_tie(64, index_bits).T
    check_attention(tensors, index_bits, dict(rank=64, top_k=3), threads=(1,))


@pytest.mark.parametrize("kind", KINDS)
def test_split_between_threads(any_bits: int, kind: str) -> None:
    """Few and long pairs are split by blocks of positions: threads begin and end inside a cell."""
    tensors = make_attention(
        np.random.default_rng(KINDS.index(kind)),
        batch=2, group_size=2, seq_len=5000, head_dim=16, lengths=np.array([2200, 5000]),
        kinds=(kind, kind, "normal"),
    )  # fmt: skip
    check_attention(tensors, any_bits, dict(rank=5, top_k=300, n_local=17, mean_value=True))


def test_several_groups_of_cells(index_bits: int) -> None:
    """Sixteen cells of a component are together; this has two groups of them, the second cut short."""
    lengths = np.array([16384, 18000, 16383, 17408])
    tensors = make_attention(np.random.default_rng(9), batch=4, seq_len=18000, head_dim=8, lengths=lengths)
    check_attention(tensors, index_bits, dict(rank=3, top_k=100), threads=(1, 3))


@given(data=st.data(), isa_index=st.integers(0, 3))
def test_append_in_pieces(any_bits: int, data: st.DataObject, isa_index: int) -> None:
    """Tokens in any number of calls give the cache that they give at once; so does a cache used before."""
    from sparq_ipu import _cpu

    isas = _cpu.available_isas()
    isa = isas[isa_index % len(isas)]
    tensors = data.draw(attentions(head_dims=(8, 24, 64), seq_lens=(1, 9, 63, 64, 65, 129, 193, 1025)))
    settings = data.draw(sparq_settings(tensors)).arguments()
    pieces = make_cache(tensors, isa=isa, index_bits=any_bits)
    if data.draw(st.booleans()):
        stale = np.full_like(tensors.key, 7)
        pieces.append(stale, stale)
        pieces.reset()
    seq_len, first = tensors.key.shape[2], 0
    while first < seq_len:
        n = data.draw(st.sampled_from((1, 2, 7, 31, 63, 64, 65, 200)))
        lengths = np.clip(tensors.lengths - first, 0, min(n, seq_len - first))
        pieces.append(tensors.key[:, :, first : first + n], tensors.value[:, :, first : first + n], lengths)
        first += n
    expected = expected_attention(tensors, any_bits, settings)
    assert_bits(sparq_attention(tensors.query, pieces, **settings), expected, isa)


def test_token_by_token(index_bits: int) -> None:
    """Decoding: attention after every token, over the ends of two blocks."""
    tensors = make_attention(np.random.default_rng(4), batch=2, group_size=2, seq_len=140, head_dim=16)
    caches = {isa: make_cache(tensors, isa=isa, index_bits=index_bits) for isa in ISAS}
    settings = dict(rank=5, top_k=9, n_local=1)
    for n in range(1, 141):
        expected = exact.sparq_attention(
            tensors.query, tensors.key[:, :, :n], tensors.value[:, :, :n], index_bits=index_bits, **settings
        )
        for isa, cache in caches.items():
            cache.append(tensors.key[:, :, n - 1 : n], tensors.value[:, :, n - 1 : n])
            assert_bits(sparq_attention(tensors.query, cache, **settings), expected, f"{isa}, {n} tokens")


@given(data=st.data())
def test_reorder_and_read(any_bits: int, data: st.DataObject) -> None:
    """Beam search: each element continues from a copy of another; then they grow apart, past a block."""
    tensors = data.draw(attentions(batches=(2, 3, 4), head_dims=(8, 16), seq_lens=(1, 63, 64, 190, 1087)))
    batch, seq_len = len(tensors.lengths), tensors.key.shape[2]
    cache = make_cache(tensors, capacity=seq_len + 70, n_threads=2, index_bits=any_bits)
    cache.append(tensors.key, tensors.value, tensors.lengths)
    source = np.arange(batch)
    for _ in range(3):
        index = np.array(data.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch)))
        cache.reorder(index)
        source = source[index]
    n = data.draw(st.sampled_from((1, 65)))
    more = make_attention(
        np.random.default_rng(0), batch=batch, n_kv_heads=tensors.key.shape[1], seq_len=n,
        head_dim=tensors.key.shape[3],
    )  # fmt: skip
    cache.append(more.key, more.value)
    key, value = (
        np.concatenate([x[source], np.full_like(y, np.nan)], axis=2)
        for x, y in zip(tensors.qkv[1:], more.qkv[1:])
    )
    lengths = tensors.lengths[source] + n
    for b, length in enumerate(lengths):
        key[b, :, length - n : length], value[b, :, length - n : length] = more.key[b], more.value[b]
        key[b, :, length:] = value[b, :, length:] = 0
    key, value = key[:, :, : lengths.max()], value[:, :, : lengths.max()]
    got_key, got_value = cache.read(0, key.shape[2])
    assert_bits(got_key, key, "read key")
    assert_bits(got_value, value, "read value")
    settings = dict(rank=3, top_k=5, n_local=1, mean_value=True)
    expected = exact.sparq_attention(
        tensors.query, key, value, lengths=lengths, index_bits=any_bits, **settings
    )
    assert_bits(sparq_attention(tensors.query, cache, **settings), expected, str(source))


def test_flat_blocks_and_denormal_steps(index_bits: int) -> None:
    """Blocks of one value, and of a range of a few fp16 denormals, where the largest code is cut."""
    tensors = make_attention(np.random.default_rng(5), n_kv_heads=4, seq_len=704, head_dim=16)
    rng = np.random.default_rng(6)
    tensors.key[:, :, :64] = np.float16(-3)
    tensors.key[:, :, 64:128] = np.float16(-0.0)
    for block, most in enumerate(
        (1, 4, 7, 20, 22, 23, 300, 380, 382), 2
    ):  # times 2**-24: 4 / 3 and 382 / 255 are 1
        at = slice(block * 64, block * 64 + 64)
        tensors.key[:, :, at] = (rng.integers(0, most + 1, tensors.key[:, :, at].shape) * 2.0**-24).astype(
            np.float16
        )
    tensors.query[...] = tensors.query * np.float16(2000)
    check_attention(tensors, index_bits, dict(rank=9, top_k=30), threads=(1,))


def test_memory(index_bits: int) -> None:
    """The index replaces the fp16 columns, and is smaller in proportion: the open block is counted too."""

    def index_bytes(bits: int) -> int:
        return KVCache(1, 2, 128, 16384, device="cpu", index_bits=bits)._backends[0].key_index_bytes

    assert index_bytes(16) >= 2 * 128 * 16384 * 2
    assert index_bytes(16) / index_bytes(index_bits) > {8: 1.85, 4: 3.5, 2: 6.2}[index_bits]


@pytest.mark.parametrize("group_size", [1, 2])
def test_unchecked_nan_does_no_harm(isa: str, any_bits: int, group_size: int) -> None:
    """With check_finite=False results are unspecified for NaN, but the call returns."""
    tensors = make_attention(np.random.default_rng(7), seq_len=300, head_dim=16, group_size=group_size)
    for place in ("key", "value", "query"):
        bad = np.broadcast_to(np.where(np.arange(16) % 3, np.nan, -np.inf), getattr(tensors, place).shape)
        broken = tensors._replace(**{place: bad.astype(np.float16)})
        for n_threads in (1, 3):
            cache = filled_cache(
                broken, isa=isa, n_threads=n_threads, check_finite=False, index_bits=any_bits
            )
            sparq = sparq_attention(broken.query, cache, rank=3, top_k=20, n_local=2)
            assert sparq.shape == dense_attention(broken.query, cache).shape == broken.query.shape
