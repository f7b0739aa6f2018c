# SPDX-License-Identifier: Apache-2.0
"""A key index in planes of bits: whole programs on the emulator, bit for bit (contract E12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, tensors

import sparq_ipu

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")


def caches(*sizes: int, options: dict[str, Any], **spec: int) -> list[Any]:
    """The same on the reference and on the emulator."""
    return [
        sparq_ipu.KVCache(*sizes, device="reference", **spec),
        sparq_ipu.KVCache(*sizes, device="emulator", **spec, **options),
    ]


def same(made: list[Any], query: np.ndarray, **settings: Any) -> bool:
    reference, emulated = (sparq_ipu.sparq_attention(query, cache, **settings) for cache in made)
    return bool(reference.tobytes() == emulated.tobytes())


@given(
    kind=st.sampled_from(KINDS),
    bits=st.sampled_from((4, 8)),
    group=st.sampled_from((1, 3)),
    rank=st.sampled_from((1, 7, 16)),
    share=st.floats(0, 1),
    n_tiles=st.integers(2, 9),
    n_layers=st.sampled_from((1, 16)),
    held=st.integers(1, 500),
    more=st.lists(st.sampled_from((1, 1, 1, 5, 64)), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_bits(
    kind: str,
    bits: int,
    group: int,
    rank: int,
    share: float,
    n_tiles: int,
    n_layers: int,
    held: int,
    more: list[int],
    seed: int,
) -> None:
    """Of many layers a tile has room for the tails of small chunks alone: the others are streamed."""
    rng = np.random.default_rng(seed)
    batch, heads, d = 2, 2, 16
    made = caches(
        batch,
        heads,
        d,
        800,
        options=dict(n_tiles=n_tiles),
        index_bits=bits,
        index_read_bits=max(1, round(share * bits * d)),
        n_layers=n_layers,
    )
    made = [cache.layer(n_layers - 1) for cache in made]
    for n in (held, *more):
        key, value = (tensors(kind, (batch, heads, n, d), rng) for _ in range(2))
        lengths = np.array([n, rng.integers(1, n + 1)])
        for cache in made:
            cache.append(key, value, lengths)
    query = tensors(kind, (batch, heads * group, d), rng)
    assert same(made, query, rank=rank, top_k=20, n_local=3)


def test_blocks_and_chunks_filled_by_tokens_of_the_device() -> None:
    """The largest step of a component grows with the block, and a full chunk leaves the tail."""
    rng = np.random.default_rng(0)
    spec = dict(index_bits=4, index_read_bits=24, n_layers=16)
    made = [cache.layer(15) for cache in caches(1, 4, 16, 600, options=dict(n_tiles=1), **spec)]
    scale, length = np.ones(16, np.float16), 0
    for at, n in enumerate((40, *100 * [1])):
        scale[at % 16] *= np.float16(1.25)
        key, value = (rng.standard_normal((1, 4, n, 16)).astype(np.float16) * scale for _ in range(2))
        for cache in made:
            cache.append(key, value)
        length += n
        if at % 8 == 0 or length % 64 < 2:
            query = rng.standard_normal((1, 4, 16)).astype(np.float16)
            assert same(made, query, rank=10, top_k=12), length


def test_rows_of_a_packet() -> None:
    """Several whole chunks of 8192 positions, and some behind them."""
    rng = np.random.default_rng(3)
    made = caches(1, 1, 8, 25000, options=dict(n_tiles=7), index_bits=4, index_read_bits=9)
    for n in (17000, 1):
        key, value = (rng.standard_normal((1, 1, n, 8)).astype(np.float16) for _ in range(2))
        for cache in made:
            cache.append(key, value)
        assert same(made, rng.standard_normal((1, 2, 8)).astype(np.float16), rank=5, top_k=50)


@pytest.mark.parametrize(
    "options", [dict(), dict(n_ipus=2, split="layers"), dict(n_ipus=2, split="heads")], ids=str
)
def test_layers_and_what_changes_a_cache(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    sizes, n_layers = (2, 2, 16, 300), 2
    spec = dict(index_bits=8, index_read_bits=40, n_layers=n_layers)
    whole = caches(*sizes, options=dict(n_tiles=6, **options), **spec)
    made = [[cache.layer(i) for cache in whole] for i in range(n_layers)]

    def step(n: int) -> None:
        for layer in made:
            key, value = (rng.standard_normal((2, 2, n, 16)).astype(np.float16) for _ in range(2))
            for cache in layer:
                cache.append(key, value)
        query = rng.standard_normal((2, 4, 16)).astype(np.float16)
        assert all(same(layer, query, rank=12, top_k=16) for layer in made)

    step(130)
    step(1)
    for cache in made[0]:
        cache.truncate(np.array([70, 20]))
    step(1)
    for cache in made[1]:
        cache.reorder(np.array([1, 1]))
    step(61)
    for cache in made[0]:
        cache.reset()
    step(65)


def test_a_wrong_plane_is_noticed() -> None:
    """Negative control: with a bit less in each position's index the output is another one."""
    rng = np.random.default_rng(2)
    key, value = (rng.standard_normal((1, 1, 256, 32)).astype(np.float16) for _ in range(2))
    query = rng.standard_normal((1, 1, 32)).astype(np.float16)
    outputs = []
    for read_bits in (40, 39, 8):
        made = caches(1, 1, 32, 256, options=dict(n_tiles=4), index_bits=4, index_read_bits=read_bits)
        for cache in made:
            cache.append(key, value)
        assert same(made, query, rank=16, top_k=24)
        outputs.append(sparq_ipu.sparq_attention(query, made[1], rank=16, top_k=24).tobytes())
    assert len(set(outputs)) == 3


def test_what_half_of_the_bits_save() -> None:
    """The table of docs/device_model.md: 32 times dense-streaming, where all 4 bits have 21."""
    page = (Path(__file__).parents[2] / "docs/device_model.md").read_text()
    plans = [sparq_ipu.plan(rank=32, top_k=128, index_bits=4, index_read_bits=bits) for bits in (0, 64)]
    for name, plan in zip(("int4", "int4, 64 bits read"), plans):
        times = [f"{1e6 * s:.1f}" for s in (plan.seconds_per_query, plan.seconds_low, plan.seconds_high)]
        share = [plan.speedup_vs_dense_streaming, plan.speedup_low, plan.speedup_high]
        gain = "{:.1f} ({:.1f} to {:.1f})".format(*share)
        assert f"| {name} | {plan.streamed_bytes / 1e6:.2f} | {' | '.join(times)} | {gain} |" in page
    assert plans[1].speedup_vs_dense_streaming >= 32 > 22 > plans[0].speedup_vs_dense_streaming
