# SPDX-License-Identifier: Apache-2.0
"""The beginning of a long prompt: its keys and values are kept on disk for the next run."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import torch

from sparq_ipu.commands.progress import PromptProgress
from sparq_ipu.kept_prefixes import BLOCK, GROUP, KeptPrefixes, Rows
from sparq_ipu.tokens import MAX_TOKENS
from sparq_ipu.transformers.cache.sparq_cache import sparq_layers
from sparq_ipu.transformers.cache_name import with_cache
from sparq_ipu.transformers.integration import decoding
from sparq_reference import checks

#: Tokens of a forward pass. Every run makes the same passes, except those of pieces that the disk has whole.
PIECE = 1024


def read_beginning(
    model: Any, tokens: torch.Tensor, cache: Any, kept: KeptPrefixes, progress: PromptProgress | None
) -> int:
    """Fill an empty `SparqCache` with the whole pieces of a prompt: from disk the ones that were kept; the
    others are read, and kept. The rest, more than one token, is left for the caller to read.

    Args:
        model: enabled. tokens: (1, n_tokens) int64. progress: told how many tokens came from disk.

    Returns:
        How many tokens came from disk.

    Raises:
        ValueError: the model keeps a cache of its own in some layers.
    """
    if len(sparq_layers(cache)) < len(cache.layers):
        rule = "be left out for a model with layers that keep their own cache"
        checks.fail("generate", "--cache-dir", rule, type(model).__name__)
    settings = decoding("generate", model).settings
    # so few tokens can be decode steps, and window attention remembers the last ones
    n_last = 1 + max([MAX_TOKENS, *(getattr(of_layer, "n_recent", 0) for of_layer in settings)])
    n = max(tokens.shape[1] - n_last, 0) // PIECE * PIECE
    prompt = tokens[0, :n].numpy()
    held = _from_disk(prompt, cache, settings, kept)
    if progress is not None:
        progress.n_held = held
    rows = functools.partial(_rows, cache)
    kept.keep(prompt[:held], rows)  # used now; another process may have deleted some since
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():
        for end in range(held + PIECE, n + 1, PIECE):
            model(tokens[:, end - PIECE : end], **with_cache(cache), use_cache=True, **keep)
            kept.keep(prompt[:end], rows)
    return held


def _from_disk(prompt: np.ndarray, cache: Any, settings: Any, kept: KeptPrefixes) -> int:
    """Returns how many tokens there were: whole pieces."""
    for begin in range(0, len(prompt), PIECE):
        parts = []
        for start in range(begin, begin + PIECE, GROUP * BLOCK):
            rows = kept.read(prompt, start)
            if not rows or rows[0][0].shape[1] < GROUP * BLOCK:
                return begin
            parts.append(rows)
        for rows in parts:
            for layer, of_layer, pair in zip(cache.layers, settings, rows):
                layer.restore(*(torch.from_numpy(x[None]) for x in pair), of_layer)
    return len(prompt)


def _rows(cache: Any, start: int, stop: int) -> Rows:
    read = [layer.cache.read(start, stop) for layer in cache.layers]
    return [(key[0], value[0]) for key, value in read]
