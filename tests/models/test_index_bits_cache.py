# SPDX-License-Identifier: Apache-2.0
"""index_bits of a `KVCache`: bit for bit against the reference, refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_bits import DEVICES, REFUSED, SETTINGS, SHAPE, draw, expected, refusal

import sparq_ipu
from sparq_reference import exact

CACHES = [dict(device=device) for device in DEVICES]
if "emulator" in sparq_ipu.available_devices():
    CACHES.append(dict(device="emulator", n_tiles=16))


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("options", CACHES, ids=str)
def test_a_cache_equals_the_reference(options, index_bits):
    """At every length around a block: full blocks come from the index, the rest from the keys."""
    cache = sparq_ipu.KVCache(**SHAPE, **options, index_bits=np.int64(index_bits))
    assert cache.index_bits == index_bits and type(cache.index_bits) is int
    assert f", index_bits={index_bits}, " in repr(cache)
    key, value = draw(0, 2, 2, 140, 16), draw(1, 2, 2, 140, 16)
    lengths = np.array([60, 124])
    cache.append(key[:, :, :124], value[:, :, :124], lengths)
    different = 0
    for step in range(10):
        query = draw(10 + step, 2, 4, 16)
        output = sparq_ipu.sparq_attention(query, cache, **SETTINGS)
        assert np.array_equal(output, expected(query, key, value, lengths, index_bits))
        different += not np.array_equal(output, expected(query, key, value, lengths, 16))
        # dense attention reads the keys themselves
        dense = exact.dense_attention(query, key, value, lengths=lengths)
        assert np.array_equal(sparq_ipu.dense_attention(query, cache), dense)
        token = [np.stack([x[b, :, n : n + 1] for b, n in enumerate(lengths)]) for x in (key, value)]
        cache.append(*token)
        lengths = lengths + 1
    assert (different > 0) == (index_bits != 16)  # negative control


@given(st.data(), st.sampled_from(CACHES), st.sampled_from([8, 4]), st.integers(0, 2**16))
def test_any_way_to_fill_a_cache_is_one(data, options, index_bits, seed):
    """Chunks of any size, capacity, and a past: what is stored depends on the keys and lengths alone."""
    batch = data.draw(st.integers(1, 3))
    lengths = np.array([data.draw(st.integers(1, 140)) for _ in range(batch)])
    key, value = draw(seed, batch, 2, 140, 16), draw(seed + 1, batch, 2, 140, 16)
    query, index = draw(seed + 2, batch, 4, 16), np.array(data.draw(st.permutations(range(batch))))
    shape = dict(SHAPE, batch=batch, capacity=data.draw(st.integers(140, 300)))
    cache = sparq_ipu.KVCache(**shape, **options, index_bits=index_bits)
    if data.draw(st.booleans()):
        cache.append(value[:, :, :70], key[:, :, :70])
        cache.reset()
    held = 0
    while held < 140:
        n = data.draw(st.integers(1, 140 - held))
        counts = np.clip(lengths - held, 0, n)
        cache.append(key[:, :, held : held + n], value[:, :, held : held + n], counts)
        held += n
    cache.reorder(index)
    output = sparq_ipu.sparq_attention(query, cache, **SETTINGS)
    assert np.array_equal(output, expected(query, key[index], value[index], lengths[index], index_bits))


@pytest.mark.parametrize("index_bits, shown", REFUSED)
def test_a_cache_refuses_before_it_allocates(monkeypatch, index_bits, shown):
    def allocate(device):
        raise AssertionError("a backend was asked for")

    monkeypatch.setattr("sparq_ipu.cache.backend_module", allocate)
    with pytest.raises(ValueError, match=refusal("KVCache", shown)):
        sparq_ipu.KVCache(**SHAPE, index_bits=index_bits)
    with pytest.raises(ValueError, match=r"^KVCache: head_dim must be at most 65536 with index_bits=4, got"):
        sparq_ipu.KVCache(1, 1, 65544, 1, index_bits=4)
    with pytest.raises(AssertionError, match="a backend"):  # negative control
        sparq_ipu.KVCache(**SHAPE, index_bits=4, device="reference")
