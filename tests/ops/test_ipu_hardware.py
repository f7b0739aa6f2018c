# SPDX-License-Identifier: Apache-2.0
"""What only hardware can confirm (docs/exactness.md, E8): skipped, by name, where there is no IPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import make_attention

import sparq_ipu
from sparq_reference import exact, numerics

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
DEVICE = "ipu"
pytestmark = pytest.mark.skipif(
    "ipu" not in sparq_ipu.available_devices(), reason="no IPU: rounding on silicon was not checked"
)


def test_attention_on_an_ipu_equals_reference() -> None:
    a = make_attention(
        np.random.default_rng(0), batch=2, n_kv_heads=2, group_size=2, seq_len=700, head_dim=64
    )
    cache = sparq_ipu.KVCache(2, 2, 64, 1024, device=DEVICE)
    cache.append(a.key, a.value)
    settings = dict(rank=16, top_k=64, n_local=8)
    for output, expected in (
        (sparq_ipu.dense_attention(a.query, cache), exact.dense_attention(*a.qkv)),
        (sparq_ipu.sparq_attention(a.query, cache, **settings), exact.sparq_attention(*a.qkv, **settings)),
    ):
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("group_size", [1, 3, 4])
def test_dense_attention_in_sram(group_size: int) -> None:
    """Accumulators of two heads and two positions, keys side by side, and tokens that the device keeps."""
    rng, (batch, heads, dim, seq_len) = np.random.default_rng(group_size), (2, 2, 64, 330)
    same: dict[str, Any] = dict(n_layers=2)
    caches = [sparq_ipu.KVCache(batch, heads, dim, 400, device=DEVICE, memory="sram", **same)]
    caches.append(sparq_ipu.KVCache(batch, heads, dim, 400, device="reference", **same))
    for n in (317, *[1] * (seq_len - 317)):
        for layer in (0, 1):
            key, value = rng.standard_normal((2, batch, heads, n, dim)).astype(np.float16)
            query = rng.standard_normal((batch, group_size * heads, dim)).astype(np.float16)
            outputs = []
            for cache in caches:
                cache.layer(layer).append(key, value)
                outputs.append(sparq_ipu.dense_attention(query, cache.layer(layer)))
            np.testing.assert_array_equal(*(output.view(np.uint16) for output in outputs))


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_tokens_appended_by_the_device_and_a_key_index(index_bits: int) -> None:
    """Integer sums of codes, conversions between integers and fp32, rounding by adding 1.5 * 2^23, and
    narrowing of the scale of a block; blocks and a chunk of the key index are completed on the device."""
    rng, (batch, heads, dim, seq_len) = np.random.default_rng(index_bits), (2, 2, 64, 1030)
    key, value = rng.standard_normal((2, batch, heads, seq_len, dim)).astype(np.float16)
    cache = sparq_ipu.KVCache(batch, heads, dim, 1100, index_bits=index_bits, device=DEVICE)
    prompt = 500
    cache.append(key[:, :, :prompt], value[:, :, :prompt])
    settings = dict(rank=16, top_k=64, n_local=8)
    for n in range(prompt, seq_len):
        cache.append(key[:, :, n : n + 1], value[:, :, n : n + 1])
        if n % 64 in (0, 62, 63) or n == seq_len - 1:
            query = rng.standard_normal((batch, 2 * heads, dim)).astype(np.float16)
            output = sparq_ipu.sparq_attention(query, cache, **settings)
            held = key[:, :, : n + 1], value[:, :, : n + 1]
            expected = exact.sparq_attention(query, *held, **settings, index_bits=index_bits)
            np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("options", [{}, dict(memory="tiered", index_bits=4)], ids=str)
def test_steps_of_window_attention(options: dict[str, Any]) -> None:
    """Shares of attention as integers, their ring, and selection by them; strided positions by division."""
    rng, (batch, heads, dim, seq_len) = np.random.default_rng(5), (2, 2, 64, 700)
    key, value = rng.standard_normal((2, batch, heads, seq_len, dim)).astype(np.float16)
    caches = [sparq_ipu.KVCache(batch, heads, dim, 800, device=DEVICE, **options)]
    caches.append(sparq_ipu.KVCache(batch, heads, dim, 800, device="reference"))
    for cache in caches:
        cache.append(key[:, :, :680], value[:, :, :680])
    for n in range(680, seq_len):
        query = (2 * rng.standard_normal((batch, 2 * heads, dim))).astype(np.float16)
        for cache in caches:
            cache.append(key[:, :, n : n + 1], value[:, :, n : n + 1])
        for settings in (dict(top_k=64, n_recent=8), dict(top_k=50, n_local=5, n_recent=0)):
            output, expected = (sparq_ipu.window_attention(query, cache, **settings) for cache in caches)
            np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("row_bits", [16, 8])
def test_three_tiers(row_bits: int) -> None:
    """Layers in turn: codes and their scales, rows that are hot, and rows fetched in place of others."""
    rng, (batch, heads, dim, seq_len) = np.random.default_rng(row_bits), (2, 2, 64, 270)
    same: dict[str, Any] = dict(index_bits=4, row_bits=row_bits, n_layers=2)
    caches = [sparq_ipu.KVCache(batch, heads, dim, 300, device=DEVICE, memory="tiered", hot_rows=96, **same)]
    caches.append(sparq_ipu.KVCache(batch, heads, dim, 300, device="reference", **same))
    for n in (250, *[1] * (seq_len - 250)):
        for layer in (0, 1):
            key, value = rng.standard_normal((2, batch, heads, n, dim)).astype(np.float16)
            query = rng.standard_normal((batch, 2 * heads, dim)).astype(np.float16)
            outputs = []
            for cache in caches:
                cache.layer(layer).append(key, value)
                outputs.append(sparq_ipu.sparq_attention(query, cache.layer(layer), rank=16, top_k=64))
            np.testing.assert_array_equal(*(output.view(np.uint16) for output in outputs))


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("kind", ["denormal", "large", "zeros", "equal", "spread"])
def test_extreme_numbers(kind: str, index_bits: int) -> None:
    """fp16 denormals, sums that saturate, both zeros, nothing but ties, and weights that are cut to 0."""
    rng, shape = np.random.default_rng(3), (1, 2, 300, 64)
    signs = rng.choice([-1.0, 1.0], shape)
    numbers = {
        "denormal": rng.integers(-1023, 1024, shape) * 2.0**-24,
        "large": signs * 65504,
        "zeros": np.copysign(np.zeros(shape), signs),
        "equal": np.full(shape, 0.75),
        "spread": signs * 2.0 ** rng.integers(-24, 12, shape),
    }[kind]
    key, value = numbers.astype(np.float16), numbers[:, ::-1].astype(np.float16)
    query = numbers[:, 0, :4].astype(np.float16)
    cache = sparq_ipu.KVCache(1, 2, 64, 400, index_bits=index_bits, device=DEVICE)
    cache.append(key, value)
    qkv, settings = (query, key, value), dict(rank=16, top_k=40, n_local=4)
    output = sparq_ipu.sparq_attention(query, cache, **settings)
    expected = exact.sparq_attention(*qkv, **settings, index_bits=index_bits)
    np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))
    if index_bits == 16:
        output, expected = sparq_ipu.dense_attention(query, cache), exact.dense_attention(*qkv)
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))


def test_the_same_bits_again() -> None:
    """Stochastic rounding is off; no result depends on what was in memory, or on which worker was first."""
    rng = np.random.default_rng(4)
    key, value = rng.standard_normal((2, 1, 4, 600, 64)).astype(np.float16)
    query = rng.standard_normal((1, 8, 64)).astype(np.float16)
    outputs = []
    for _ in range(2):
        cache = sparq_ipu.KVCache(1, 4, 64, 600, index_bits=4, device=DEVICE)
        cache.append(key, value)
        outputs += [sparq_ipu.sparq_attention(query, cache, rank=16, top_k=64) for _ in range(5)]
    assert len({output.tobytes() for output in outputs}) == 1


def test_division_and_narrowing_on_an_ipu() -> None:
    """fp32 divide and fp32 to fp16 at ties between fp16 neighbours, the two doubtful ones among them."""
    ties = (np.arange(0, 2048, dtype=np.float64) + 0.5) * 2.0**-24
    accumulator = np.concatenate([ties, np.random.default_rng(1).standard_normal(2048)]).astype(np.float32)
    sums = np.array([1.0], np.float32)
    for divisor in (1.0, 3.0):
        sums[0] = divisor
        output = _core.run_vertex(
            "sparq::CombineDense",
            dict(accumulator=accumulator, sums=sums, output=np.zeros(4096, np.float16)),
            dict(groupSize=1, width=4096),
            DEVICE,
        )["output"]
        expected = numerics.to_half(numerics.flush(accumulator) / sums)
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))
