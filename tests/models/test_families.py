# SPDX-License-Identifier: Apache-2.0
"""Every family of models that docs/models.md names: an enabled model against the model itself, along a text.

With top_k beyond the length SparQ attention is dense. So what differs is the rounding of keys, values and
queries to float16, and nothing else may.
"""

from __future__ import annotations

import logging

import pytest
from families import FAMILIES, WINDOW
from tiny_models import enable, greedy, left_padded, step_logits, tiny_model, tokens_of, torch

from sparq_ipu.transformers import disable, enable_dense

#: relative to the largest logit. Measured: at most 0.0051, and 0.08 or more with two positions of all.
TOLERANCE = 0.01


def model_of(name: str, **changes):
    family = FAMILIES[name]
    return tiny_model(family.kind, **{"initializer_range": 0.15, **family.changes, **changes})


def difference(one, other) -> float:
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_an_enabled_model_says_what_the_model_says(name):
    model = model_of(name)
    # a batch with padding that gets longer than a window, a text that begins so, a batch that never does
    for lengths in ((21, 9), (40,), (13, 9)):
        tokens, mask = left_padded([tokens_of(n, seed=n) for n in lengths])
        plain = step_logits(model, tokens, 8, mask)
        enable(model, rank=2, top_k=1000)
        assert difference(step_logits(model, tokens, 8, mask), plain) < TOLERANCE
        disable(model)
        assert torch.equal(step_logits(model, tokens, 8, mask), plain)
    enable(model, rank=2, top_k=2)  # negative control: attention matters to these logits
    assert difference(step_logits(model, tokens, 8, mask), plain) > 5 * TOLERANCE


@pytest.mark.parametrize(
    "name, line",
    [
        ("Llama 2", "SparQ attention in 3 of 3 layers"),
        (
            "Gemma 3",
            f"SparQ attention in 1 of 3 layers, "
            f"dense attention to a window of {WINDOW} positions in the others",
        ),
        (
            "Mistral with a sliding window",
            f"SparQ attention in 3 of 3 layers while a text is within their window of {WINDOW} positions, "
            "dense attention beyond",
        ),
    ],
)
def test_enable_says_in_a_line_which_layers(name, line, caplog):
    caplog.set_level(logging.INFO, "sparq_ipu")
    model = model_of(name)
    enable(model, rank=2, top_k=4)
    enable_dense(model)
    records = [record for record in caplog.records if "attention in" in record.getMessage()]
    assert [record.getMessage() for record in records] == [
        f"enable: {line}",
        f"enable_dense: {line.replace('SparQ', 'dense')}",
    ]


@pytest.mark.parametrize("name", ["Gemma 3", "Mistral with a sliding window", "OPT", "GPT-2"])
def test_generate_and_beams(name):
    """What `generate` does with a cache: it makes it, repeats its rows, and reorders them."""
    model = model_of(name)
    tokens, mask = left_padded([tokens_of(20), tokens_of(13, seed=1)])
    plain = greedy(model, tokens, 12, attention_mask=mask, num_beams=3)
    enable(model, rank=2, top_k=1000)
    assert torch.equal(greedy(model, tokens, 12, attention_mask=mask, num_beams=3), plain)


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen 2 with sliding windows", "Mistral with a sliding window"])
@pytest.mark.parametrize("way", ["lookup", "assistant"])
def test_tokens_can_be_taken_back_beyond_a_window(name, way):
    """Prompt lookup and assisted generation say what the model itself says."""
    model = model_of(name)
    tokens = tokens_of(12).repeat(1, 4)  # repeats, so that lookup finds something
    plain = greedy(model, tokens, 16, eos_token_id=100)
    options = dict(prompt_lookup_num_tokens=3)
    if way == "assistant":
        options = dict(assistant_model=tiny_model(seed=1))
    enable(model, rank=2, top_k=1000, tokens_per_step=8)
    assert torch.equal(greedy(model, tokens, 16, eos_token_id=100, **options), plain)


@pytest.mark.parametrize("name", ["Gemma 3", "Mistral with a sliding window", "Llama 2"])
def test_without_a_cache_it_is_the_model_itself(name):
    model, tokens = model_of(name), tokens_of(3 * WINDOW)
    with torch.no_grad():
        plain = model(tokens, use_cache=False).logits
        enable(model, rank=2, top_k=4)
        assert torch.equal(model(tokens, use_cache=False).logits, plain)


def test_a_window_that_attention_does_not_know_is_refused():
    """The config says that there is one, and the layer does not: a guess would be wrong beyond it."""
    model = tiny_model()
    model.config.sliding_window = 8
    enable(model, rank=2, top_k=4)
    message = r"^sparq_attention: sliding_window must be that of the config, 8, got None"
    with pytest.raises(ValueError, match=message):
        greedy(model, tokens_of(20), 2)
