# SPDX-License-Identifier: Apache-2.0
"""Layers and heads over several emulated IPUs: bit for bit as on one, and as the reference."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from vertex import _core, assert_bits

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings

SETTINGS: dict[str, Any] = dict(rank=8, top_k=24, n_local=4)
SPARQ = Attention("sparq-streaming", SparqSettings(**SETTINGS))
SHAPE: dict[str, Any] = dict(batch=2, n_kv_heads=4, head_dim=24, capacity=300)
LENGTHS = (40, 70, 130, 200, 64, 65, 128, 256)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def caches(n_layers: int, n_ipus: int, split: str, **options: Any) -> tuple[KVCache, KVCache]:
    pod = KVCache(
        **SHAPE, n_layers=n_layers, n_ipus=n_ipus, split=split, device="emulator", n_tiles=12, **options
    )
    return pod, KVCache(**SHAPE, n_layers=n_layers, device="reference", **options)


@pytest.mark.parametrize(
    ("n_layers", "n_ipus", "split", "index_bits"),
    [
        (8, 4, "layers", 16),
        (8, 4, "heads", 16),
        (8, 8, "heads", 4),  # over KV heads and batch
        (3, 2, "layers", 8),  # two on one, one on the other
        (1, 2, "heads", 16),
    ],
)
def test_a_decode_over_ipus_is_the_reference(n_layers: int, n_ipus: int, split: str, index_bits: int) -> None:
    rng = np.random.default_rng(n_layers)
    both = caches(n_layers, n_ipus, split, index_bits=index_bits)

    def append(layer: int, n: int, counts: list[int]) -> None:
        key, value = numbers(rng, 2, 4, n, 24), numbers(rng, 2, 4, n, 24)
        for cache in both:
            cache.layer(layer).append(key, value, np.array(counts))

    def attend(layer: int) -> None:
        query = numbers(rng, 2, 8, 24)
        of_pod, of_reference = (cache.layer(layer) for cache in both)
        assert_bits(
            sparq_attention(query, of_pod, **SETTINGS), sparq_attention(query, of_reference, **SETTINGS)
        )

    for layer in range(n_layers):
        append(layer, LENGTHS[layer], [LENGTHS[layer], LENGTHS[layer] // 2])
    for layer in range(n_layers):
        attend(layer)
        append(layer, 1, [1, layer % 2])  # by the device
        attend(layer)
    np.testing.assert_array_equal(both[0].lengths, both[1].lengths)
    both[0].layer(n_layers - 1).reset()
    both[1].layer(n_layers - 1).reset()
    append(n_layers - 1, 66, [66, 5])
    for cache in both:
        cache.reorder(np.array([1, 0]))
    for layer in range(n_layers):
        for actual, expected in zip(both[0].layer(layer).read(), both[1].layer(layer).read()):
            assert_bits(actual, expected)
        attend(layer)


def test_dense_attention_and_copies() -> None:
    rng = np.random.default_rng(5)
    pod, reference = caches(2, 2, "layers")
    for cache in (pod, reference):
        cache.layer(1).append(*(numbers(np.random.default_rng(1), 2, 4, 70, 24) for _ in range(2)))
    query = numbers(rng, 2, 8, 24)
    expected = dense_attention(query, reference.layer(1))
    assert_bits(dense_attention(query, pod.layer(1)), expected)
    assert_bits(dense_attention(query, copy.copy(pod).layer(1)), expected)


@pytest.mark.parametrize(("n_ipus", "split"), [(4, "layers"), (4, "heads"), (8, "layers"), (1, "layers")])
def test_all_layers_in_one_launch(n_ipus: int, split: str) -> None:
    """Each layer's output is the query of the next: so every layer, in its order, and what links carry."""
    rng = np.random.default_rng(3)
    spec = CacheSpec(**SHAPE)
    session = _core.Session(
        spec,
        8,
        attention=[SPARQ],
        options=DeviceOptions(n_tiles=12, n_ipus=n_ipus, split=split),
        n_layers=8,
        stacked=True,
    )
    reference = KVCache(**SHAPE, n_layers=8, device="reference")
    for layer, n in enumerate(LENGTHS):
        key, value = numbers(rng, 2, 4, n, 24), numbers(rng, 2, 4, n, 24)
        session.write(key, value, [n, n], layer)
        reference.layer(layer).append(key, value)
    expected = query = numbers(rng, 2, 8, 24)
    for layer in range(8):
        expected = sparq_attention(expected, reference.layer(layer), **SETTINGS)
    assert_bits(session.attend_all(0, query), expected)
    run = _core.emulator_last_run(session)
    crossing = [step for step in run["steps"] if step["link_bytes"] and step["kind"] == "copy"]
    hidden = 2 * 2 * 8 * 24
    if n_ipus == 1:
        assert not crossing and run["seconds"]["links"] == 0
    elif split == "layers":  # each hand-over once, from neighbour to neighbour
        assert [step["ipus"] for step in crossing] == [[i, i + 1] for i in range(n_ipus - 1)]
        assert {step["link_bytes"] for step in crossing} == {hidden}
    else:  # of every layer the query out and the outputs back, but for what stays on IPU 0
        assert [step["name"] for step in crossing] == ["scatter_query", "gather_output"]
        assert {step["executions"] for step in crossing} == {8}
        assert {step["link_bytes"] for step in crossing} == {hidden * (n_ipus - 1) // n_ipus}
    assert len(run["seconds_by_ipu"]) == n_ipus
    # what IPUs do alone adds up to all that is done
    alone = sum(s["seconds"]["total"] for s in run["steps"] if len(s["ipus"]) == 1)
    together = sum(s["seconds"]["total"] for s in run["steps"] if len(s["ipus"]) > 1)
    assert alone + together == pytest.approx(run["seconds"]["total"])


def test_memory_is_that_of_each_ipu() -> None:
    spec = CacheSpec(**SHAPE)
    bytes_of = [
        _core.Session(
            spec, 8, attention=[SPARQ], options=DeviceOptions(n_tiles=12, n_ipus=n), n_layers=4
        ).streaming_memory_bytes
        for n in (1, 4)
    ]
    assert len(bytes_of[1]) == 4 and len(set(bytes_of[1])) == 1
    assert 3 * bytes_of[1][0] < bytes_of[0][0]
    session = _core.Session(
        spec, 8, attention=[SPARQ], options=DeviceOptions(n_tiles=12, n_ipus=2), n_layers=3
    )
    assert session.streaming_memory_bytes[0] > session.streaming_memory_bytes[1]  # two layers, one


def test_what_does_not_fit_names_the_ipu_and_the_resource() -> None:
    with pytest.raises(DoesNotFit, match=r"bytes of streaming memory of IPU 0;") as refused:
        KVCache(1, 8, 128, 1 << 20, n_layers=64, n_ipus=4, device="emulator")
    assert refused.value.resource == "streaming memory of IPU 0"
    assert refused.value.need == 2 * 2 * 8 * 128 * (1 << 20) * 16 and refused.value.room == 64 * 10**9
    # on two tiles an IPU, the tail of so many layers is too much
    with pytest.raises(DoesNotFit, match=r"tile \d of IPU \d must need at most 638976") as refused:
        _core.Session(
            CacheSpec(4, 4, 64, 512),
            4,
            attention=[SPARQ],
            options=DeviceOptions(n_tiles=2, n_ipus=2),
            n_layers=200,
        )
    assert refused.value.resource in ("tile memory of IPU 0", "tile memory of IPU 1")
    assert refused.value.need > refused.value.room == 638976


def test_messages_of_a_session() -> None:
    session = _core.Session(
        CacheSpec(**SHAPE), 8, attention=[SPARQ], options=DeviceOptions(n_tiles=4, n_ipus=2), n_layers=2
    )
    token, query = np.zeros((2, 4, 1, 24), np.float16), np.zeros((2, 8, 24), np.float16)
    for op, call in (
        ("append", lambda: session.append(token, token, [1, 1], 2)),
        ("append", lambda: session.write(token, token, [1, 1], 2)),
        ("attention", lambda: session.attention(0, query, layer=2)),
        ("read", lambda: session.read(1, 2)),
        ("reset", lambda: session.reset(2)),
        ("lengths", lambda: session.lengths(2)),
    ):
        with pytest.raises(ValueError, match=rf"{op}: layer must be in \[0, n_layers=2\), got 2"):
            call()
    with pytest.raises(ValueError, match=r"attention: index must be in \[0, 1\), got 1"):
        session.attention(1, query)
    with pytest.raises(ValueError, match="must have been made with stacked=True, got False"):
        session.attend_all(0, query)


def test_a_pod_that_is_full_is_unchanged_everywhere() -> None:
    """One batch element has no room: no IPU appends anything."""
    session = _core.Session(
        CacheSpec(2, 1, 24, 64),
        2,
        attention=[SPARQ],
        options=DeviceOptions(n_tiles=4, n_ipus=2, split="heads"),
    )
    rng = np.random.default_rng(0)
    session.write(numbers(rng, 2, 1, 64, 24), numbers(rng, 2, 1, 64, 24), [3, 64], 0)
    before = session.read(64)
    token = np.ones((2, 1, 1, 24), np.float16)
    for call in (session.append, session.write):
        message = r"append: length must be at most capacity=64 \(element 1 holds 64, 1 more\)"
        with pytest.raises(ValueError, match=message):
            call(token, token, [1, 1], 0)
    assert session.lengths() == [3, 64]
    for actual, expected in zip(session.read(64), before):
        assert_bits(actual, expected)
