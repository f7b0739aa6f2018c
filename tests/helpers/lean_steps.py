# SPDX-License-Identifier: Apache-2.0
"""Models whose steps are lean, and what they say beside their own forward pass."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

from families import FAMILIES
from tiny_models import tiny_model, tokens_of, torch

import sparq_ipu.transformers
from sparq_ipu.transformers import SparqCache, integration
from sparq_ipu.transformers.decoder.families import family_of
from sparq_ipu.transformers.decoder.lean_step import LeanStep

FAST = [name for name, family in FAMILIES.items() if family.is_fast]
SETTINGS = dict(rank=8, top_k=16, n_local=4, min_seq_len=0)


def uneven(model: Any) -> Any:
    """With biases other than 0 and norms other than 1, as they are made."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
        elif "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def a_model(family: str = "Llama 2", dtype: Any = torch.float32) -> Any:
    kind, changes = FAMILIES[family][:2]
    return uneven(tiny_model(kind, **changes).to(dtype))


def a_wide_model(weights: str, kind: str = "Qwen2", **changes: Any) -> Any:
    """Of a shape whose layers are joined."""
    shape = dict(hidden_size=128, intermediate_size=128, num_attention_heads=8, num_key_value_heads=4)
    model = uneven(tiny_model(kind, **{**shape, **changes}).to(torch.bfloat16))
    sparq_ipu.transformers.quantise_weights(model, weights)
    return model


def enabled(model: Any, **settings: Any) -> Any:
    """The model, with SparQ attention at any length."""
    sparq_ipu.transformers.enable(model, **{**SETTINGS, **settings})
    return model


def of_family(name: str, weights: str) -> Any:
    """A fast one with bfloat16 weights, or a shape that is one call with these weights."""
    if weights == "bfloat16":
        return a_model(name, torch.bfloat16)
    changes = dict(FAMILIES[name].changes)
    changes.pop("num_key_value_heads", None)
    return a_wide_model(weights, FAMILIES[name].kind, **changes)


def skip_trials(monkeypatch: Any) -> None:
    """Steps of `enable` itself would be counted, and would refuse what a test breaks."""

    def untried(decoder: Any) -> LeanStep | str:
        family = family_of(decoder)
        return family if isinstance(family, str) else LeanStep(decoder, family)

    monkeypatch.setattr(integration, "lean_step_of", untried)


@contextlib.contextmanager
def counted(monkeypatch: Any) -> Iterator[list[int]]:
    """How many steps are lean, of one token or of several."""
    steps: list[int] = []
    own = LeanStep.step

    def step(*given: Any) -> Any:
        steps.extend([1] * given[5])  # is_step
        return own(*given)

    with monkeypatch.context() as patch:
        patch.setattr(LeanStep, "step", step)
        yield steps


def logits(model: Any, n_steps: int = 6, mask: Any = None, **given: Any) -> Any:
    """Of a prompt and of tokens one by one, (batch, n_steps, vocabulary), through a cache of its own."""
    batch = 1 if mask is None else len(mask)
    tokens, cache, said = tokens_of(40, batch=batch), SparqCache(model), []
    with torch.no_grad():
        model(tokens[:, :-n_steps], cache=cache, attention_mask=mask)
        for at in range(40 - n_steps, 40):
            if mask is not None:
                mask = torch.cat((mask, torch.ones(batch, 1, dtype=mask.dtype)), 1)
                given = dict(given, position_ids=mask.sum(1, keepdim=True) - 1)
            token = tokens[:, at : at + 1]
            said.append(model(token, cache=cache, attention_mask=mask, **given).logits)
    return torch.cat(said, 1)


def both(model: Any, monkeypatch: Any, **given: Any) -> tuple[Any, Any, int]:
    """What the model's own forward pass says, and what lean steps say; how many of them there were."""
    sparq_ipu.transformers.enable(model, lean=False, **SETTINGS)
    own = logits(model, **given)
    sparq_ipu.transformers.enable(model, **SETTINGS)
    with counted(monkeypatch) as steps:
        return own, logits(model, **given), len(steps)


def assert_same_bits(model: Any, monkeypatch: Any, n_lean: int = 6, **given: Any) -> Any:
    """So many steps are lean, and they have the bits of the model's own forward pass, which are returned."""
    own, lean, n_steps = both(model, monkeypatch, **given)
    assert n_steps == n_lean
    assert torch.equal(own, lean)
    return own


def logits_of_own(model: Any) -> Any:
    sparq_ipu.transformers.enable(model, lean=False, **SETTINGS)
    return logits(model)
