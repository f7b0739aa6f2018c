# SPDX-License-Identifier: Apache-2.0
"""Several tokens in one forward pass that are decode steps: assisted generation, prompt lookup."""

from __future__ import annotations

import copy

import pytest
from tiny_models import enable, greedy, left_padded, tiny_model, tokens_of, torch, transformers

from sparq_ipu.transformers import (
    SparqCache,
    enable_dense,
)

SETTINGS = dict(rank=4, top_k=12, n_local=3)


def prefilled(model, tokens, **options):
    cache = SparqCache(model, **options)
    with torch.no_grad():
        model(tokens, cache=cache)
    return cache


def logits_of(model, tokens, cache, at_once: int):
    """(batch, n_tokens, vocabulary): so many tokens in one forward pass."""
    with torch.no_grad():
        parts = [model(part, cache=cache).logits for part in tokens.split(at_once, dim=1)]
    return torch.cat(parts, dim=1)


def lengths_and_keys(cache):
    return [(layer.cache.lengths.tolist(), layer.keys) for layer in cache.layers]


@pytest.mark.parametrize(
    "settings", [None, SETTINGS, dict(SETTINGS, min_seq_len=35), dict(SETTINGS, index_bits=4)]
)
@pytest.mark.parametrize("device", ["auto", "reference"])
def test_several_tokens_are_as_one_after_another(model, settings, device):
    def turn_on(**options):
        if settings is None:
            enable_dense(model, device=device, **options)
        else:
            enable(model, device=device, **settings, **options)

    model.double()  # torch then rounds beneath what float16 sees, also where it computes several at once
    prompt, text = tokens_of(60, batch=2), tokens_of(9, seed=3, batch=2)
    turn_on()
    cache = prefilled(model, prompt, device=device)
    expected = logits_of(model, text, cache, 1)
    turn_on(tokens_per_step=9)
    got = prefilled(model, prompt, device=device)
    assert (logits_of(model, text, got, 9) - expected).abs().max() < 1e-9 * expected.abs().max()
    for (lengths, keys), (other_lengths, other_keys) in zip(lengths_and_keys(cache), lengths_and_keys(got)):
        assert lengths == other_lengths and torch.equal(keys, other_keys)
    if settings is not None:  # negative control: as prefill, which is dense
        turn_on()
        prefill = logits_of(model, text, prefilled(model, prompt, device=device), 9)
        assert (prefill - expected).abs().max() > 1e-3 * expected.abs().max()


def test_more_tokens_and_padding_are_prefill(model):
    """A turn of a chat that happens to be short is one with tokens_per_step=1 alone."""
    ones = torch.ones(1, 2, dtype=torch.int64)
    for new, mask in ((tokens_of(5), None), (tokens_of(3), torch.tensor([[1] * 40 + [0, 1, 1]]))):
        logits = []
        for tokens_per_step in (1, 4):
            enable(model, **SETTINGS, tokens_per_step=tokens_per_step)
            cache = prefilled(model, tokens_of(40))
            turn = model(new, cache=cache, attention_mask=mask).logits
            after = None if mask is None else torch.cat([mask, ones], 1)
            logits.append((turn, model(tokens_of(2), cache=cache, attention_mask=after).logits))
        (turn, prefill), (same, steps) = logits
        assert torch.equal(turn, same) and not torch.equal(prefill, steps)


def test_crop_is_as_if_they_had_never_come(model):
    enable(model, **SETTINGS, index_bits=4, tokens_per_step=8)
    tokens, mask = left_padded([tokens_of(70), tokens_of(50, seed=1)])
    text = tokens_of(8, seed=3, batch=2)

    def step(cache, n_tokens):
        held = cache.get_seq_length()
        full = torch.cat([mask, torch.ones(2, held + n_tokens - 70, dtype=torch.int64)], dim=1)
        positions = full.sum(-1, keepdim=True) - n_tokens + torch.arange(n_tokens)
        with torch.no_grad():
            return model(text[:, :n_tokens], attention_mask=full, position_ids=positions, cache=cache).logits

    cache = SparqCache(model)
    with torch.no_grad():
        model(tokens, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), cache=cache)
    fresh = copy.deepcopy(cache)
    step(cache, 8)
    cache.crop(-8)
    assert cache.get_seq_length() == 70
    assert torch.equal(step(cache, 5), step(fresh, 5))
    cache.crop(-3)
    fresh.crop(-3)
    assert torch.equal(step(cache, 1), step(fresh, 1))
    assert [layer.cache.lengths.tolist() for layer in cache.layers] == [[73, 53]] * 3


def test_a_positive_crop_is_refused(model):
    """As by transformers, where it once was the number of tokens to keep."""
    enable(model, **SETTINGS, tokens_per_step=8)
    for cache in (transformers.DynamicCache(config=model.config), SparqCache(model)):
        with torch.no_grad():
            model(tokens_of(20), cache=cache)
        with pytest.raises(ValueError, match="crop"):
            cache.crop(15)
        assert cache.get_seq_length() == 20


@pytest.mark.parametrize("options", [dict(prompt_lookup_num_tokens=3), dict(assistant_model=None)])
def test_assisted_generation(model, options):
    if "assistant_model" in options:
        options = dict(assistant_model=tiny_model(seed=1))
        options["assistant_model"].generation_config.num_assistant_tokens = 2
    prompt = torch.cat([tokens_of(12)] * 3, dim=1)  # repeats, so that lookup finds something
    for turn_on in (
        lambda n: enable_dense(model, tokens_per_step=n),
        lambda n: enable(model, rank=4, top_k=100, tokens_per_step=n),
    ):
        turn_on(1)
        expected = greedy(model, prompt, 20)
        turn_on(32)
        assert torch.equal(greedy(model, prompt, 20, **options), expected)
    enable(model, **SETTINGS, tokens_per_step=32)
    assert greedy(model, prompt, 20, **options).shape == (1, 20)


@pytest.mark.parametrize("n", [0, 33, True])
def test_tokens_per_step(model, n):
    for op, turn_on in (
        ("enable", lambda: enable(model, **SETTINGS, tokens_per_step=n)),
        ("enable_dense", lambda: enable_dense(model, tokens_per_step=n)),
    ):
        with pytest.raises(ValueError, match=rf"^{op}: tokens_per_step must be "):
            turn_on()


def test_a_step_that_fails_leaves_the_cache_as_it_was(model):
    enable(model, **SETTINGS, tokens_per_step=8)
    cache, other = (prefilled(model, tokens_of(30)) for _ in range(2))
    embedded = model.get_input_embeddings()(tokens_of(3)).clone()
    embedded[0, 2, 0] = float("inf")
    with pytest.raises(ValueError, match="must be finite"):
        model(inputs_embeds=embedded, cache=cache)
    assert cache.get_seq_length() == 30
    text = tokens_of(3, seed=4)
    assert torch.equal(logits_of(model, text, cache, 3), logits_of(model, text, other, 3))


@pytest.mark.parametrize("n_tokens", [3, 5, 8])
def test_tokens_that_pass_the_end_of_a_window_are_steps(n_tokens):
    model = tiny_model("Mistral", sliding_window=16)
    enable(model, **SETTINGS, tokens_per_step=8)
    caches = [prefilled(model, tokens_of(12)) for _ in range(2)]
    tokens = tokens_of(n_tokens, seed=1)
    together = logits_of(model, tokens, caches[0], n_tokens)
    alone = logits_of(model, tokens, caches[1], 1)
    # products of several rows round differently, which turns a few roundings to float16
    assert (together - alone).norm() < 1e-3 * alone.norm()
