# SPDX-License-Identifier: Apache-2.0
"""Several layers that share one program: what each holds is its own, on every device, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_in_sram import held_in
from strategies import fewer
from vertex import _core, assert_bits

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings

SPARQ = Attention("sparq-streaming", SparqSettings(rank=8, top_k=24, n_local=4))
DENSE = Attention("dense-streaming", None)
KINDS = ("append", "reset", "reorder", "attend")


class Stacks:
    """The same layers on two devices. `layers`: caches of one layer each, or views of one of them all."""

    def __init__(
        self,
        n_layers: int,
        batch: int,
        index_bits: int,
        n_tiles: int,
        rng: np.random.Generator,
        memory: str = "streaming",
    ):
        arguments: dict[str, Any] = dict(batch=batch, n_kv_heads=2, head_dim=24, capacity=400)
        of_device = dict(n_tiles=n_tiles, memory=memory)
        self.emulator = KVCache(
            **arguments, n_layers=n_layers, index_bits=index_bits, device="emulator", **of_device
        )
        self.reference = [
            KVCache(**arguments, index_bits=index_bits, device="reference") for _ in range(n_layers)
        ]
        self.rng, self.batch, self.memory = rng, batch, memory

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float16)

    def append(self, layer: int, n: int) -> None:
        held = self.reference[layer].lengths
        n = min(n, 400 - int(held.max()))
        if n == 0:
            return
        counts = self.rng.integers(0, n + 1, self.batch)
        counts[self.rng.integers(self.batch)] = n
        key, value = self.numbers(self.batch, 2, n, 24), self.numbers(self.batch, 2, n, 24)
        for cache in (self.emulator.layer(layer), self.reference[layer]):
            cache.append(key, value, counts)

    def reset(self, layer: int) -> None:
        self.emulator.layer(layer).reset()
        self.reference[layer].reset()

    def reorder(self, layer: int) -> None:
        index = self.rng.integers(0, self.batch, self.batch)
        self.emulator.layer(layer).reorder(index)
        self.reference[layer].reorder(index)

    def attend(self, layer: int) -> None:
        of_layer, expected = self.emulator.layer(layer), self.reference[layer]
        np.testing.assert_array_equal(of_layer.lengths, expected.lengths)
        if not of_layer.lengths.all():
            return
        query = self.numbers(self.batch, 4, 24)
        options: dict[str, Any] = dict(rank=8, top_k=24, n_local=4)
        if self.memory != "sram":
            assert_bits(*(sparq_attention(query, cache, **options) for cache in (of_layer, expected)))
        assert_bits(dense_attention(query, of_layer), dense_attention(query, expected))


@fewer(3)
@given(
    data=st.data(),
    kind=st.sampled_from([16, 8, 4, 2, "fp16", "fp32"]),
    n_tiles=st.sampled_from([24, 7, 3]),
)
def test_layers_are_each_their_own(data: st.DataObject, kind: int | str, n_tiles: int) -> None:
    with held_in(str(kind)):  # if it is in SRAM
        _layers_are_each_their_own(data, kind, n_tiles)


def _layers_are_each_their_own(data: st.DataObject, kind: int | str, n_tiles: int) -> None:
    in_sram = isinstance(kind, str)
    # three tiles have no room for eight layers
    n_layers = data.draw(st.sampled_from([3, 2] if in_sram else [8, 2, 3]))
    batch = data.draw(st.integers(1, 2))
    rng, memory = np.random.default_rng(n_layers), "sram" if in_sram else "streaming"
    stacks = Stacks(n_layers, batch, 16 if in_sram else int(kind), n_tiles, rng, memory)
    layers = st.integers(0, n_layers - 1)
    lengths = st.one_of(st.just(1), st.integers(1, 140), st.sampled_from([63, 64, 65, 128, 256]))
    for layer in data.draw(st.permutations(range(n_layers))):
        stacks.append(layer, data.draw(lengths))
        stacks.attend(layer)
    steps = data.draw(st.lists(st.tuples(st.sampled_from(KINDS), layers, lengths), max_size=12))
    for kind, layer, n in steps:
        if kind == "append":
            stacks.append(layer, n)
        elif kind == "reset":
            stacks.reset(layer)
        elif kind == "reorder":
            stacks.reorder(layer)
        stacks.attend(layer)
    for layer in range(n_layers):
        stacks.attend(layer)
        lengths_of = stacks.reference[layer].lengths
        held = int(lengths_of.max())
        if held:
            of_layer = stacks.emulator.layer(layer).read()
            for actual, expected in zip(of_layer, stacks.reference[layer].read()):
                assert_bits(actual, expected)


@pytest.mark.parametrize("kind", [16, 8, 4, 2, "fp16", "fp32"])
def test_tokens_one_by_one_through_chunks_and_blocks(kind: int | str) -> None:
    """Decode, the device's own append: layers fill their blocks and chunks at different steps."""
    index_bits, memory = (16, "sram") if isinstance(kind, str) else (kind, "streaming")
    stacks = Stacks(3, 2, index_bits, 12, np.random.default_rng(0), memory)
    for layer, n in enumerate((60, 125, 253)):
        stacks.append(layer, n)
    with held_in(str(kind)):
        stacks.attend(0)
    for step in range(8):
        for layer in (2, 0, 1):
            stacks.append(layer, 1)
            if step % 3 == 2:
                stacks.attend(layer)
    session = stacks.emulator._backends[0].session
    assert session.wide_rows == (kind == "fp32")


def test_programs_do_not_grow_with_layers() -> None:
    """Vertices and code of 32 layers are those of one, but for the vertices that load and store a layer."""

    def counts(n_layers: int) -> tuple[int, int]:
        spec = CacheSpec(1, 2, 64, 512)
        session = _core.Session(
            spec, 8, attention=[SPARQ], options=DeviceOptions(n_tiles=64), n_layers=n_layers
        )
        memory = _core.emulator_memory(session)
        return memory["vertices"], sum(memory["code_per_tile"])

    two, many = counts(2), counts(32)
    assert many[0] == two[0]
    assert two[1] <= many[1] < two[1] * 1.01


@pytest.mark.parametrize("device", ["emulator", "cpu", "reference"])
def test_a_cache_of_layers_wants_to_be_told_which(device: str) -> None:
    if device == "cpu":
        pytest.importorskip("sparq_ipu._cpu", reason="cpu is not available here: not built")
    cache = KVCache(1, 2, 8, 64, n_layers=3, device=device)
    token = np.zeros((1, 2, 1, 8), np.float16)
    query = np.zeros((1, 2, 8), np.float16)
    message = r"cache must be of one layer, as `layer\(i\)` of this one is, got n_layers=3"
    with pytest.raises(ValueError, match=f"append: {message}"):
        cache.append(token, token)
    with pytest.raises(ValueError, match=f"read: {message}"):
        cache.read()
    with pytest.raises(ValueError, match=f"dense_attention: {message}"):
        dense_attention(query, cache)
    with pytest.raises(ValueError, match=r"layer: index must be in \[0, 2\], got 3"):
        cache.layer(3)
    cache.layer(2).append(token, token)
    assert cache.lengths.tolist() == [[0], [0], [1]]
    cache.reset()
    assert not cache.lengths.any()


@pytest.mark.parametrize("n_layers", [0, 1025])
def test_refused_numbers_of_layers(n_layers: int) -> None:
    with pytest.raises(ValueError, match=rf"KVCache: n_layers must be in \[1, 1024\], got {n_layers}"):
        KVCache(1, 1, 8, 64, n_layers=n_layers, device="emulator")
