# SPDX-License-Identifier: Apache-2.0
"""A key index of some components on device "cpu" (docs/exactness.md E13): the bits of the reference."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from cpu_caches import ISAS, assert_same_bits, filled_cache, make_cache
from hypothesis import given
from hypothesis import strategies as st
from strategies import Attention, attentions, fewer, make_attention, sparq_settings

from sparq_ipu import sparq_attention
from sparq_reference import exact

#: around blocks of 64 positions and cells of 1024
SEQ_LENS = (1, 63, 64, 65, 129, 577, 1023, 1024, 1025, 1600)


def expected_attention(tensors: Attention, settings: dict, **index: int) -> np.ndarray:
    return exact.sparq_attention(*tensors.qkv, lengths=tensors.lengths, **index, **settings)


@fewer(3, least=30)
@given(data=st.data(), bits=st.sampled_from((2, 4, 8, 16)))
def test_bits(isa: str, bits: int, data: st.DataObject) -> None:
    tensors = data.draw(attentions(head_dims=(8, 16, 24, 80, 136), seq_lens=SEQ_LENS))
    components = 8 * data.draw(st.integers(1, tensors.key.shape[3] // 8))
    settings = data.draw(sparq_settings(tensors)).arguments()
    settings["rank"] = min(settings["rank"], components)
    index = dict(index_bits=bits, index_components=components)
    expected = expected_attention(tensors, settings, **index)
    for n_threads in (1, 3):
        capacity = tensors.key.shape[2] + data.draw(st.sampled_from((0, 1, 64, 20000)))
        cache = filled_cache(tensors, isa=isa, n_threads=n_threads, capacity=capacity, **index)
        assert_same_bits(sparq_attention(tensors.query, cache, **settings), expected, f"{n_threads} threads")


@pytest.mark.parametrize("bits", [16, 4, 2])
def test_whatever_the_past_of_a_cache(bits: int) -> None:
    """Appended token by token over the end of a block, truncated, reordered, copied."""
    tensors = make_attention(np.random.default_rng(bits), batch=2, group_size=2, seq_len=200, head_dim=24)
    settings, index = dict(rank=7, top_k=9, n_local=1), dict(index_bits=bits, index_components=16)
    for isa in ISAS:
        cache = make_cache(tensors, isa=isa, **index)
        cache.append(tensors.value[:, :, :150], tensors.key[:, :, :150])
        cache.truncate(np.zeros(2, np.int64))
        for n in (130, *range(131, 200)):
            held = int(cache.lengths[0])
            cache.append(tensors.key[:, :, held:n], tensors.value[:, :, held:n])
        cache.reorder(np.array([1, 1]))
        now = Attention(
            tensors.query, tensors.key[[1, 1], :, :199], tensors.value[[1, 1], :, :199], np.array([199] * 2)
        )
        expected = expected_attention(now, settings, **index)
        for other in (cache, copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
            assert f"index_bits={bits}, index_components=16, device='cpu'" in repr(other)
            assert_same_bits(sparq_attention(now.query, other, **settings), expected, isa)


def test_it_takes_as_much_less_memory() -> None:
    tensors = make_attention(np.random.default_rng(0), n_kv_heads=2, seq_len=64, head_dim=128)
    sizes = {
        n: make_cache(tensors, capacity=64 * 1024, index_bits=2, index_components=n)
        ._backends[0]
        .key_index_bytes
        for n in (0, 128, 64, 32)
    }
    assert sizes[0] == sizes[128] == 2 * sizes[64] == 4 * sizes[32]


def test_a_wrong_rule_is_noticed(isa: str) -> None:
    """Negative control: an oracle that chooses among eight components more."""
    tensors = make_attention(np.random.default_rng(6), n_kv_heads=4, seq_len=400, head_dim=64, group_size=2)
    settings, index = dict(rank=16, top_k=60), dict(index_bits=4, index_components=32)
    got = sparq_attention(tensors.query, filled_cache(tensors, isa=isa, **index), **settings)
    assert_same_bits(got, expected_attention(tensors, settings, **index), isa)
    with pytest.raises(AssertionError, match="differ, first at"):
        assert_same_bits(got, expected_attention(tensors, settings, index_bits=4, index_components=40), isa)


def test_a_rank_above_it_is_refused() -> None:
    tensors = make_attention(np.random.default_rng(6), seq_len=70, head_dim=64)
    cache = filled_cache(tensors, index_bits=4, index_components=32)
    with pytest.raises(
        ValueError, match=r"^sparq_attention: rank must be in \[1, index_components=32\], got 33$"
    ):
        sparq_attention(tensors.query, cache, rank=33, top_k=9)
    sparq_attention(tensors.query, cache, rank=32, top_k=9)  # negative control
