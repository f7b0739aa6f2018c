# SPDX-License-Identifier: Apache-2.0
"""The decoding loop of `generate` with drafts from the text itself: the same tokens, several in a step where
that pays. transformers' prompt lookup drafts whether it pays or not."""

from __future__ import annotations

import time
from typing import Any

import torch

from sparq_ipu.drafts import MOST, Drafts, Pace
from sparq_ipu.transformers.decoder.weights import piece_rows
from sparq_ipu.transformers.integration import decoding
from sparq_ipu.transformers.supported import same_rotary_until, text_config
from sparq_reference import checks


def looks_up(model: Any) -> bool:
    """Whether `Lookup` can decode with an enabled model: tokens have the same bits together as alone, and can
    be taken back. Not where transformers reads a text again when it gets long (longrope)."""
    steps = decoding("generate", model).tokens_per_step
    is_fixed = same_rotary_until(text_config(model)) == checks.MAX_CAPACITY
    return is_fixed and steps > MOST and piece_rows(model) == 1


class Lookup:
    """`custom_generate` of one call of `model.generate`, greedy or sampling, with one text. streamer: of that
    call, which transformers does not pass on.

    Attributes:
        drafts: which tokens were drafted and right; None before the first token.
        step_seconds: of each new token after the first, its part of a pass.
    """

    def __init__(self, streamer: Any = None) -> None:
        self._streamer = streamer
        self.drafts: Drafts | None = None
        self.step_seconds: list[float] = []

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """As transformers' own loops, without what only a dictionary returns."""
        cache: Any = model_kwargs["cache"]
        given, draft = input_ids[:, cache.get_seq_length() :], []  # type: tuple[torch.Tensor, list[int]]
        pace = Pace()
        while True:
            start = time.perf_counter()
            n = 1 + len(draft)
            logits = model(given, cache=cache, use_cache=True, logits_to_keep=n).logits.float()
            n_new = 0
            for at in range(n):
                scores = logits_processor(input_ids, logits[:, at])
                if generation_config.do_sample:
                    token = torch.multinomial(scores.softmax(-1), 1)
                else:
                    token = scores.argmax(-1, keepdim=True)
                input_ids, n_new = torch.cat([input_ids, token], 1), at + 1
                if self._streamer is not None:
                    self._streamer.put(token[0].cpu())
                is_last = bool(stopping_criteria(input_ids, None).all())
                if is_last or [int(token)] != draft[at : at + 1]:
                    break
            seconds = time.perf_counter() - start
            if self.drafts is None:  # the prompt was read
                self.drafts = Drafts(input_ids[0].tolist(), pace)
            else:
                pace.took(n, seconds)
                self.step_seconds += [seconds / n_new] * n_new
                for new in input_ids[0, -n_new:].tolist():
                    self.drafts.push(new)
            if draft:
                self.drafts.took(len(draft), n_new - 1)
                if n_new < n:
                    cache.crop(n_new - n)
            if is_last:
                break
            draft = self.drafts.draft(generation_config.max_length - input_ids.shape[1] - 1)
            given = torch.tensor([[int(token), *draft]])
        if self._streamer is not None:
            self._streamer.end()
        return input_ids
