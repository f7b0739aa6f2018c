# SPDX-License-Identifier: Apache-2.0
"""Layers with sliding windows: however a cache came to hold a text, the next tokens have the bits of a fresh
one. Weights of 4 bits, whose products have the same bits for any number of rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sparq_ipu._cpu")

from families import FAMILIES, WINDOW  # noqa: E402
from lean_steps import SETTINGS, a_wide_model  # noqa: E402
from tiny_models import left_padded, tokens_of  # noqa: E402

import sparq_ipu.transformers  # noqa: E402
from sparq_ipu.kept_prefixes import BLOCK  # noqa: E402
from sparq_ipu.serve.contexts import Contexts  # noqa: E402
from sparq_ipu.transformers import SparqCache  # noqa: E402
from sparq_ipu.transformers.cache_name import with_cache  # noqa: E402

N = 3 * WINDOW
STEPS = tokens_of(6, seed=5)


@pytest.fixture(scope="module", params=["Gemma 3", "Mistral with a sliding window"])
def model(request: Any) -> Any:
    family = FAMILIES[request.param]
    model = a_wide_model("int4", family.kind, vocab_size=112, **family.changes)
    sparq_ipu.transformers.enable(model, tokens_per_step=4, **SETTINGS)
    return model


def filled(model: Any, tokens: Any, cuts: Any = (), **mask: Any) -> Any:
    cache = SparqCache(model)
    with torch.no_grad():
        for part in torch.tensor_split(tokens, list(cuts), dim=1):
            model(part, **with_cache(cache), **mask)
    return cache


def steps(model: Any, cache: Any, at_once: int = 1) -> Any:
    with torch.no_grad():
        parts = [model(part, **with_cache(cache)).logits for part in STEPS.split(at_once, 1)]
    return torch.cat(parts, 1)


def test_random_cuts_copies_and_tokens_taken_back(model: Any) -> None:
    tokens, rng = tokens_of(N), np.random.default_rng(0)
    expected = steps(model, filled(model, tokens))
    for _ in range(5):
        cuts = np.cumsum(rng.integers(5, 20, 4))  # 4 tokens or fewer would be steps
        assert torch.equal(steps(model, filled(model, tokens, cuts)), expected)
    cache = filled(model, tokens)
    twin = copy.deepcopy(cache)
    steps(model, cache)
    cache.crop(-6)
    assert torch.equal(steps(model, cache), expected)
    assert torch.equal(steps(model, twin, 3), expected)


def test_rows_of_a_batch(model: Any) -> None:
    texts = [tokens_of(n, seed=n) for n in (N, WINDOW - 3, 7)]
    tokens, mask = left_padded(texts)
    cache = SparqCache(model)
    said = []
    with torch.no_grad():
        model(tokens, attention_mask=mask, position_ids=mask.cumsum(1) - 1, **with_cache(cache))
        for step in STEPS.T:
            mask = torch.cat([mask, torch.ones(3, 1, dtype=mask.dtype)], 1)
            given = dict(attention_mask=mask, position_ids=mask.sum(1, keepdim=True) - 1)
            said.append(model(step[None].expand(3, 1), **given, **with_cache(cache)).logits)
    for row, text in enumerate(texts):
        alone = steps(model, filled(model, text))
        assert torch.equal(torch.cat(said, 1)[row], alone[0])


def test_places_of_the_server(model: Any) -> None:
    """Pieces in random cuts, a copied beginning, an answer that is forgotten, rows that were kept on disk."""
    rng = np.random.default_rng(0)
    tokens = tokens_of(BLOCK + 40)[0].tolist()
    how = {**SETTINGS, "min_seq_len": len(tokens) + 4}  # some steps are dense
    sparq_ipu.transformers.enable(model, **how)
    contexts = Contexts(model, 4, 512)
    try:

        def read(place: int, begin: int) -> None:
            while begin < len(tokens):
                end = min(begin + int(rng.integers(1, 60)), len(tokens))
                contexts.read([place], [tokens[begin:end]], [begin])
                begin = end

        def answer(*places: int) -> Any:
            given = [
                (place, token, len(tokens) + at)
                for at, token in enumerate(STEPS[0].tolist())
                for place in places
            ]
            return torch.cat([contexts.step(*([x] for x in one)) for one in given])

        contexts.read([0], [tokens], [0])
        expected = answer(0)
        read(1, 0)
        contexts.copy(0, 2, BLOCK)
        read(2, BLOCK)
        contexts.put(3, contexts.rows(0, 0, BLOCK))
        read(3, BLOCK)
        for place in (1, 2, 3):
            assert torch.equal(answer(place), expected), place
        contexts.keep([0], [len(tokens)])
        assert torch.equal(answer(0), expected)
        contexts.keep([0, 1], [len(tokens)] * 2)
        given = STEPS[0].tolist()
        of = [(place, token, len(tokens) + at) for at, token in enumerate(given) for place in (0, 1)]
        together = contexts.step(*map(list, zip(*of)))
        assert torch.equal(together[::2], expected)
        assert torch.equal(together[1::2], expected)
    finally:
        contexts.close()
