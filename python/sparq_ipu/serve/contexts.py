# SPDX-License-Identifier: Apache-2.0
"""A model and the contexts of all requests: forward passes of a piece of a prompt, or of the next token of
many texts. Not for several threads."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Iterator, Sequence

import torch
from transformers import PreTrainedModel

from sparq_ipu.serve.places import Places
from sparq_ipu.serve.products import FixedRows
from sparq_ipu.transformers.cache.sparq_cache import PreparedCache
from sparq_ipu.transformers.decoder.weights import piece_rows
from sparq_ipu.transformers.integration import decoding
from sparq_ipu.transformers.supported import LayerKinds, same_rotary_until, text_config
from sparq_reference import checks

#: rows of one product in a step, by dtype: one of so many takes about as long as one of a single row
STEP_ROWS = {torch.float32: 8}
_USUAL_STEP_ROWS = 32
#: most rows of a step that drafts add to
MOST_ROWS = 32


class Contexts:
    """Texts in places of their own.

    Args:
        model: enabled by `sparq_ipu.transformers.enable` or `enable_dense`, with the CPU kernels.
        n_places: texts at a time.
        context: most tokens of each.

    Raises:
        ValueError: another device than "cpu", no memory for the cache.
    """

    def __init__(self, model: PreTrainedModel, n_places: int, context: int):
        op = "serve"
        hooks = decoding(op, model)
        options = {name: value for name, value in hooks.cache_options.items() if name != "capacity"}
        if options["device"] != "cpu":
            checks.fail(op, "device", "be 'cpu', which serves some texts of a cache", repr(options["device"]))
        takes = inspect.signature(model.forward).parameters
        for name in ("position_ids", "logits_to_keep"):
            if name not in takes:
                checks.fail(op, "model", f"take {name}", type(model).__name__)
        self.n_places = checks.check_integer(op, "places", n_places, 1, 1024)
        config = text_config(model)
        self.context = checks.check_integer(op, "context", context, 1, same_rotary_until(config))
        self._model = model
        #: pieces of prompts begin at multiples of it
        self.piece_rows = piece_rows(model)
        self._products = FixedRows(model)
        self._step_rows = STEP_ROWS.get(model.dtype, _USUAL_STEP_ROWS)
        windows = LayerKinds.of(config).windows
        #: what the places hold
        self.cache = Places(hooks.settings, n_places, context, options, hooks.prompt_blocks, windows)
        self.touch(0)  # makes the cache, or fails because there is no room

    def touch(self, place: int) -> None:
        """Make a step in an empty place. The system then gives the memory where its tokens begin, in huge
        pages: that takes up to half a second, which the first request should not wait for."""
        self.step([place], [0], [0])
        self.cache.keep([place], [0])

    def close(self) -> None:
        """The model is as it was."""
        self._products.undo()

    def read(
        self,
        places: Sequence[int],
        pieces: Sequence[Sequence[int]],
        held: Sequence[int],
        between: Callable[[], None] | None = None,
        of_all: bool = False,
    ) -> torch.Tensor:
        """The next tokens of some prompts, read with dense attention.

        Args:
            places: of the prompts. pieces: their tokens.
            held: tokens that each place holds, a multiple of `piece_rows`.
            between: called in each layer; it may make passes of other places.
            of_all: return the logits after each token.

        Returns:
            Logits (len(places), vocabulary) float32 after the last token of each piece, or
            (tokens, vocabulary).
        """
        row: list[int] = []
        positions: list[int] = []
        inside = []
        for piece, begin in zip(pieces, held):
            inside.append((len(row), len(piece)))
            row += [*piece, *[0] * (-len(piece) % self.piece_rows)]
            positions += range(begin, begin + len(row) - len(positions))
        cache = self.cache.tokens(places, inside, between=between)
        kept = [i for first, n in inside for i in range(first if of_all else first + n - 1, first + n)]
        with self._rows(self.piece_rows):
            return self._forward([row], torch.tensor([positions]), cache, kept)[0]

    def step(self, places: Sequence[int], tokens: Sequence[int], held: Sequence[int]) -> torch.Tensor:
        """The next tokens of some texts.

        Args:
            places: of the tokens. A text with several tokens comes several times, after the earlier tokens
                of all others.
            held: tokens before each.

        Returns:
            Logits (len(places), vocabulary) float32 after each token: the same whatever else is in the step.
        """
        cache = self.cache.tokens(places)
        with self._rows(self._step_rows):
            return self._forward([[token] for token in tokens], torch.tensor(held)[:, None], cache)[:, 0]

    @contextlib.contextmanager
    def _rows(self, n_rows: int) -> Iterator[None]:
        """Meanwhile products have this number of rows."""
        before, self._products.n_rows = self._products.n_rows, n_rows
        try:
            yield
        finally:
            self._products.n_rows = before

    def _forward(
        self, tokens: Any, positions: torch.Tensor, cache: PreparedCache, only: list[int] | None = None
    ) -> torch.Tensor:
        """Logits (n texts, n_tokens, vocabulary) of each token, or `only` of some of each text."""
        kept = torch.arange(positions.shape[1]) if only is None else torch.tensor(only)
        with torch.inference_mode():
            passed: Any = dict(position_ids=positions, cache=cache, use_cache=True, logits_to_keep=kept)
            logits: torch.Tensor = self._model(torch.tensor(tokens), **passed).logits
            return logits.float()
