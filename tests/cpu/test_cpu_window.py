# SPDX-License-Identifier: Apache-2.0
"""Window attention on device "cpu": the bits of the reference, and its history, on any number of threads."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import strategies
from calls import refusal
from cpu_caches import assert_bits
from hypothesis import given
from hypothesis import strategies as st

import sparq_ipu
from sparq_ipu.attention import attention
from sparq_reference import WindowSettings

_cpu = pytest.importorskip("sparq_ipu._cpu", reason="the extension module sparq_ipu._cpu is not built")


def caches(*shape: int, **options: Any) -> list[sparq_ipu.KVCache]:
    """The reference, and the kernels with these options."""
    return both_with({}, *shape, **options)


def both_with(of_cache: dict[str, int], *shape: int, **options: Any) -> list[sparq_ipu.KVCache]:
    """The same with these fields of `CacheSpec`."""
    return [
        sparq_ipu.KVCache(*shape, device="reference", **of_cache),
        sparq_ipu.KVCache(*shape, device="cpu", **of_cache, **options),
    ]


def tokens(seed: int, batch: int, n_heads: int, n_kv_heads: int, n: int, kind: str, head_dim: int) -> tuple:
    rng = np.random.default_rng(seed)
    shapes = ((batch, n_heads, n, head_dim), *[(batch, n_kv_heads, n, head_dim)] * 2)
    return tuple(strategies.tensors(kind, shape, rng) for shape in shapes)


def histories(cache: sparq_ipu.KVCache) -> list[list[list[int]]] | None:
    """The shares of each step of each batch element."""
    held = cache.one_layer("test").history()
    return None if held is None else [[s.tolist() for s in steps] for steps in held.steps]


@given(
    isa_index=st.integers(0, 9),
    n_threads=st.sampled_from((1, 2, 3, 8)),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(strategies.KINDS),
    shape=st.sampled_from(((1, 1, 1, 8), (3, 2, 2, 16), (2, 6, 2, 80), (1, 8, 1, 64))),
    start=st.sampled_from((3, 64, 130)),
    of_cache=st.sampled_from(({}, dict(row_bits=8), dict(index_bits=4, row_bits=8), dict(index_bits=2))),
    settings=st.sampled_from(
        (
            (1, 0, 2),
            (7, None, 3),
            (8, 8, 3),
            (9, 0, 0),
            (40, 5, 0),
            (64, 1, 40),
            (65, None, 1),
            (300, None, 4),
        )
    ),
)
def test_bits(
    isa_index: int,
    n_threads: int,
    seed: int,
    kind: str,
    shape: tuple,
    start: int,
    of_cache: dict,
    settings: tuple,
) -> None:
    """Steps after a prompt, with all that changes a cache between them."""
    batch, n_heads, n_kv_heads, head_dim = shape
    isas = _cpu.available_isas()
    options = dict(isa=isas[isa_index % len(isas)], n_threads=n_threads)
    both = both_with(of_cache, batch, n_kv_heads, head_dim, 150, **options)
    query, key, value = tokens(seed, batch, n_heads, n_kv_heads, start + 8, kind, head_dim)
    chosen = WindowSettings(*settings)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, start + 1, batch)
    index = rng.integers(0, batch, batch)
    for cache in both:
        cache.append(key[:, :, :start], value[:, :, :start], lengths)
        cache.observe(query[:, :, start - 3 : start], **chosen.arguments())
    for now in range(start, start + 8):
        outputs = []
        for cache in both:
            cache.append(key[:, :, now : now + 1], value[:, :, now : now + 1])
            outputs.append(attention(query[:, :, now], cache, chosen))
            if now == start + 3:
                cache.truncate(cache.lengths - 2)
            if now == start + 5:
                cache.reorder(index)
        assert_bits(outputs[1], outputs[0], f"step {now}")
        assert histories(both[1]) == histories(both[0])
    assert (histories(both[0]) is not None) == chosen.remembers


def test_elements_that_changed_places_are_cut_on_their_own() -> None:
    """After a reorder an element lies in another's place: its own history is cut there, at its own length."""
    both = caches(3, 1, 8, 40)
    query, key, value = tokens(7, 3, 2, 1, 30, "normal", 8)
    settings = WindowSettings(8, None, 3)
    for cache in both:
        cache.append(key, value, np.array([30, 20, 10]))
        cache.observe(query[:, :, 20:24], **settings.arguments())
        cache.reorder(np.array([2, 0, 1]))
        cache.truncate(np.array([4, 29, 13]))
    assert histories(both[1]) == histories(both[0]) is not None
    assert_bits(*(attention(query[:, :, 0], cache, settings) for cache in reversed(both)), "after")


def test_many_positions_and_threads() -> None:
    """Selection among thousands of sums, and a history longer than the steps: running sums stay exact."""
    both = caches(2, 2, 16, 5100, n_threads=3)
    query, key, value = tokens(5, 2, 8, 2, 5040, "normal", 16)
    for cache in both:
        cache.append(key[:, :, :5000], value[:, :, :5000], np.array([5000, 2100]))
        cache.observe(3 * query[:, :, 4980:5000], top_k=300, n_recent=16)
    for now in range(5000, 5040):
        outputs = []
        for cache in both:
            cache.append(key[:, :, now : now + 1], value[:, :, now : now + 1])
            outputs.append(sparq_ipu.window_attention(query[:, :, now], cache, top_k=300, n_recent=16))
        assert_bits(outputs[1], outputs[0], f"step {now}")
    assert histories(both[1]) == histories(both[0])


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_copies_remember(device: str) -> None:
    cache = sparq_ipu.KVCache(2, 1, 8, 64, device=device)
    query, key, value = tokens(2, 2, 2, 1, 30, "normal", 8)
    cache.append(key[:, :, :20], value[:, :, :20])
    cache.observe(query[:, :, 16:20], top_k=4, n_recent=3)
    copies = [copy.copy(cache), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    assert all(histories(c) == histories(cache) for c in copies)
    for now in range(20, 30):
        outputs = []
        for each in (cache, *copies):
            each.append(key[:, :, now : now + 1], value[:, :, now : now + 1])
            outputs.append(sparq_ipu.window_attention(query[:, :, now], each, top_k=4, n_recent=3))
        assert all((y.view(np.uint16) == outputs[0].view(np.uint16)).all() for y in outputs)
    cache.reset()
    assert histories(cache) is None
    forgetful = sparq_ipu.KVCache(2, 1, 8, 64, device=device)
    forgetful.append(key[:, :, :29], value[:, :, :29])
    y = sparq_ipu.window_attention(query[:, :, 29], forgetful, top_k=4, n_recent=3)
    assert not np.array_equal(y, outputs[0])  # negative control: without the history


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_several_tokens_a_step(device: str) -> None:
    query, key, value = tokens(4, 2, 4, 2, 12, "normal", 8)
    cache, one_by_one = (sparq_ipu.KVCache(2, 2, 8, 64, device=device) for _ in range(2))
    settings = WindowSettings(4, n_recent=5)
    got = sparq_ipu.append_and_attend(query, key, value, cache, settings)
    for now in range(12):
        one_by_one.append(key[:, :, now : now + 1], value[:, :, now : now + 1])
        assert_bits(got[:, :, now], attention(query[:, :, now], one_by_one, settings), f"token {now}")
    assert histories(cache) == histories(one_by_one)


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_a_copy_remembers_n_recent_where_no_step_is_left(device: str) -> None:
    cache = sparq_ipu.KVCache(1, 1, 8, 16, device=device)
    query, key, value = tokens(5, 1, 2, 1, 9, "normal", 8)
    cache.append(key, value)
    cache.observe(query[:, :, 8:], top_k=4, n_recent=3)
    cache.truncate(np.array([8]))
    for each in (cache, copy.copy(cache)):
        assert histories(each) == [[]]
        words = "window_attention: n_recent must be the n_recent=3 of the steps so far, got 2"
        assert (
            refusal(partial(sparq_ipu.window_attention, query[:, :, 8], each, top_k=4, n_recent=2)) == words
        )


@pytest.mark.parametrize(
    "device, n_tokens",  # a program of an IPU takes one token a call
    [
        (device, n)
        for device in sparq_ipu.available_devices()
        for n in ((1, 2) if device in ("cpu", "reference") else (1,))
    ],
)
def test_a_step_of_another_n_recent_is_refused_before_anything_is_stored(device: str, n_tokens: int) -> None:
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device=device)
    query, key, value = tokens(6, 1, 2, 1, 10, "normal", 8)
    cache.append(key, value)
    cache.observe(query[:, :, 9:], top_k=4, n_recent=3)
    before, new = histories(cache), [x[:, :, :n_tokens] for x in (query, key, value)]
    refused = partial(sparq_ipu.append_and_attend, *new, cache)
    words = "window_attention: n_recent must be the n_recent=3 of the steps so far, got 2"
    assert refusal(partial(refused, WindowSettings(4, n_recent=2))) == words
    words = "window_attention: n_recent must be in [0, 16383] for n_heads=2, got 20000"
    assert refusal(partial(refused, WindowSettings(4, n_recent=20000))) == words
    assert cache.lengths.tolist() == [10] and histories(cache) == before
    refused(WindowSettings(4, n_recent=3))  # negative control
    assert cache.lengths.tolist() == [10 + n_tokens] and histories(cache) != before


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_later_observations_and_shorter_lengths_keep_earlier_steps(device: str) -> None:
    cache, settings = sparq_ipu.KVCache(1, 1, 8, 64, device=device), dict(top_k=4, n_recent=5)
    query, key, value = tokens(8, 1, 2, 1, 12, "normal", 8)
    cache.append(key[:, :, :9], value[:, :, :9])
    cache.observe(query[:, :, 8:9], **settings)
    (first,) = histories(cache)[0]
    cache.append(key[:, :, 9:10], value[:, :, 9:10])
    sparq_ipu.window_attention(query[:, :, 9], cache, **settings)
    cache.append(key[:, :, 10:], value[:, :, 10:])
    cache.observe(query[:, :, 10:], **settings)
    every = histories(cache)[0]
    assert [len(step) for step in every] == [9, 10, 11, 12] and every[0] == first
    for length in (11, 9):
        cache.truncate(np.array([length]))
        assert histories(cache) == [[step for step in every if len(step) <= length]]


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_of_two_errors_every_device_names_the_same(device: str) -> None:
    cache = sparq_ipu.KVCache(1, 1, 8, 64, device=device)
    query, key, value = tokens(7, 1, 2, 1, 5, "normal", 8)
    empty = "cache must hold at least one position of every batch element, got none of element 0"
    last = query[:, :, 4]
    far = dict(top_k=4, n_recent=20000)
    assert refusal(partial(sparq_ipu.window_attention, last, cache, **far)) == f"window_attention: {empty}"
    too_high = partial(sparq_ipu.sparq_attention, last, cache, rank=9, top_k=4)
    assert refusal(too_high) == f"sparq_attention: {empty}"
    words = "observe: cache must hold the 5 tokens of the query, got 4 positions of element 0"
    cache.append(key[:, :, :4], value[:, :, :4])
    assert refusal(partial(cache.observe, query, **far)) == words
    cache.observe(query[:, :, 4:], top_k=4, n_recent=3)
    words = "n_recent must be in [0, 16383] for n_heads=2, got 20000"
    assert refusal(partial(sparq_ipu.window_attention, last, cache, **far)) == f"window_attention: {words}"
    assert refusal(partial(cache.observe, query[:, :, 4:], **far)) == f"observe: {words}"


def test_refusals() -> None:
    query, key, value = tokens(0, 2, 4, 2, 9, "normal", 8)
    for cache in caches(2, 2, 8, 64):
        empty = "window_attention: cache must hold at least one position of every batch element, got none of"
        one_step = partial(sparq_ipu.window_attention, query[:, :, 8], cache, top_k=4, n_recent=3)
        assert refusal(one_step) == f"{empty} element 0"
        cache.append(key, value, np.array([9, 0]))
        assert refusal(one_step) == f"{empty} element 1"
        cache.reset()
        cache.append(key, value)
        one_step()
        before = histories(cache)
        for call, words in (
            (dict(top_k=4, n_recent=2), "n_recent must be the n_recent=3 of the steps so far, got 2"),
            (dict(top_k=4, n_recent=9000), "n_recent must be in [0, 8191] for n_heads=4, got 9000"),
            (dict(top_k=0), "top_k must be in [1, 16777216], got 0"),
        ):
            for op, refused in (
                ("window_attention", partial(sparq_ipu.window_attention, query[:, :, 8], cache, **call)),
                ("observe", partial(cache.observe, query[:, :, 8:], **call)),
            ):
                assert refusal(refused) == f"{op}: {words}"
        many = np.concatenate([query, query], axis=2)
        words = "observe: cache must hold the 18 tokens of the query, got 9 positions of element 0"
        assert refusal(partial(cache.observe, many, top_k=4, n_recent=3)) == words
        assert histories(cache) == before
