# SPDX-License-Identifier: Apache-2.0
"""The beginning of a long prompt: its keys and values are kept on disk for the next run."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from sparq_ipu.commands.progress import PromptProgress
from sparq_ipu.kept_prefixes import BLOCK, KeptPrefixes, Rows
from sparq_ipu.tokens import MAX_TOKENS
from sparq_ipu.transformers.decoder.weights import piece_rows
from sparq_ipu.transformers.integration import decoding

#: Tokens of a forward pass. Where bits depend on the rows of a pass, every run makes the same passes, except
#: those of pieces that the disk has whole.
PIECE = 1024


def read_beginning(
    model: Any, tokens: torch.Tensor, cache: Any, kept: KeptPrefixes, progress: PromptProgress | None
) -> int:
    """Fill an empty `SparqCache` with the whole blocks of a prompt (1, n_tokens), or whole pieces where bits
    depend on the rows of a pass: from disk the ones that were kept; the others are read, and kept. The rest,
    more than one token, is left for the caller to read. Returns how many tokens came from disk."""
    settings = decoding("generate", model).settings
    n_last = 1 + MAX_TOKENS  # so few tokens can be decode steps
    whole = BLOCK if piece_rows(model) == 1 else PIECE
    n = max(tokens.shape[1] - n_last, 0) // whole * whole
    prompt = tokens[0, :n].numpy()
    held = _from_disk(prompt, cache, settings, kept, whole)
    if progress is not None:
        progress.n_held = held
    rows = functools.partial(_rows, cache)
    if held:  # used now; another process may have deleted some since
        kept.keep(prompt[:held], rows, _begin(cache))
    with torch.no_grad():
        for begin in range(held, n, PIECE):
            end = min(begin + PIECE, n)
            model(tokens[:, begin:end], cache=cache, use_cache=True, logits_to_keep=1)
            kept.keep(prompt[:end], rows, _begin(cache))
    return held


def _from_disk(prompt: np.ndarray, cache: Any, settings: Any, kept: KeptPrefixes, whole: int) -> int:
    """Returns how many tokens there were: a multiple of `whole`."""
    held = found = 0
    parts: list[Rows] = []
    while rows := kept.read(prompt, found):
        parts.append(rows)
        found += rows[0][0].shape[1]
        if found % whole == 0:
            for part in parts:
                for layer, of_layer, pair in zip(cache.layers, settings, part):
                    layer.restore(*(torch.from_numpy(x[None]) for x in pair), of_layer)
            held, parts = found, []
    return held


def _rows(cache: Any, start: int, stop: int) -> Rows:
    read = [layer.read_rows(start, stop) for layer in cache.layers]
    return [(key[0], value[0]) for key, value in read]


def _begin(cache: Any) -> int:
    begin: int = max(layer.begin for layer in cache.layers)
    return begin
