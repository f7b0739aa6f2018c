# SPDX-License-Identifier: Apache-2.0
"""Layers with sliding windows: however a cache came to hold a text, and whatever it has dropped, the next
tokens have the bits of one that holds everything. Weights of 4 bits: their products have the same bits for
any number of rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, WINDOW
from lean_steps import SETTINGS, a_wide_model, enabled
from tiny_models import left_padded, tokens_of, torch

import sparq_ipu.transformers
from sparq_ipu.kept_prefixes import BLOCK
from sparq_ipu.serve.contexts import Contexts
from sparq_ipu.transformers import SparqCache
from sparq_ipu.transformers.cache import windows

pytest.importorskip("sparq_ipu._cpu")

N = 14 * WINDOW
STEPS = tokens_of(6, seed=5)


@pytest.fixture(scope="module", params=["Gemma 3", "Mistral with a sliding window"])
def model(request: Any) -> Any:
    family = FAMILIES[request.param]
    model = enabled(a_wide_model("int4", family.kind, vocab_size=112, **family.changes), tokens_per_step=4)
    return model


def test_a_plan_counts_what_is_held() -> None:
    from sparq_ipu.planning.cpu_plan import BEYOND_WINDOW

    assert windows.room_of(512) == 512 + BEYOND_WINDOW


@pytest.fixture
def short(monkeypatch: Any) -> None:
    """Positions are dropped soon."""
    monkeypatch.setattr(windows, "BACK", 8)
    monkeypatch.setattr(windows, "_MORE", 64)


def filled(model: Any, tokens: Any, cuts: Any = (), capacity: int | None = None, **mask: Any) -> Any:
    cache = SparqCache(model, capacity=capacity)
    with torch.no_grad():
        for part in torch.tensor_split(tokens, list(cuts), dim=1):
            model(part, cache=cache, **mask)
    return cache


def steps(model: Any, cache: Any, at_once: int = 1) -> Any:
    with torch.no_grad():
        parts = [model(part, cache=cache).logits for part in STEPS.split(at_once, 1)]
    return torch.cat(parts, 1)


def windowed(cache: Any) -> Any:
    return [layer for layer in cache.layers if layer.window is not None]


@pytest.mark.usefixtures("short")
def test_random_cuts_copies_and_tokens_taken_back(model: Any) -> None:
    tokens, rng = tokens_of(N), np.random.default_rng(0)
    whole = filled(model, tokens, capacity=N + 6)  # a fixed capacity: nothing is dropped
    expected = steps(model, whole)
    for _ in range(5):
        cuts = np.cumsum(rng.integers(5, 90, 4))  # 4 tokens or fewer would be steps
        cache = filled(model, tokens, cuts)
        twin = copy.deepcopy(cache)
        assert torch.equal(steps(model, cache), expected)
        held, all_held = (windowed(x)[0].read_rows(N - WINDOW, N) for x in (cache, whole))
        assert all(map(np.array_equal, held, all_held))
    cache.crop(-6)
    assert torch.equal(steps(model, cache), expected)
    twin.batch_repeat_interleave(2)
    twin.reorder_cache(torch.tensor([1, 1]))
    twin.batch_select_indices(torch.tensor([1]))
    assert torch.equal(steps(model, twin, 3), expected)


@pytest.mark.usefixtures("short")
def test_memory_does_not_grow_with_the_text(model: Any) -> None:
    cache, room = SparqCache(model), windows.room_of(WINDOW)
    with torch.no_grad():
        for n in (5, 60, 400, 1, 1, 150, *[1] * 150):
            model(tokens_of(n), cache=cache)
            assert all(layer.cache.capacity <= max(room, n + 256) for layer in windowed(cache))
            assert n == 5 or n == 60 or all(layer.cache.capacity == room for layer in windowed(cache))
    assert cache.get_seq_length() == 767


@pytest.mark.usefixtures("short")
def test_dropped_positions_do_not_come_back(model: Any) -> None:
    cache = filled(model, tokens_of(N))
    message = r"SparqCache: length must leave at least \d+ tokens of this text in lay"
    with pytest.raises(ValueError, match=message):
        cache.crop(windowed(cache)[0].begin + WINDOW - 1 - N)
    cache = filled(model, tokens_of(N))
    cache.crop(windowed(cache)[0].begin + WINDOW - N)
    with torch.no_grad():
        cache = filled(model, tokens_of(N))
        mask = torch.ones(1, N + 1)
        mask[0, N // 2 : N - 4] = 0  # a window from before
        with pytest.raises(ValueError, match="length must leave at least"):
            model(STEPS[:, :1], attention_mask=mask, cache=cache)
        mask[0, N // 2 :] = 1
        mask[0, 3:9] = mask[0, N - 4 : N] = 0
        said = model(STEPS[:, :1], attention_mask=mask, cache=cache).logits
        whole = filled(model, tokens_of(N), capacity=N + 1)
        assert torch.equal(model(STEPS[:, :1], attention_mask=mask, cache=whole).logits, said)


@pytest.mark.usefixtures("short")
def test_dropped_positions_stay_dropped_after_a_mask(model: Any) -> None:
    cache = filled(model, tokens_of(N))
    begin = windowed(cache)[0].begin
    mask = torch.ones(1, N + 1)
    mask[0, begin + WINDOW : N] = 0
    with torch.no_grad():
        model(STEPS[:, :1], attention_mask=mask, cache=cache)
        assert windowed(cache)[0].begin == begin
        mask = torch.cat([mask, torch.ones(1, 1)], 1)
        mask[0, begin : begin + WINDOW] = 0  # the window is then before what is held
        with pytest.raises(ValueError, match="length must leave at least"):
            model(STEPS[:, :1], attention_mask=mask, cache=cache)


@pytest.mark.usefixtures("short")
def test_a_refused_crop_changes_no_layer() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    family = dict(layer_types=kinds, use_sliding_window=True, sliding_window=WINDOW)
    model = enabled(a_wide_model("int4", "Qwen2", **family), tokens_per_step=4)
    cache = filled(model, tokens_of(N))
    with pytest.raises(ValueError, match="length must leave at least"):
        cache.crop(-N // 2)
    assert [layer.get_seq_length() for layer in cache.layers] == [N] * 3
    assert torch.equal(steps(model, cache), steps(model, filled(model, tokens_of(N), capacity=N + 6)))


@pytest.mark.usefixtures("short")
def test_columns_of_padding_become_tokens_after_a_crop(model: Any) -> None:
    cache, mask = SparqCache(model), torch.ones(1, 0)

    def read(n: int, real: int = 1) -> None:
        nonlocal mask
        mask = torch.cat([mask[:, : cache.get_seq_length()], torch.full((1, n), real)], 1)
        at = (mask.cumsum(1) - 1).clamp(min=0).long()[:, -n:]
        with torch.no_grad():
            model(tokens_of(n), attention_mask=mask, position_ids=at, cache=cache)

    read(10)
    read(windowed(cache)[0].cache.capacity - 15, 0)
    read(10)  # room for more columns than positions
    cache.crop(10 - cache.get_seq_length())
    read(windowed(cache)[0].cache.capacity + 50)


@pytest.mark.usefixtures("short")
def test_rows_of_a_batch(model: Any) -> None:
    texts = [tokens_of(n, seed=n) for n in (N, N - 100, WINDOW - 3, 7)]
    tokens, mask = left_padded(texts)
    cache = SparqCache(model)
    said = []
    with torch.no_grad():
        model(tokens, attention_mask=mask, position_ids=mask.cumsum(1) - 1, cache=cache)
        rows = [2, 0, 3, 1]
        keys = [layer.keys for layer in cache.layers]
        cache.reorder_cache(torch.tensor(rows))
        assert all(torch.equal(layer.keys, key[rows]) for layer, key in zip(cache.layers, keys))
        mask, texts = mask[rows], [texts[row] for row in rows]
        for step in STEPS.T:
            mask = torch.cat([mask, torch.ones(4, 1, dtype=mask.dtype)], 1)
            given = dict(attention_mask=mask, position_ids=mask.sum(1, keepdim=True) - 1)
            said.append(model(step[None].expand(4, 1), **given, cache=cache).logits)
    for row, text in enumerate(texts):
        alone = steps(model, filled(model, text, capacity=N + 6))
        assert torch.equal(torch.cat(said, 1)[row], alone[0])


@pytest.mark.usefixtures("short")
def test_places_of_the_server(model: Any, monkeypatch: Any) -> None:
    """Pieces in random cuts, a copied beginning, an answer that is forgotten, rows that were kept on disk."""
    rng = np.random.default_rng(0)
    tokens = tokens_of(3 * BLOCK + 40)[0].tolist()
    n = len(tokens)
    how = {**SETTINGS, "min_seq_len": n + 4}  # some steps are dense
    sparq_ipu.transformers.enable(model, **how)

    def read(contexts: Any, place: int, begin: int = 0, end: int = n, piece: int = 60) -> None:
        while begin < end:
            stop = min(begin + int(rng.integers(1, piece)), end)
            contexts.read([place], [tokens[begin:stop]], [begin])
            begin = stop

    def answer(contexts: Any, *places: int) -> Any:
        given = [(place, token, n + at) for at, token in enumerate(STEPS[0].tolist()) for place in places]
        return torch.cat([contexts.step(*([x] for x in one)) for one in given])

    with monkeypatch.context() as patched:
        patched.setattr(windows, "BACK", 1000)
        whole = Contexts(model, 1, 512)  # holds everything
        read(whole, 0)
        rows = [whole.cache.read(0, begin, begin + BLOCK // 2) for begin in range(0, 3 * BLOCK, BLOCK // 2)]
        expected = answer(whole, 0)
        assert whole.cache.shortest(0) == whole.cache.begin(0) == 0
        whole.close()
    contexts = Contexts(model, 4, 512)
    try:
        read(contexts, 0)
        assert torch.equal(answer(contexts, 0), expected)
        read(contexts, 1)
        shortest, begin = contexts.cache.shortest(1), contexts.cache.begin(1)
        assert n - WINDOW - 8 >= begin > 0 and begin % 64 == 0 and shortest == begin + WINDOW
        contexts.cache.copy(1, 2, shortest)
        read(contexts, 2, shortest)
        for part in rows:
            contexts.cache.append(3, part)
        read(contexts, 3, 3 * BLOCK)
        for place in (1, 2, 3):
            assert torch.equal(answer(contexts, place), expected), place
        assert contexts.cache.keep([0, 1], [n] * 2) == [n] * 2
        of = [(place, token, n + at) for at, token in enumerate(STEPS[0].tolist()) for place in (0, 1)]
        together = contexts.step(*map(list, zip(*of)))
        assert torch.equal(together[::2], expected)
        assert torch.equal(together[1::2], expected)
        assert contexts.cache.keep([0, 2], [contexts.cache.shortest(0) - 1, n]) == [0, n]
        read(contexts, 0)  # a new text
        assert torch.equal(answer(contexts, 0), expected)
        key, value = contexts.cache.read(1, n - 5, n)[0]
        assert np.array_equal(key, contexts.cache.read(2, n - 5, n)[0][0]) and key.shape == value.shape
        with pytest.raises(ValueError, match="read: stop must be"):
            contexts.cache.read(1, 0, 5)
    finally:
        contexts.close()


@pytest.mark.usefixtures("short")
def test_a_place_is_right_after_memory_ran_out_between_layers(model: Any, monkeypatch: Any) -> None:
    sparq_ipu.transformers.enable(model, **SETTINGS)
    tokens, failures = tokens_of(N)[0].tolist(), [False, True]

    def keep_last(*given: Any) -> Any:
        if failures and failures.pop(0):
            raise MemoryError
        return windows.keep_last(*given)

    contexts = Contexts(model, 2, 512)
    try:
        for place in (0, 1):
            for begin in range(0, N, 48):
                given = [place], [tokens[begin : begin + 48]], [begin]
                try:
                    contexts.read(*given)
                except MemoryError:
                    assert contexts.cache.keep([place], [begin]) == [begin]
                    contexts.read(*given)
            monkeypatch.setattr("sparq_ipu.serve.places.keep_last", keep_last)
        assert not failures and contexts.cache.begin(0) == contexts.cache.begin(1) > 0
        said = contexts.step([0, 1], [3, 3], [N, N])
        assert torch.equal(said[0], said[1])
    finally:
        contexts.close()
