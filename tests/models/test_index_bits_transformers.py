# SPDX-License-Identifier: Apache-2.0
"""index_bits of models of transformers: against the oracle over the ordinary cache, at lengths on both sides
of a block of 64 positions."""

from __future__ import annotations

import copy
import re

import pytest
from index_bits import DEVICES
from tiny_models import (
    Oracle,
    enable,
    left_padded,
    step_logits,
    tiny_model,
    tokens_of,
    torch,
)

from sparq_ipu.transformers import (
    SparqCache,
    enable_dense,
)

SETTINGS = dict(rank=4, top_k=12, n_local=3, mean_value=True)
FOUR = dict(SETTINGS, index_bits=4)


def oracle_of(*layers):
    """A twin of the tiny model, and the oracle in it; one setting is that of all layers."""
    twin = tiny_model()
    Oracle(list(layers) if len(layers) == 3 else list(layers) * 3).install(twin)
    return twin


def ragged():
    return left_padded([tokens_of(126), tokens_of(61, seed=1), tokens_of(9, seed=2)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_padded_batch_equals_the_oracle(model, device, index_bits):
    """Two rows pass the end of a block while they decode, the third never fills one."""
    tokens, mask = ragged()
    enable(model, device=device, index_bits=index_bits, **SETTINGS)
    got = step_logits(model, tokens, 6, mask)
    assert torch.equal(got, step_logits(oracle_of(dict(SETTINGS, index_bits=index_bits)), tokens, 6, mask))
    other = step_logits(oracle_of(dict(SETTINGS, index_bits=8 if index_bits != 8 else 4)), tokens, 6, mask)
    assert not torch.equal(got, other)  # negative control
    assert torch.equal(got[:, 2], other[:, 2])


def test_by_layer(model):
    tokens = tokens_of(130)
    cache = SparqCache(model)
    enable(model, layers={0: None, 1: {"index_bits": 8}}, **FOUR)
    got = step_logits(model, tokens, 4, cache=cache)
    assert [layer.cache.index_bits for layer in cache.layers] == [2, 8, 4]  # a dense layer has the smallest
    assert torch.equal(got, step_logits(oracle_of(None, dict(SETTINGS, index_bits=8), FOUR), tokens, 4))
    enable(model, **FOUR)
    assert not torch.equal(got, step_logits(model, tokens, 4))


@pytest.mark.parametrize("moved", [4096, 37])
def test_a_cache_that_grows_keeps_it(model, monkeypatch, moved):
    """Its index is made anew, in pieces of any size."""
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage._MOVED", moved)
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage.FIRST_ROOM", 3)
    tokens, mask = ragged()
    cache = SparqCache(model)
    enable(model, **FOUR)
    got = step_logits(model, tokens, 6, mask, cache=cache)
    assert cache.layers[0].cache.capacity == 2 * (126 + 3) and cache.layers[0].cache.index_bits == 4
    assert torch.equal(got, step_logits(oracle_of(FOUR), tokens, 6, mask))


def test_copies_and_rows_keep_it(model):
    """That they hold the same numbers is tested with an index of 16 bits."""
    enable(model, layers={1: {"index_bits": 8}}, **FOUR)
    cache = SparqCache(model)
    with torch.no_grad():
        model(tokens_of(70, batch=2), cache=cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    for held in (cache, copy.deepcopy(cache)):
        assert [layer.cache.index_bits for layer in held.layers] == [4, 8, 4]
        assert {layer.cache.batch for layer in held.layers} == {4}
    cache.reset()  # and is then what the model asks for
    enable(model, **SETTINGS)
    with torch.no_grad():
        model(tokens_of(70), cache=cache)
    assert [layer.cache.index_bits for layer in cache.layers] == [16, 16, 16]


def test_a_cache_of_its_own_index_bits(model):
    """Where the model is enabled without, the cache decides."""
    tokens = tokens_of(130)
    enable(model, **SETTINGS)
    cache = SparqCache(model, index_bits=4)
    got = step_logits(model, tokens, 4, cache=cache)
    assert [layer.cache.index_bits for layer in cache.layers] == [4, 4, 4]
    assert torch.equal(got, step_logits(oracle_of(FOUR), tokens, 4))


def test_index_bits_of_another_cache(model):
    """A model that is enabled with some, and a cache that has others: refused, and nothing changes."""
    tokens = tokens_of(130)
    enable(model, **FOUR)
    cache = SparqCache(model)
    with torch.no_grad():
        model(tokens, cache=cache)
    expected = step_logits(model, tokens, 4)
    enable(model, layers={1: {"index_bits": 8}}, **FOUR)

    def refused(index_bits, own, layer):
        message = f"sparq_attention: index_bits must be that of the cache, {own} in layer {layer}, "
        return pytest.raises(ValueError, match="^" + re.escape(f"{message}got {index_bits}") + "$")

    for new in (tokens_of(1), tokens_of(5)):
        with refused(8, 4, 1):
            model(new, cache=cache)
    assert cache.get_seq_length() == 130 and not any(layer.is_armed for layer in cache.layers)
    empty = SparqCache(model, index_bits=16)
    with refused(4, 16, 0):
        model(tokens, cache=empty)
    assert empty.get_seq_length() == 0
    enable_dense(model)  # reads no key index
    with torch.no_grad():
        model(tokens_of(1), cache=copy.deepcopy(cache))
    enable(model, **SETTINGS)  # takes what the cache has
    following = tokens_of(4, seed=77)
    with torch.no_grad():
        for index in range(4):
            logits = model(following[:, index : index + 1], cache=cache).logits
            assert torch.equal(logits[:, -1], expected[index])


def test_a_cache_that_a_dense_run_filled(model):
    tokens = tokens_of(130)
    enable_dense(model, index_bits=4)
    cache = SparqCache(model, index_bits=4)
    with torch.no_grad():
        model(tokens, cache=cache)
        made = model(tokens).cache
    assert [layer.cache.index_bits for layer in made.layers] == [4, 4, 4]
    enable(model, **FOUR)
    oracle, logits = oracle_of(FOUR), []
    with torch.no_grad():
        theirs = oracle(tokens, use_cache=True).cache
        for used, held in ((model, cache), (model, made), (oracle, theirs)):
            logits.append(used(tokens_of(1), cache=held).logits)
    assert torch.equal(logits[0], logits[2]) and torch.equal(logits[1], logits[2])
    with pytest.raises(ValueError, match=r"^KVCache: index_bits must be one of 16, 8, 4, 2, got 3$"):
        enable_dense(model, index_bits=3)
