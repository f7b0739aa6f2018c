# SPDX-License-Identifier: Apache-2.0
"""Requests of the engine, and the events of their answers."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from typing import Callable, NamedTuple, Sequence, Union

import numpy as np

from sparq_ipu.commands.progress import PromptProgress
from sparq_ipu.drafts import Drafts
from sparq_ipu.kept_prefixes import Rows
from sparq_ipu.serve.forms import Form
from sparq_ipu.serve.prefixes import Place
from sparq_ipu.serve.sampling import LogProbability, Sampler, Sampling


class Text(NamedTuple):
    """More of an answer: text that is certain, and tokens that came since."""

    text: str
    tokens: list[int]
    log_probabilities: list[LogProbability]


class Done(NamedTuple):
    """The end of an answer. reason: "stop" or "length". n_held: tokens of the prompt that were not read
    again. n_drafted, n_accepted: tokens that were drafted from the text, and those that were right."""

    reason: str
    n_prompt: int
    n_held: int
    n_new: int
    n_drafted: int = 0
    n_accepted: int = 0


class Failed(NamedTuple):
    """A request that gets no more. is_refused: because the server ends."""

    message: str
    is_refused: bool = False


Event = Union[Text, Done, Failed]


class Refused(Exception):
    """A request that was not taken. is_closing: the server ends; else too many wait."""

    def __init__(self, message: str, is_closing: bool):
        super().__init__(message)
        self.is_closing = is_closing


@dataclasses.dataclass(eq=False)
class Request:
    """A text to continue.

    Args:
        tokens: (n,) integers, the prompt.
        max_new: most tokens of the answer.
        emit: called with each `Event`, by the engine's thread.
        stops: strings that end the answer. stop_tokens: tokens that do.
        echo: text of the prompt, if it begins the answer; with log-probabilities where these are reported.
        form: which tokens may come next; its special tokens are text of the answer.
    """

    tokens: np.ndarray
    max_new: int
    sampling: Sampling
    emit: Callable[[Event], None]
    stops: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    echo: str | None = None
    form: Form | None = None

    # what follows is the engine's

    def __post_init__(self) -> None:
        self.came = time.perf_counter()
        self.is_cancelled = False
        self.place: Place | None = None
        self.sampler = Sampler(self.sampling, self.tokens)
        #: all of the prompt is read, whatever is held of it
        self.reports_prompt = self.echo is not None and self.sampling.n_top is not None
        #: tokens of the prompt in the place; of those, how many were there before
        self.n_read = self.n_held = 0
        #: rows of the prompt that the disk gives, and the first of them; no more are there
        self.fetch: concurrent.futures.Future[Rows] | None = None
        self.fetched_from = 0
        self.is_fetched = False
        self.progress = PromptProgress(len(self.tokens))
        self.new: list[int] = []
        self.fresh: list[int] = []
        self.log_probabilities: list[LogProbability] = []
        self.last_at = 0.0
        #: from when the answer begins
        self.drafts: Drafts | None = None

    @property
    def n_stored(self) -> int:
        """Tokens in the place: of the answer all but the last."""
        return self.n_read + max(len(self.new) - 1, 0)
