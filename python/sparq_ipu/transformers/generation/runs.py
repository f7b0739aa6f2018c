# SPDX-License-Identifier: Apache-2.0
"""Generation with a model that `sparq_ipu.transformers` has enabled, timed; and the model's
predictions along a given text.

torch and transformers are imported when a function is called: their objects are `Any`.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any, Callable, Sequence, TextIO

import numpy as np

from sparq_ipu.commands.progress import PromptProgress
from sparq_ipu.kept_prefixes import KeptPrefixes


@dataclasses.dataclass
class Run:
    """One generation.

    Attributes:
        tokens: the new tokens. text: the same as text.
        prefill_seconds: until the first new token. decode_seconds: from there to the last one.
        step_seconds: of each new token after the first, from the one before it.
        read: the cache as it was when the prompt was read, for `forced_predictions`; None if it was not kept.
        n_held: tokens of the prompt that came from disk.
        cache: as it was at the end.
        n_drafted, n_accepted: tokens that were drafted from the text itself, and those that were right.
    """

    tokens: list[int]
    text: str
    prefill_seconds: float
    decode_seconds: float
    step_seconds: list[float] = dataclasses.field(default_factory=list)
    read: Any = dataclasses.field(default=None, repr=False)
    n_held: int = 0
    cache: Any = dataclasses.field(default=None, repr=False)
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """New tokens after the first, per second of decoding; 0 if there are none."""
        return (len(self.tokens) - 1) / self.decode_seconds if len(self.tokens) > 1 else 0.0


def generate(
    model: Any,
    tokenizer: Any,
    prompt: Any,
    n_new: int,
    *,
    stream: TextIO | None = None,
    device: str = "auto",
    keep_read: bool = False,
    kept: KeptPrefixes | None = None,
    progress: PromptProgress | None = None,
    **sampling: Any,
) -> Run:
    """Continue `prompt` with a model that `sparq_ipu.transformers` has enabled. A model that
    `lookup.looks_up` takes drafts tokens from the text itself where that pays: the same tokens.

    Args:
        prompt: (1, n_tokens) int64 tensor.
        n_new: most new tokens; fewer if the model ends the text.
        stream: file that the text goes to as it comes, or None.
        device: of the KV cache, as `sparq_ipu.KVCache`.
        keep_read: keep a copy of the cache after the prompt, as `Run.read`; copying is in no time of the run.
        kept: prefixes on disk, which the prompt's beginning is taken from and added to.
        progress: told how many tokens of the prompt came from disk.
        sampling: as `model.generate`; greedy by default.
    """
    import torch
    from transformers import TextStreamer

    from sparq_ipu.transformers import SparqCache
    from sparq_ipu.transformers.generation.beginning import read_beginning
    from sparq_ipu.transformers.generation.lookup import Lookup, looks_up

    times: list[float] = []
    read, copying = None, 0.0

    class Stream(TextStreamer):
        """Passes text on, and notes when each token came (the first call is the prompt)."""

        def put(self, value: Any) -> None:
            nonlocal read, copying
            times.append(time.perf_counter() - copying)
            if keep_read and len(times) == 2:  # the first token is here, and nothing else was decoded
                read = copy.deepcopy(cache)
                copying = time.perf_counter() - times[-1]
            super().put(value)  # type: ignore[no-untyped-call]  # partly typed in transformers

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if stream is not None:
                stream.write(text)
                stream.flush()

    streamer = Stream(tokenizer, skip_prompt=True, skip_special_tokens=True)
    cache = SparqCache(model, device=device)
    sampling.setdefault("do_sample", False)
    lookup = Lookup(streamer) if looks_up(model) else None
    if lookup is not None:
        sampling["custom_generate"] = lookup
    start = time.perf_counter()
    n_held = 0 if kept is None else read_beginning(model, prompt, cache, kept, progress)
    with torch.no_grad():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=n_new,
            cache=cache,
            streamer=streamer,
            **sampling,
        )
    tokens = output[0, prompt.shape[1] :].tolist()
    came = times[1 : len(tokens) + 1]
    steps = np.diff(came).tolist() if lookup is None else lookup.step_seconds
    of = None if lookup is None else lookup.drafts
    drafted = (0, 0) if of is None else (of.n_drafted, of.n_accepted)
    first, last = came[0], came[-1]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return Run(tokens, text, first - start, last - first, steps, read, n_held, cache, *drafted)


def _end_of_turn(tokenizer: Any) -> list[int]:
    """The special token that ends an answer of a chat, as its template has it."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    return [token for token in tokens if token in special][-1:]


def stop_tokens(model: Any, tokenizer: Any, is_chat: bool) -> list[int]:
    """Tokens that end a text; is_chat: the answer to a message."""
    own = getattr(model.generation_config, "eos_token_id", None)
    stops = [] if own is None else list(own) if isinstance(own, (list, tuple)) else [own]
    return [*stops, *_end_of_turn(tokenizer)] if is_chat else stops


def seconds_per_token(model: Any, run: Run, n_tokens: int = 4) -> float:
    """Mean time of a decode step with the attention that is now enabled, timed at the end of a run, whose
    cache gets `n_tokens` and 2 more, which do not count."""
    import torch

    token, came = torch.tensor([run.tokens[-1:]]), []
    with torch.no_grad():
        for _ in range(n_tokens + 2):
            token = model(token, cache=run.cache, use_cache=True).logits[:, -1:].argmax(-1)
            came.append(time.perf_counter())
    return (came[-1] - came[1]) / n_tokens


def prefill(model: Any, tokens: Any) -> Any:
    """A `SparqCache` that holds tokens (1, n_tokens); `copy.deepcopy` it to continue it in several ways."""
    import torch

    from sparq_ipu.transformers import SparqCache

    cache = SparqCache(model)
    with torch.no_grad():
        model(tokens, cache=cache, use_cache=True, logits_to_keep=1)
    return cache


def forced_predictions(
    model: Any,
    prompt: Any,
    continuation: Any,
    cache: Any = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """The model's predictions at each token of a given text, decoded with the attention that is enabled.

    Args:
        prompt: (1, n_tokens) int64 tensor, at least two tokens; all but the last are prefill.
        continuation: (1, n_new) int64 tensor.
        cache: what `prefill` made of these tokens, used up; None: it is made here.
        progress: called with the number of tokens done, or None.

    Returns:
        (n_new,) int64: the most likely token at each place of the continuation, given all tokens before it.
    """
    import torch

    cache = prefill(model, prompt[:, :-1]) if cache is None else cache
    predictions = []
    with torch.no_grad():
        token = prompt[:, -1:]
        for index in range(continuation.shape[1]):
            logits = model(token, cache=cache, use_cache=True).logits
            predictions.append(int(logits[0, -1].argmax()))
            token = continuation[:, index : index + 1]
            if progress is not None:
                progress(index + 1)
    return np.array(predictions)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two lists differ first (the end of the shorter one counts), None if they are equal."""
    for index, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
