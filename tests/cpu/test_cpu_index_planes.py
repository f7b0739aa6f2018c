# SPDX-License-Identifier: Apache-2.0
"""A key index in planes of bits on device "cpu" (docs/exactness.md E12): the bits of the reference."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
from cpu_caches import ISAS, assert_same_bits, filled_cache, make_cache
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, Attention, attentions, fewer, make_attention, sparq_settings

from sparq_ipu import sparq_attention
from sparq_reference import exact, index_planes

#: around blocks of 64 positions, lines of eight of them and cells of 1024
SEQ_LENS = (1, 63, 64, 65, 129, 511, 512, 513, 577, 1023, 1024, 1025, 1600)


def expected_attention(tensors: Attention, settings: dict, **index: int) -> np.ndarray:
    """What the reference computes."""
    return exact.sparq_attention(*tensors.qkv, lengths=tensors.lengths, **index, **settings)


def check_attention(
    tensors: Attention, settings: dict, isas: tuple[str, ...] = ISAS, *, more: int = 0, **index: int
) -> None:
    expected = expected_attention(tensors, settings, **index)
    for isa, n_threads in itertools.product(isas, (1, 3)):
        capacity = tensors.key.shape[2] + more
        cache = filled_cache(tensors, isa=isa, n_threads=n_threads, capacity=capacity, **index)
        what = f"{isa}, {n_threads} threads, {index}"
        assert_same_bits(sparq_attention(tensors.query, cache, **settings), expected, what)


@fewer(3, least=30)
@given(data=st.data(), bits=st.sampled_from((8, 4)))
def test_bits(isa: str, bits: int, data: st.DataObject) -> None:
    tensors = data.draw(attentions(seq_lens=SEQ_LENS))
    settings = data.draw(sparq_settings(tensors)).arguments()
    head_dim = tensors.key.shape[3]
    read_bits = data.draw(st.integers(1, bits * head_dim))
    more = data.draw(st.sampled_from((0, 1, 63, 64, 1024, 20000)))
    check_attention(tensors, settings, (isa,), more=more, index_bits=bits, index_read_bits=read_bits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 4])
def test_every_kind_of_numbers_and_depth(bits: int, kind: str) -> None:
    """Components of very different size are read to very different depths; threads begin inside a cell."""
    rng = np.random.default_rng(KINDS.index(kind))
    tensors = make_attention(
        rng, batch=2, group_size=2, seq_len=2500, head_dim=24, lengths=np.array([1400, 2500]),
        kinds=(kind, kind, "normal"),
    )  # fmt: skip
    tensors.query[...] *= np.float16(2) ** rng.integers(-5, 1, 24).astype(np.float16)
    settings = dict(rank=17, top_k=100, n_local=7, mean_value=True)
    for read_bits in (9, 40, bits * 17 - 1, bits * 24):
        check_attention(tensors, settings, index_bits=bits, index_read_bits=read_bits)
    depth = exact.plane_depths(
        tensors.query, tensors.key, rank=17, index_bits=bits, index_read_bits=40, lengths=tensors.lengths
    )
    assert kind != "normal" or set(range(5)) <= set(depth.ravel())


def test_several_groups_of_cells_and_heads() -> None:
    """Sixteen cells of a component are together; this has two groups of them, the second cut short."""
    lengths = np.array([16384, 18000, 17408])
    tensors = make_attention(
        np.random.default_rng(9), batch=3, group_size=5, seq_len=18000, head_dim=8, lengths=lengths
    )
    check_attention(tensors, dict(rank=6, top_k=100), index_bits=4, index_read_bits=11)


@pytest.mark.parametrize("bits", [8, 4])
def test_largest_sums(bits: int) -> None:
    """Codes, coefficients and middles at their largest at the same place: nothing overflows."""
    tensors = make_attention(np.random.default_rng(3), n_kv_heads=4, seq_len=640, head_dim=128)
    tensors.key[:, :, 100:200] = np.float16(60000)
    tensors.query[:, :, ::2] = np.abs(tensors.query[:, :, ::2]).max()
    for read_bits in (96, 300):
        check_attention(tensors, dict(rank=96, top_k=40), index_bits=bits, index_read_bits=read_bits)


@given(data=st.data(), bits=st.sampled_from((8, 4)))
def test_whatever_the_past_of_a_cache(bits: int, data: st.DataObject) -> None:
    """Appended, truncated, reset and reordered: what counts is what it holds, the largest steps too."""
    tensors = data.draw(attentions(batches=(2, 3), head_dims=(8, 24), seq_lens=(65, 129, 200, 1100)))
    key, value = (np.nan_to_num(x) for x in (tensors.key, tensors.value))  # behind the lengths is NaN
    settings = data.draw(sparq_settings(tensors)).arguments()
    batch, _, seq_len, head_dim = tensors.key.shape
    index = dict(index_bits=bits, index_read_bits=data.draw(st.integers(1, bits * head_dim)))
    cache = make_cache(tensors, capacity=seq_len + 200, n_threads=2, **index)
    wide = np.clip(8 * key.astype(np.float32), -6e4, 6e4).astype(np.float16)  # larger steps than what is left
    if data.draw(st.booleans()):
        cache.append(wide, value)
        cache.reset()
    first = data.draw(st.integers(1, seq_len))
    kept = np.minimum(tensors.lengths, first)
    cache.append(key[:, :, :first], value[:, :, :first], kept)
    n = data.draw(st.sampled_from((1, 64, 200)))
    cache.append(wide[:, :, :n], value[:, :, :n])
    cache.truncate(kept)
    order = np.array(data.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch)))
    cache.reorder(order)
    rest = np.zeros_like(key), np.zeros_like(value)
    lengths = tensors.lengths[order]
    for b, source in enumerate(order):
        left = slice(kept[source], lengths[b])
        rest[0][b, :, : lengths[b] - kept[source]] = tensors.key[source, :, left]
        rest[1][b, :, : lengths[b] - kept[source]] = tensors.value[source, :, left]
    cache.append(*rest, lengths - kept[order])
    now = Attention(tensors.query, tensors.key[order], tensors.value[order], lengths)
    assert_same_bits(
        sparq_attention(now.query, cache, **settings), expected_attention(now, settings, **index), str(order)
    )


def test_token_by_token() -> None:
    """Decoding: attention after every token, over the ends of two blocks."""
    tensors = make_attention(np.random.default_rng(4), batch=2, group_size=2, seq_len=140, head_dim=16)
    index = dict(index_bits=4, index_read_bits=13)
    caches = {isa: make_cache(tensors, isa=isa, **index) for isa in ISAS}
    settings = dict(rank=5, top_k=9, n_local=1)
    for n in range(1, 141):
        now = Attention(tensors.query, tensors.key[:, :, :n], tensors.value[:, :, :n], np.array([n, n]))
        expected = expected_attention(now, settings, **index)
        for isa, cache in caches.items():
            cache.append(tensors.key[:, :, n - 1 : n], tensors.value[:, :, n - 1 : n])
            assert_same_bits(
                sparq_attention(tensors.query, cache, **settings), expected, f"{isa}, {n} tokens"
            )


def test_copies_and_pickles() -> None:
    tensors = make_attention(np.random.default_rng(5), n_kv_heads=2, group_size=2, seq_len=300, head_dim=16)
    index = dict(index_bits=4, index_read_bits=20)
    settings = dict(rank=12, top_k=20)
    expected = expected_attention(tensors, settings, **index)
    cache = filled_cache(tensors, **index)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert "index_bits=4, index_read_bits=20, device='cpu'" in repr(other)
        assert_same_bits(sparq_attention(tensors.query, other, **settings), expected, "copy")


def test_unchecked_nan_does_no_harm(isa: str) -> None:
    """With check_finite=False results are unspecified for NaN, but the call returns."""
    tensors = make_attention(np.random.default_rng(7), seq_len=300, head_dim=16, group_size=2)
    for place in ("key", "query"):
        bad = np.broadcast_to(np.where(np.arange(16) % 3, np.nan, -np.inf), getattr(tensors, place).shape)
        broken = tensors._replace(**{place: bad.astype(np.float16)})
        cache = filled_cache(broken, isa=isa, check_finite=False, index_bits=8, index_read_bits=30)
        assert sparq_attention(broken.query, cache, rank=7, top_k=20).shape == broken.query.shape


@pytest.mark.parametrize("what", ["widest", "unread", "read bits"])
def test_wrong_rules_are_noticed(isa: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an oracle with one rule changed must fail."""
    tensors = make_attention(np.random.default_rng(6), n_kv_heads=8, seq_len=400, head_dim=64, group_size=2)
    tensors.key[:, :, 100:] *= np.float16(2) ** np.arange(-4, 4).repeat(8).astype(np.float16)
    settings = dict(rank=16, top_k=60, n_local=4, mean_value=True)
    index = dict(index_bits=4, index_read_bits=24)
    got = sparq_attention(tensors.query, filled_cache(tensors, isa=isa, **index), **settings)
    assert_same_bits(got, expected_attention(tensors, settings, **index), isa)
    if what == "widest":
        monkeypatch.setattr(index_planes, "largest_steps", lambda step: step[:, 0])
    elif what == "unread":
        monkeypatch.setattr(index_planes, "unread", lambda depth, bits: 0 * depth)
    else:
        index["index_read_bits"] = 25
    with pytest.raises(AssertionError, match="differ, first at"):
        assert_same_bits(got, expected_attention(tensors, settings, **index), what)


def test_the_largest_steps_after_truncate(isa: str) -> None:
    """Of each component another block has the largest step; the last ones of all are forgotten."""
    rng = np.random.default_rng(8)
    tensors = make_attention(rng, n_kv_heads=8, group_size=2, seq_len=400, head_dim=64)
    sizes = np.float16(2) ** rng.integers(-4, 4, (8, 7, 64)).astype(np.float16)
    tensors.key[...] *= np.repeat(sizes, 64, axis=1)[None, :, :400]
    settings, index = dict(rank=16, top_k=60, n_local=4), dict(index_bits=4, index_read_bits=24)
    cache = filled_cache(tensors, isa=isa, **index)
    for length in (383, 200, 100):
        cache.truncate(np.array([length]))
        now = Attention(
            tensors.query, tensors.key[:, :, :length], tensors.value[:, :, :length], np.array([length])
        )
        expected = expected_attention(now, settings, **index)
        assert_same_bits(sparq_attention(now.query, cache, **settings), expected, f"{isa}, {length}")
