# SPDX-License-Identifier: Apache-2.0
"""A transformers model on the emulator: its layers share one KVCache, on one IPU or several."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tiny_models import greedy, tiny_model, tokens_of, torch

from sparq_ipu import transformers as sparq
from sparq_ipu.transformers import SparqCache
from sparq_ipu.transformers.cache import storage
from sparq_ipu.transformers.cache.storage import LayerStack

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

SETTINGS: dict[str, Any] = dict(rank=8, top_k=8, n_local=2)


def sessions(cache: SparqCache) -> set[int]:
    return {id(layer.cache._backends[0].session) for layer in cache.layers}


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(n_ipus=2),
        dict(n_ipus=2, split="heads"),
        dict(capacity=40, index_bits=8),
        dict(memory="tiered", index_bits=4, hot_rows=12),
        dict(memory="tiered", index_bits=2, n_ipus=2, split="heads"),
    ],
    ids=["one", "layers", "heads", "fixed", "tiers", "tiers of heads"],
)
def test_tokens_are_those_of_the_reference_and_layers_share(options: dict[str, Any]) -> None:
    model, tokens = tiny_model(), tokens_of(21, batch=2)
    asked = {name: options[name] for name in ["index_bits"] if name in options}
    sparq.enable(model, published=True, **SETTINGS, **{"index_bits": 16, **asked})
    reference = SparqCache(model, device="reference")
    emulator = SparqCache(model, device="emulator", n_tiles=16, **options)
    expected = greedy(model, tokens, 5, cache=reference)
    assert (greedy(model, tokens, 5, cache=emulator) == expected).all()
    for ours, theirs in zip(emulator.layers, reference.layers):
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    assert len(sessions(emulator)) == 1  # three layers, one program, one device
    emulator.reset()  # another prompt, of another batch
    other = tokens_of(9, seed=3)
    again = greedy(model, other, 4, cache=emulator)
    assert (again == greedy(model, other, 4, cache=SparqCache(model, device="reference"))).all()
    assert len(sessions(emulator)) == 1


@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_a_cache_that_was_reset_keeps_no_memory_of_another_batch(device: str) -> None:
    model = tiny_model()
    sparq.enable(model, published=True, **SETTINGS)
    cache = SparqCache(model, device=device)
    greedy(model, tokens_of(9, batch=2), 2, cache=cache)
    cache.reset()
    greedy(model, tokens_of(9), 2, cache=cache)
    for layer in cache.layers:  # each is where the first batch was, and not beside it
        assert layer._storage.stack is layer._stack and layer.cache.batch == 1


def test_layers_that_all_have_windows_share_a_stack() -> None:
    model, tokens = tiny_model("Mistral", sliding_window=6), tokens_of(9, batch=2)
    sparq.enable(model, published=True, **SETTINGS)
    emulator, cpu = SparqCache(model, device="emulator", n_tiles=16), SparqCache(model)
    expected = greedy(model, tokens, 4, cache=cpu)
    assert (greedy(model, tokens, 4, cache=emulator) == expected).all()
    assert [layer.cache.lengths.tolist() for layer in emulator.layers] == [[12, 12]] * 3


def test_growth_selection_and_copies_keep_layers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage.FIRST_ROOM", 1)  # so that it soon grows
    model, tokens = tiny_model(), tokens_of(12, batch=3)
    sparq.enable(model, published=True, **SETTINGS)

    def run(device: str, **options: Any) -> tuple[Any, ...]:
        cache = SparqCache(model, device=device, **options)
        first = greedy(model, tokens, 4, cache=cache)
        copied = copy.deepcopy(cache)
        cache.batch_select_indices(torch.tensor([2, 0]))
        cache.batch_repeat_interleave(2)
        cache.reorder_cache(torch.tensor([1, 1, 3, 0]))
        grown = [(layer.keys, layer.values) for layer in [*cache.layers, *copied.layers]]
        following = greedy(model, torch.cat([tokens, first[:, -4:]], 1), 3, cache=copied)
        return cache, copied, first, following, grown

    on_emulator, of_reference = run("emulator", n_tiles=16), run("reference")
    for ours, theirs in zip(on_emulator[2:4], of_reference[2:4]):
        assert (ours == theirs).all()
    for ours, theirs in zip(on_emulator[4], of_reference[4]):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    assert on_emulator[1].layers[0].cache.capacity >= 18
    assert len(sessions(on_emulator[1])) == 1
    stacks = {id(layer._stack) for layer in on_emulator[0].layers}
    assert len(stacks) == 1 and stacks != {id(layer._stack) for layer in on_emulator[1].layers}


def test_options_of_a_pod_are_checked_before_there_is_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache that is thrown away."""
    monkeypatch.setattr(storage, "KVCache", lambda *_, **__: pytest.fail("a cache was made"))
    model = tiny_model()
    SparqCache(model, device="emulator", n_ipus=64)
    with pytest.raises(ValueError, match="n_ipus must be a power of two up to 64, got 3"):
        SparqCache(model, device="emulator", n_ipus=3)
    with pytest.raises(ValueError, match="split must be 'layers' or 'heads', got 'rows'"):
        SparqCache(model, device="emulator", n_ipus=2, split="rows")


def test_a_model_is_enabled_with_tiers() -> None:
    """What a cache in tiers must have, an index of few bits, is among the settings of the layers."""
    model, tokens = tiny_model(), tokens_of(21)
    sparq.enable(model, published=True, **SETTINGS, index_bits=4)
    expected = greedy(model, tokens, 5).tolist()
    tiers = dict(device="emulator", memory="tiered", hot_rows=12, n_tiles=16)
    sparq.enable(model, published=True, **SETTINGS, index_bits=4, **tiers)
    cache = SparqCache(model, **tiers, index_bits=4)
    assert greedy(model, tokens, 5).tolist() == expected
    assert greedy(model, tokens, 5, cache=cache).tolist() == expected
    for wrong in ({}, dict(index_bits=8, layers={0: {"index_bits": 16}})):
        with pytest.raises(ValueError, match="index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"):
            sparq.enable(model, published=True, **SETTINGS, **wrong, **tiers)
    sparq.enable_dense(model)
    dense = greedy(model, tokens, 5).tolist()
    sparq.enable_dense(model, device="emulator", memory="sram", n_tiles=16)
    assert greedy(model, tokens, 5).tolist() == dense != expected
    for dense in (dict(layers={1: None}), dict(min_seq_len=20)):  # nothing attends densely to tiers
        with pytest.raises(ValueError, match=r"^enable: memory must be 'sram' or 'streaming', got 'tiered'"):
            sparq.enable(model, published=True, **SETTINGS, index_bits=4, **dense, **tiers)


def test_a_layer_that_has_forgotten_begins_anew_and_another_shape_is_alone() -> None:
    stack, options = LayerStack(3), dict(device="emulator", n_tiles=4, check_finite=True)
    token = torch.ones(1, 1, 3, 8, dtype=torch.float16)
    first, second = (stack.storage(index, token, 16, options) for index in range(2))
    first.append(token, token, None)
    second.append(token, token, None)
    first.forget()
    first = stack.storage(0, token, 16, options)
    assert first.cache.lengths.tolist() == [0] and second.cache.lengths.tolist() == [3]
    wide = torch.ones(1, 2, 3, 8, dtype=torch.float16)
    other = stack.storage(2, wide, 16, options)
    assert other.stack is not stack and other.cache.n_kv_heads == 2
    assert first.stack is second.stack is stack


def test_a_layer_of_another_shape_is_on_one_ipu() -> None:
    """The first ones are split over two."""
    stack, options = LayerStack(2), dict(device="emulator", n_tiles=4, n_ipus=2, split="layers")
    token, wide = (torch.ones(1, heads, 3, 8, dtype=torch.float16) for heads in (1, 2))
    first, other = stack.storage(0, token, 16, options), stack.storage(1, wide, 16, options)
    assert "n_ipus=2" in repr(first.cache) and "n_ipus" not in repr(other.cache)
    assert "split" not in repr(other.cache)
