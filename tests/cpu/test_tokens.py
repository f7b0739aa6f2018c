# SPDX-License-Identifier: Apache-2.0
"""Several tokens in one step, and taking tokens back: as one after another, and as if they had never come."""

from __future__ import annotations

import numpy as np
import pytest
from calls import refusal

import sparq_ipu
from sparq_ipu.tokens import append_and_attend
from sparq_reference import KVCache as ReferenceCache
from sparq_reference import SparqSettings

DEVICES = [device for device in sparq_ipu.available_devices() if device in ("cpu", "reference")]
SETTINGS = [None, SparqSettings(5, 12, 3), SparqSettings(3, 20, 0, False), SparqSettings(2, 1000)]
BATCH, N_KV_HEADS, GROUP, HEAD_DIM = 2, 2, 3, 16


def tokens(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """query (BATCH, heads, n, HEAD_DIM), key and value."""
    rng = np.random.default_rng(seed)
    shapes = [N_KV_HEADS * GROUP, N_KV_HEADS, N_KV_HEADS]
    made = [rng.standard_normal((BATCH, heads, n, HEAD_DIM)).astype(np.float16) for heads in shapes]
    return made[0], made[1], made[2]


def filled(cache, lengths: tuple[int, int], seed: int = 1):
    if any(lengths):
        _, key, value = tokens(max(lengths), seed)
        cache.append(key, value, np.array(lengths))
    return cache


def new_cache(device: str, index_bits: int = 16, **options):
    return sparq_ipu.KVCache(
        BATCH, N_KV_HEADS, HEAD_DIM, 300, device=device, index_bits=index_bits, **options
    )


def one_after_another(cache, query, key, value, settings) -> np.ndarray:
    outputs = []
    for t in range(query.shape[2]):
        cache.append(key[:, :, t : t + 1], value[:, :, t : t + 1])
        outputs.append(cache.attention(query[:, :, t], settings))
    return np.stack(outputs, axis=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("lengths, n_tokens", [((0, 0), 5), ((60, 3), 9), ((130, 127), 2)])
def test_equals_one_after_another(device, index_bits, settings, lengths, n_tokens):
    cache = filled(new_cache(device, index_bits), lengths)
    reference = filled(ReferenceCache(BATCH, N_KV_HEADS, HEAD_DIM, 300, index_bits=index_bits), lengths)
    query, key, value = tokens(n_tokens)
    expected = one_after_another(reference, query, key, value, settings)
    got = append_and_attend(query, key, value, cache, settings)
    assert got.tobytes() == expected.tobytes()
    # and the cache is the same afterwards
    last = tokens(1, seed=9)
    for other in SETTINGS:
        now = sparq_ipu.attention.attention(last[0][:, :, 0], cache, other)
        assert now.tobytes() == reference.attention(last[0][:, :, 0], other).tobytes()
    # negative control: all tokens seeing what the last one sees is another result
    if n_tokens > 1:
        wrong = [sparq_ipu.attention.attention(query[:, :, t], cache, settings) for t in range(n_tokens)]
        assert np.stack(wrong, axis=2).tobytes() != expected.tobytes()


@pytest.mark.skipif("cpu" not in DEVICES, reason="no CPU kernels here")
@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("length", [70, 5000])
def test_threads(n_threads, length):
    """Long ones are split among threads."""
    made = [
        sparq_ipu.KVCache(BATCH, N_KV_HEADS, HEAD_DIM, 6000, device="cpu", n_threads=n)
        for n in (1, n_threads)
    ]
    query, key, value = tokens(32)
    one, several = (filled(cache, (length, length // 2)) for cache in made)
    steps = [
        append_and_attend(query[:, :, t : t + 1], key[:, :, t : t + 1], value[:, :, t : t + 1], one)
        for t in range(32)
    ]
    assert append_and_attend(query, key, value, several).tobytes() == np.concatenate(steps, 2).tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("kept", [(0, 0), (1, 64), (63, 128), (64, 65), (130, 190), (200, 127)])
def test_truncated_is_as_if_they_had_never_come(device, index_bits, kept):
    cache = filled(new_cache(device, index_bits), (200, 190))
    cache.truncate(np.array(kept))
    assert cache.lengths.tolist() == list(kept)
    fresh = ReferenceCache(BATCH, N_KV_HEADS, HEAD_DIM, 300, index_bits=index_bits)
    _, key, value = tokens(200, seed=1)
    if any(kept):
        fresh.append(key[:, :, : max(kept)], value[:, :, : max(kept)], np.array(kept))
    for n, seed in ((1, 2), (70, 3)):  # others come, by one and over the end of a block
        query, key, value = tokens(n, seed)
        cache.append(key, value)
        fresh.append(key, value)
        for settings in SETTINGS:
            got = sparq_ipu.attention.attention(query[:, :, 0], cache, settings)
            assert got.tobytes() == fresh.attention(query[:, :, 0], settings).tobytes()
    for got, expected in zip(cache.read(), (fresh.key, fresh.value)):
        assert got.tobytes() == np.nan_to_num(expected, nan=0).tobytes()


@pytest.mark.skipif("cpu" not in DEVICES, reason="no CPU kernels here")
def test_a_copied_element_can_be_truncated():
    """What truncating needs is copied by a reordering too."""
    cache = filled(new_cache("cpu"), (200, 70))
    reference = filled(new_cache("reference"), (200, 70))
    query, key, value = tokens(1)
    for one in (cache, reference):
        one.reorder(np.array([0, 0]))
        one.truncate(np.array([200, 150]))
        one.append(key, value)
    outputs = [sparq_ipu.attention.attention(query[:, :, 0], one, SETTINGS[1]) for one in (cache, reference)]
    assert outputs[0].tobytes() == outputs[1].tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_refused_changes_nothing(device):
    cache = filled(new_cache(device), (290, 20))
    query, key, value = tokens(3)
    infinite = value.copy()
    infinite[1, 0, 2, 4] = np.inf
    cases = [
        ((query[0], key, value), "dense_attention: query must have shape (batch, n_heads, n_tokens, head_"),
        ((query, key, infinite), "dense_attention: value must be finite, got inf at [1, 0, 2, 4]"),
        ((query, key[:, :, :2], value[:, :, :2]), "dense_attention: key must have the n_tokens=3 of query"),
        (tokens(33), "dense_attention: n_tokens must be in [1, 32], got 33"),
        (tokens(11), "dense_attention: length must be at most capacity=300 (element 0 holds 290, 11 more)"),
        ((query[:, :5], key, value), "dense_attention: n_heads must be a multiple of n_kv_heads=2, got 5"),
    ]
    for arguments, message in cases:
        assert refusal(append_and_attend, *arguments, cache).startswith(message)
    with pytest.raises(ValueError, match=r"^sparq_attention: rank must be in \[1, head_dim=16\], got 17"):
        append_and_attend(query, key, value, cache, SparqSettings(17, 4))
    for lengths, message in (
        ([291, 3], "truncate: lengths must be in [0, 290] (element 0 holds 290), got 291"),
        ([290, 21], "truncate: lengths must be in [0, 20] (element 1 holds 20), got 21"),
        ([290, -1], "truncate: lengths must be in [0, 20] (element 1 holds 20), got -1"),
        ([1], "truncate: lengths must have shape (batch=2,), got (1,)"),
        ([1.0, 1.0], "truncate: lengths must be integers, got float64"),
    ):
        assert refusal(cache.truncate, np.array(lengths)).startswith(message)
    assert cache.lengths.tolist() == [290, 20]


@pytest.mark.skipif("emulator" not in sparq_ipu.available_devices(), reason="no emulator here")
def test_an_ipu_takes_one_token_a_call():
    cache = sparq_ipu.KVCache(BATCH, N_KV_HEADS, HEAD_DIM, 64, device="emulator", n_tiles=4)
    query, key, value = tokens(2)
    message = (
        "dense_attention: device must be 'cpu' or 'reference' for 2 tokens a call, "
        "got 'emulator', whose program takes one"
    )
    assert refusal(append_and_attend, query, key, value, cache).startswith(message)
    got = append_and_attend(query[:, :, :1], key[:, :, :1], value[:, :, :1], cache)
    reference = ReferenceCache(BATCH, N_KV_HEADS, HEAD_DIM, 64)
    assert (
        got.tobytes()
        == one_after_another(reference, *(x[:, :, :1] for x in (query, key, value)), None).tobytes()
    )
    cache.append(key, value)
    cache.truncate(np.array([2, 1]))  # by way of the host
    reference.append(key, value)
    reference.truncate(np.array([2, 1]))
    attended = sparq_ipu.dense_attention(query[:, :, 1], cache)
    assert attended.tobytes() == reference.attention(query[:, :, 1]).tobytes()


def test_settings_of_another_type_are_refused() -> None:
    cache = sparq_ipu.KVCache(1, 1, 8, 16, device="cpu")
    rows = [np.zeros((1, 1, 2, 8), np.float16) for _ in range(3)]
    for settings in (dict(rank=4, top_k=8), (4, 8)):
        with pytest.raises(
            ValueError, match=r"^append_and_attend: settings must be sparq_ipu.SparqSettings, "
        ):
            sparq_ipu.append_and_attend(*rows, cache, settings)
    assert cache.lengths.tolist() == [0]
    sparq_ipu.append_and_attend(*rows, cache, sparq_ipu.SparqSettings(rank=4, top_k=8))
    assert cache.lengths.tolist() == [2]
