# SPDX-License-Identifier: Apache-2.0
"""Whether lean steps have the bits of a model's own forward pass: both compute the same token."""

from __future__ import annotations

import copy
from typing import Any

import torch

from sparq_ipu.transformers.cache.sparq_cache import SparqCache, sparq_layers
from sparq_ipu.transformers.cache_name import with_cache
from sparq_ipu.transformers.decoder.families import family_of
from sparq_ipu.transformers.decoder.lean_step import LeanStep

#: tokens before that of the step
_N_HELD = 3


def lean_step_of(decoder: Any) -> LeanStep | str:
    """The lean step of a decoder, or why it has none: it is not described, or its bits are others.

    Args:
        decoder: of a model whose attention is SparQ attention by now.
    """
    family = family_of(decoder)
    if isinstance(family, str):
        return family
    lean = LeanStep(decoder, family)
    n = decoder.config.vocab_size
    tokens = torch.arange(1, _N_HELD + 2)[None] * n // (_N_HELD + 2)
    cache = SparqCache(decoder.config)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            _arm(cache)
            lean.__wrapped__(input_ids=tokens[:, :-1], **with_cache(cache), use_cache=True)
            twin, last = copy.deepcopy(cache), tokens[:, -1:]
            _arm(cache)
            own = lean.__wrapped__(input_ids=last, **with_cache(cache), use_cache=True)
            _arm(twin)
            mine = lean.step(lean.find_few_bits(), last, None, twin)
    except ValueError as error:
        return f"a trial ended with: {error}"
    assert mine.last_hidden_state is not None
    is_same = torch.equal(own.last_hidden_state, mine.last_hidden_state)
    return lean if is_same else "its own forward pass has other bits in a trial"


def _arm(cache: SparqCache) -> None:
    for layer in sparq_layers(cache):
        layer.arm(None, None)
