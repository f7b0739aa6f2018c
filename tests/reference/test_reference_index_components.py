# SPDX-License-Identifier: Apache-2.0
"""A key index of some components (docs/exactness.md E13), and which of them to have.

Each law has a negative control: the same without index_components."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import strategies
from bits import bits_of
from calls import refusal
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import CacheSpec, KVCache, SparqSettings, component_order, exact, ideal
from sparq_reference.twin import Steps


def draw(seed: int, head_dim: int = 24) -> strategies.Attention:
    rng = np.random.default_rng(seed)
    return strategies.make_attention(rng, batch=2, n_kv_heads=2, group_size=3, seq_len=150, head_dim=head_dim)


def steps_of(twin: Any, tensors: strategies.Attention, rank: int, **index: int) -> Steps:
    settings = SparqSettings(rank, 20, 2)
    return twin.sparq_steps(*tensors.qkv, settings, lengths=tensors.lengths, **index)


@given(
    seed=st.integers(0, 999),
    components=st.sampled_from([8, 16, 24]),
    bits=st.sampled_from([16, 8, 4, 2]),
    data=st.data(),
)
def test_a_query_chooses_among_the_first(seed: int, components: int, bits: int, data: st.DataObject) -> None:
    """In plain Python: the components that are offered, ordered by magnitude, equal ones by lower index."""
    tensors = draw(seed)
    rank = data.draw(st.integers(1, components))
    found = steps_of(exact, tensors, rank, index_bits=bits, index_components=components).components
    for b in range(2):
        for kv in range(2):
            size = [0.0] * components
            for h in range(3 * kv, 3 * kv + 3):
                for c in range(components):
                    size[c] = float(np.float32(size[c]) + abs(np.float32(tensors.query[b, h, c])))
            best = sorted(range(components), key=lambda c: (-size[c], c))[:rank]
            assert found[b, kv].tolist() == sorted(best)


@pytest.mark.parametrize("twin", [exact, ideal], ids=["exact", "ideal"])
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
def test_selection_does_not_look_at_other_components_of_keys(twin: Any, bits: int) -> None:
    tensors = draw(bits)
    other = tensors._replace(key=tensors.key.copy())
    other.key[..., 16:] *= np.float16(-3)

    def positions(of: strategies.Attention, index_components: int) -> np.ndarray:
        found: np.ndarray = steps_of(
            twin, of, 12, index_bits=bits, index_components=index_components
        ).positions
        return found

    assert np.array_equal(positions(tensors, 16), positions(other, 16))
    assert not np.array_equal(positions(tensors, 0), positions(other, 0))  # negative control


@pytest.mark.parametrize("bits", [16, 4])
def test_all_components_are_no_limit(bits: int) -> None:
    tensors = draw(3)
    settings = dict(rank=7, top_k=20, n_local=2, lengths=tensors.lengths, index_bits=bits)
    outputs = [
        bits_of(exact.sparq_attention(*tensors.qkv, **settings, index_components=n)) for n in (0, 24, 8)
    ]
    assert np.array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])  # negative control


def test_the_temperature_is_of_all_components() -> None:
    tensors = draw(4)
    louder = tensors._replace(query=tensors.query.copy())
    louder.query[..., 16:] *= np.float16(4)
    same, other = (steps_of(exact, t, 8, index_components=16) for t in (tensors, louder))
    assert np.array_equal(same.components, other.components)
    assert (other.inv_tau > same.inv_tau).all()


def test_a_cache_has_the_option() -> None:
    tensors = draw(5)
    cache = KVCache(2, 2, 24, 160, index_bits=4, index_components=16)
    cache.append(tensors.key, tensors.value, tensors.lengths)
    settings = dict(rank=9, top_k=20)
    expected = exact.sparq_attention(
        *tensors.qkv, lengths=tensors.lengths, index_bits=4, index_components=16, **settings
    )
    assert np.array_equal(bits_of(cache.sparq_attention(tensors.query, **settings)), bits_of(expected))
    message = "sparq_attention: rank must be in [1, index_components=16], got 17"
    assert refusal(cache.sparq_attention, tensors.query, rank=17, top_k=3) == message


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (dict(index_components=12), "index_components must be a multiple of 8, got 12"),
        (dict(index_components=-8), "index_components must be in [0, head_dim=24], got -8"),
        (dict(index_components=32), "index_components must be in [0, head_dim=24], got 32"),
        (dict(index_components=True), "index_components must be an integer in [0, head_dim=24], got True"),
        (dict(index_components=8, rank=9), "rank must be in [1, index_components=8], got 9"),
    ],
)
def test_bad_values_are_refused(given_: dict[str, Any], message: str) -> None:
    tensors = draw(6)
    options = {"rank": 4, "top_k": 5, **given_}
    for twin in (exact, ideal):
        assert refusal(twin.sparq_attention, *tensors.qkv, **options) == f"sparq_attention: {message}"
    if "rank" not in given_:
        assert refusal(CacheSpec, 1, 1, 24, 10, **given_) == f"CacheSpec: {message}"


def test_the_order_of_a_prompt() -> None:
    """By the mean of |q| over tokens, summed over the group, times the keys' standard deviation."""
    rng = np.random.default_rng(7)
    query = rng.standard_normal((2, 6, 40, 16)).astype(np.float16)
    key = (rng.standard_normal((2, 2, 90, 16)) * rng.uniform(0, 4, (2, 2, 1, 16)) + 50).astype(np.float16)
    order = component_order.by_prompt(query, key)
    for b in range(2):
        for kv in range(2):
            weights = []
            for c in range(16):
                size = sum(np.abs(query[b, h, :, c].astype(float)).mean() for h in range(3 * kv, 3 * kv + 3))
                weights.append(size * key[b, kv, :, c].astype(float).std())
            assert sorted(order[b, kv].tolist()) == list(range(16))
            assert all(weights[i] >= weights[j] for i, j in zip(order[b, kv], order[b, kv][1:]))
    assert len({tuple(row) for row in order.reshape(-1, 16)}) == 4  # every head has its own
    nothing = component_order.by_prompt(query * 0, key)
    assert (nothing == np.arange(16)).all()  # equal ones by lower index


def test_rows_in_an_order() -> None:
    rng = np.random.default_rng(8)
    query = rng.standard_normal((2, 6, 16)).astype(np.float16)
    key, value = (rng.standard_normal((2, 2, 70, 16)).astype(np.float16) for _ in "kv")
    order = component_order.by_prompt(query[:, :, None], key)
    rows = component_order.reorder(key, order)
    heads = component_order.reorder(query, order)
    for b in range(2):
        for h in range(6):
            assert np.array_equal(rows[b, h // 3, 9], key[b, h // 3, 9][order[b, h // 3]])
            assert np.array_equal(heads[b, h], query[b, h][order[b, h // 3]])
    # attention does not care, but for roundings
    same = ideal.dense_attention(query.astype(float), key.astype(float), value.astype(float))
    ordered = ideal.dense_attention(heads.astype(float), rows.astype(float), value.astype(float))
    np.testing.assert_allclose(ordered, same, rtol=1e-9)
