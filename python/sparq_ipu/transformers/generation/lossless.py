# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with the tokens of dense attention, faster where decoding is bound by reading the cache.

SparQ attention drafts a few tokens, one by one. Then the model reads them all in one forward pass, with dense
attention over the same cache. What it agrees with is kept, and the first token that it does not agree with is
replaced by its own. The keys and values of drafts are taken back before that pass: what stays in the cache is
what dense attention made.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from transformers import PreTrainedModel

from sparq_ipu.commands.progress import PromptProgress
from sparq_ipu.kept_prefixes import KeptPrefixes
from sparq_ipu.tokens import MAX_TOKENS
from sparq_ipu.transformers.cache.sparq_cache import SparqCache
from sparq_ipu.transformers.cache_name import with_cache
from sparq_ipu.transformers.generation.beginning import read_beginning
from sparq_ipu.transformers.integration import decoding
from sparq_reference import checks


@dataclasses.dataclass
class LosslessRun:
    """The tokens of `generate_lossless`, and its rounds.

    Attributes:
        tokens: the new ones.
        n_rounds: of drafting and checking. n_drafted, n_accepted: drafted tokens, and those that were kept.
        prefill_seconds: until the first new token. decode_seconds: from there to the last one.
        n_held: tokens of the prompt that came from disk.
    """

    tokens: list[int]
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    n_held: int = 0

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were kept; 0 if there were none."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens after the first, per second of decoding; 0 if there are none."""
        return (len(self.tokens) - 1) / self.decode_seconds if len(self.tokens) > 1 else 0.0


def generate_lossless(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    max_new_tokens: int,
    *,
    draft_tokens: int = 4,
    stop: tuple[int, ...] | None = None,
    kept: KeptPrefixes | None = None,
    progress: PromptProgress | None = None,
    **options: Any,
) -> LosslessRun:
    """Continue a text as greedy decoding with dense attention would, token for token.

    Attention is the same to the bit. The rest of the model computes several tokens at once, which rounds
    differently: where two tokens are all but equally likely, the other one may come.

    Args:
        model: enabled by `enable(model, ..., tokens_per_step=n)`, n more than draft_tokens.
        tokens: (1, n_tokens) int64, the text so far.
        max_new_tokens: fewer come if one of `stop` does.
        draft_tokens: how many tokens SparQ attention drafts at a time, in [1, 31].
        stop: tokens that end the text; None: those of the model's generation config.
        kept: prefixes on disk, which the text's beginning is taken from and added to.
        progress: told how many tokens of the prompt came from disk.
        options: of the `SparqCache`.

    Raises:
        ValueError: an argument out of range, a model that is not enabled so.
    """
    op = "generate_lossless"
    hooks = decoding(op, model)
    checks.check_integer(op, "draft_tokens", draft_tokens, 1, MAX_TOKENS - 1)
    checks.check_integer(op, "max_new_tokens", max_new_tokens, 1, checks.MAX_CAPACITY)
    if hooks.tokens_per_step <= draft_tokens:
        rule = f"be enabled with tokens_per_step above draft_tokens={draft_tokens}"
        checks.fail(op, "model", rule, f"tokens_per_step={hooks.tokens_per_step}")
    if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or len(tokens) != 1:
        got = tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        checks.fail(op, "tokens", "have shape (1, n_tokens)", got)
    if stop is None:
        end = getattr(model.generation_config, "eos_token_id", None)
        stop = () if end is None else tuple(end) if isinstance(end, (list, tuple)) else (end,)
    cache: Any = SparqCache(model.config, **{**hooks.cache_options, **options})

    def following(new: list[int]) -> list[int]:
        """The most likely token after each of these, which go to the cache."""
        given = torch.tensor([new], dtype=tokens.dtype)
        logits = model(given, **with_cache(cache), use_cache=True).logits
        likely: list[int] = logits[0].argmax(-1).tolist()
        return likely

    start = time.perf_counter()
    n_held = 0 if kept is None else read_beginning(model, tokens, cache, kept, progress)
    with torch.no_grad():
        rest = tokens[:, cache.get_seq_length() :]
        logits = model(rest, **with_cache(cache), use_cache=True, logits_to_keep=1).logits
        run = LosslessRun([int(logits[0, -1].argmax())], n_held=n_held)
        first = time.perf_counter()
        while len(run.tokens) < max_new_tokens and run.tokens[-1] not in stop:
            n = min(draft_tokens, max_new_tokens - len(run.tokens) - 1)
            drafts = [run.tokens[-1]]
            for _ in range(n):
                drafts += following(drafts[-1:])
            if n:
                cache.crop(-n)
            hooks.forward_pass.state.is_dense = True
            try:
                right = following(drafts)
            finally:
                hooks.forward_pass.state.is_dense = False
            n_same = next((i for i in range(n) if drafts[i + 1] != right[i]), n)
            if n_same < n:
                cache.crop(n_same - n)
            run.n_rounds, run.n_drafted = run.n_rounds + 1, run.n_drafted + n
            run.n_accepted += n_same
            new = right[: n_same + 1]
            ends = [i for i, token in enumerate(new) if token in stop]
            run.tokens += new[: ends[0] + 1] if ends else new
    run.prefill_seconds, run.decode_seconds = first - start, time.perf_counter() - first
    return run
