# SPDX-License-Identifier: Apache-2.0
"""From what a request says to what the engine takes: tokens, settings, stops."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any, Callable, Sequence

import numpy as np

from sparq_ipu.serve.engine import Event, Request
from sparq_ipu.serve.sampling import Sampling
from sparq_ipu.serve.schemas import ChatRequest, CompletionRequest

#: a completion has so many tokens where nothing is said, as in OpenAI's API
_USUAL_TOKENS = 16


class Invalid(ValueError):
    """A request that can not be: the message, the field, and a code of OpenAI's."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param, self.code = param, code


@dataclasses.dataclass
class Prompts:
    """What all requests need to know of the model.

    Args:
        tokenizer: of transformers.
        context: most tokens of a prompt and its answer.
        vocabulary: tokens that there are.
        stops: tokens that end a text. chat_stops: tokens that end an answer to messages.
        is_greedy: every answer must be: of a server that is lossless.
    """

    tokenizer: Any
    context: int
    vocabulary: int
    stops: Sequence[int] = ()
    chat_stops: Sequence[int] = ()
    is_greedy: bool = False

    def of_completion(self, said: CompletionRequest) -> list[list[int]]:
        """Tokens of each prompt.

        Raises:
            Invalid: none, or too long a one.
        """
        prompts = [self._tokens(p, "prompt") if isinstance(p, str) else p for p in said.prompts]
        if not prompts:
            raise Invalid("prompt must not be an empty list", "prompt")
        for tokens in prompts:
            self._check(tokens, said.max_tokens, "prompt")
        return prompts

    def of_chat(self, said: ChatRequest) -> list[list[int]]:
        """Tokens of the conversation, as the model's template has it. Raises: Invalid, as above."""
        messages = [{"role": _role(m.role), "content": m.text} for m in said.messages]
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise Invalid("the model has no template for chats; use /v1/completions", "messages")
        try:
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # jinja2: what the template says of the order of roles
            raise Invalid(
                f"messages must fit the model's template ({type(error).__name__})", "messages"
            ) from None
        tokens = self._tokens(text, "messages")
        self._check(tokens, said.max_completion_tokens or said.max_tokens, "messages")
        return [tokens]

    def _tokens(self, text: str, param: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid(f"{param} must be text, got half a character", param) from None
        tokens: list[int] = self.tokenizer(text).input_ids
        return tokens

    def _check(self, tokens: Sequence[int], max_new: int | None, param: str) -> None:
        if not tokens:
            raise Invalid(f"{param} must have at least one token, got none", param)
        if not all(0 <= token < self.vocabulary for token in tokens):
            raise Invalid(f"{param} must have tokens in [0, {self.vocabulary})", param)
        n = len(tokens) + (max_new or 1)
        if n > self.context:
            message = (
                f"the prompt and the answer must have at most {self.context} tokens, "
                f"got {len(tokens)} and {max_new or 1}"
            )
            raise Invalid(message, param, "context_length_exceeded")

    def requests(
        self, said: Any, prompts: Sequence[Sequence[int]], emit: Callable[[int], Callable[[Event], None]]
    ) -> list[Request]:
        """One for each choice: `n` for each prompt, in order.

        Args:
            emit: of a choice's index, what takes its events.

        Raises:
            Invalid: not greedy, where all must be.
        """
        is_chat = isinstance(said, ChatRequest)
        temperature = said.temperature
        if temperature is None:
            temperature = 0.0 if self.is_greedy else 1.0
        if self.is_greedy and temperature > 0:
            raise Invalid("temperature must be 0: this server drafts and checks tokens", "temperature")
        if isinstance(said, ChatRequest):
            n_top = (said.top_logprobs or 0) if said.logprobs else None
            limit = said.max_completion_tokens or said.max_tokens
        else:
            n_top, limit = said.logprobs, said.max_tokens or _USUAL_TOKENS
        seed = secrets.randbits(63) if said.seed is None else said.seed % (1 << 63)
        made: list[Request] = []
        for tokens in prompts:
            room = self.context - len(tokens)
            for choice in range(said.n or 1):
                top_p = 1.0 if said.top_p is None else said.top_p
                made.append(
                    Request(
                        np.array(tokens, np.int64),
                        min(room if limit is None else limit, room),
                        Sampling(temperature, top_p, seed + choice, n_top),
                        emit(len(made)),
                        said.stops,
                        self.chat_stops if is_chat else self.stops,
                    )
                )
        return made


def _role(role: str) -> str:
    return "system" if role == "developer" else role  # its newer name
