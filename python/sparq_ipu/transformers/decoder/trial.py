# SPDX-License-Identifier: Apache-2.0
"""Whether lean passes have the bits of a model's own: both compute the same tokens."""

from __future__ import annotations

from typing import Any

import torch

from sparq_ipu.transformers.cache.sparq_cache import SparqCache, sparq_layers
from sparq_ipu.transformers.decoder.families import family_of
from sparq_ipu.transformers.decoder.lean_step import LeanStep

#: tokens before that of the step
_N_HELD = 3


def lean_step_of(decoder: Any) -> LeanStep | str:
    """The lean step of a decoder, or why it has none: it is not described, or its bits are others. decoder:
    of a model whose attention is SparQ attention by now."""
    family = family_of(decoder)
    if isinstance(family, str):
        return family
    lean = LeanStep(decoder, family)
    n = decoder.config.vocab_size
    tokens = torch.arange(1, _N_HELD + 2)[None] * n // (_N_HELD + 2)
    cache = SparqCache(decoder.config)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            twin = SparqCache(decoder.config)
            for part, is_step in ((tokens[:, :-1], False), (tokens[:, -1:], True)):
                for of in (cache, twin):
                    _arm(of)
                own = lean.__wrapped__(input_ids=part, cache=cache, use_cache=True)
                # not by a call, which leaves to the model what somebody looks at
                mine: Any = lean.step(lean.find_few_bits(is_step), part, None, twin, is_step)
                if mine is None:
                    mine = lean.__wrapped__(input_ids=part, cache=twin, use_cache=True)
                if not torch.equal(own.last_hidden_state, mine.last_hidden_state):
                    return "its own forward pass has other bits in a trial"
    except ValueError as error:
        return f"a trial ended with: {error}"
    return lean


def _arm(cache: SparqCache) -> None:
    for layer in sparq_layers(cache):
        layer.arm(None, None)
