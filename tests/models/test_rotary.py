# SPDX-License-Identifier: Apache-2.0
"""From the products of a layer to its attention in one call: the bits of PyTorch's operations, and what is
left to these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import torch

from sparq_ipu import KVCache, _cpu
from sparq_ipu.attention import attention
from sparq_ipu.transformers.decoder.rotary import Rotary
from sparq_ipu.transformers.decoder.step_layer import waves_of
from sparq_ipu.transformers.settings.layers import LayerSettings

BATCH, N_HEADS, N_KV_HEADS, HEAD_DIM, HELD = 3, 6, 2, 24, 40
N_ROWS = N_HEADS + 2 * N_KV_HEADS
SETTINGS = LayerSettings(rank=8, top_k=12, n_local=4, index_bits=4)


def a_cache(lengths: tuple[int, ...] = (HELD, HELD - 7, HELD - 13), **options: Any) -> KVCache:
    draw = np.random.default_rng(0)
    options = {"index_bits": 4, "device": "cpu", **options}
    cache = KVCache(BATCH, N_KV_HEADS, HEAD_DIM, HELD + 1, **options)
    rows = draw.standard_normal((2, BATCH, N_KV_HEADS, HELD, HEAD_DIM)).astype(np.float16)
    cache.append(*rows, np.array(lengths))
    return cache


def a_step(dtype: str, rows: int = BATCH) -> tuple[Any, Rotary]:
    """Numbers of many magnitudes, such as float16 rounds, among them its smallest and largest."""
    draw = torch.Generator().manual_seed(1)
    powers = torch.randint(-26, 3, (BATCH, N_ROWS * HEAD_DIM), generator=draw)
    products = torch.randn(powers.shape, generator=draw) * 2.0**powers
    products[0, :: 5 * HEAD_DIM + 1] = 36000
    products[-1, -1] = 65504 if dtype != "bfloat16" else 65280
    cos, sin = torch.rand(2, rows, HEAD_DIM, generator=draw).mul(2).sub(1).to(getattr(torch, dtype))
    return products.to(getattr(torch, dtype)), Rotary(cos, sin, N_HEADS)


def attend(rotary: Rotary, products: Any, cache: KVCache, settings: Any) -> tuple[Any, list[int]] | None:
    """As a layer does it."""
    return rotary.attend(products, waves_of(cache, settings))


def in_parts(products: Any, rotary: Rotary, cache: KVCache, settings: Any) -> Any:
    query, key, value = rotary.turned(products)
    cache.append(key.numpy(), value.numpy())
    output = attention(query.numpy()[:, :, 0], cache, settings and settings.attention)
    return torch.from_numpy(output).view(BATCH, -1).to(products.dtype)


@pytest.mark.parametrize("isa", _cpu.available_isas())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("settings, rows", [(SETTINGS, BATCH), (None, 1)])
def test_the_bits_are_those_of_the_parts(isa: str, dtype: str, settings: Any, rows: int) -> None:
    products, rotary = a_step(dtype, rows)
    parts, whole = a_cache(isa=isa), a_cache(isa=isa)
    done = attend(rotary, products, whole, settings)
    assert done is not None
    output, lengths = done
    expected = in_parts(products, rotary, parts, settings)
    assert lengths == whole.lengths.tolist() == parts.lengths.tolist() == [41, 34, 28]
    assert output.dtype == products.dtype
    assert torch.equal(output, expected)
    for mine, theirs in zip(whole.read(), parts.read()):
        np.testing.assert_array_equal(mine.view(np.uint16), theirs.view(np.uint16))


def test_what_is_turned_is_what_a_model_turns() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    products, _ = a_step("bfloat16")
    angles = torch.randn(BATCH, 1, HEAD_DIM, generator=torch.Generator().manual_seed(3))
    cos, sin = angles.cos().to(products.dtype), angles.sin().to(products.dtype)
    heads = products.view(BATCH, N_ROWS, 1, HEAD_DIM)
    query, key, value = heads.split((N_HEADS, N_KV_HEADS, N_KV_HEADS), 1)
    expected = (*apply_rotary_pos_emb(query, key, cos, sin), value)
    half = HEAD_DIM // 2
    signed = torch.cat((-sin[:, 0, :half], sin[:, 0, half:]), 1)
    for mine, theirs in zip(Rotary(cos[:, 0], signed, N_HEADS).turned(products), expected):
        assert torch.equal(mine, theirs.to(torch.float16))


@pytest.mark.parametrize("min_seq_len, n_sparse", [(28, 3), (29, 2), (34, 2), (35, 1), (41, 1), (42, 0)])
def test_short_rows_are_dense(min_seq_len: int, n_sparse: int) -> None:
    """With the token; rows of both kinds are in one call."""
    settings = LayerSettings(rank=8, top_k=12, n_local=4, index_bits=4, min_seq_len=min_seq_len)
    products, rotary = a_step("float32")
    cache = a_cache()
    done = attend(rotary, products, cache, settings)
    assert done is not None
    assert done[1] == cache.lengths.tolist() == [41, 34, 28]
    sparse, dense = (in_parts(products, rotary, a_cache(), each) for each in (settings, None))
    assert not any(map(torch.equal, sparse, dense))
    assert torch.equal(done[0], torch.cat((sparse[:n_sparse], dense[n_sparse:])))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "row, column, value", [(2, -1, np.nan), (1, 7 * HEAD_DIM + 3, 1e30), (0, 9 * HEAD_DIM, np.inf)]
)
def test_numbers_that_float16_does_not_have(dtype: str, row: int, column: int, value: float) -> None:
    products, rotary = a_step(dtype)
    products[row, column] = value
    cache = a_cache()
    assert attend(rotary, products, cache, SETTINGS) is None
    assert cache.lengths.tolist() == [40, 33, 27]


@pytest.mark.parametrize("x, fits", [(65519.0, True), (65520.0, False)])
def test_the_largest_number(x: float, fits: bool) -> None:
    products, rotary = a_step("float32")
    products[1, -2] = x
    done = attend(rotary, products, a_cache(), None)
    assert (done is not None) == fits
    assert bool(rotary.turned(products)[2].isfinite().all()) == fits


def test_a_sum_that_float16_does_not_have_in_between() -> None:
    """Of float16 each operation is rounded to it: here a product is infinite, and the sum would be finite in
    more bits."""
    _, rotary = a_step("float16")
    products = torch.full((BATCH, N_ROWS * HEAD_DIM), 60000.0, dtype=torch.float16)
    cos, sin = torch.full((BATCH, HEAD_DIM), 2.0), torch.full((BATCH, HEAD_DIM), -1.5)
    rotary = Rotary(cos.half(), sin.half(), N_HEADS)
    assert attend(rotary, products, a_cache(), None) is None
    assert not rotary.turned(products)[0].isfinite().all()


def test_what_is_left_to_the_parts() -> None:
    products, rotary = a_step("float32")
    assert attend(rotary, products, a_cache(device="reference"), None) is None
    assert attend(rotary, products.double(), a_cache(), None) is None
    # Of the same size, so nothing else would refuse them.
    assert attend(a_step("bfloat16")[1], torch.ones_like(products).half(), a_cache(), None) is None
    assert attend(rotary, products.repeat(1, 2)[:, ::2], a_cache(), None) is None
    assert waves_of(a_cache(), SETTINGS) is not None


def test_no_room() -> None:
    products, rotary = a_step("float32")
    cache = a_cache((HELD, HELD, HELD))
    assert attend(rotary, products, cache, None) is not None
    rule = "append: length must be at most capacity=41 .element 0 holds 41, 1 more., got 42"
    with pytest.raises(ValueError, match=f"^{rule}"):
        attend(rotary, products, cache, None)
    assert cache.lengths.tolist() == [41, 41, 41]


def test_a_second_token_that_fails_takes_the_first_one_back() -> None:
    products, rotary = a_step("float32", rows=1)
    twice = torch.ones(2 * BATCH, products.shape[1])
    beyond = twice.clone()
    beyond[-1, -1] = 1e6
    cache, full = a_cache((HELD - 1,) * BATCH), a_cache((HELD,) * BATCH)
    waves = waves_of(cache, SETTINGS, None, 2)
    assert waves is not None and len(waves) == 2
    assert rotary.attend(beyond, waves) is None
    assert cache.lengths.tolist() == [HELD - 1] * BATCH
    with pytest.raises(ValueError, match=r"^append: length must be at most capacity=41 "):
        rotary.attend(twice, waves_of(full, SETTINGS, None, 2))
    assert full.lengths.tolist() == [HELD] * BATCH
    done = rotary.attend(twice, waves)
    assert done is not None and done[1] == [HELD] * BATCH + [HELD + 1] * BATCH
