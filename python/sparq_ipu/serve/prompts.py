# SPDX-License-Identifier: Apache-2.0
"""From the fields of a request to the arguments of the engine: tokens, settings, stops."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any, Callable, Sequence

import numpy as np

from sparq_ipu.serve.engine import Event, Request
from sparq_ipu.serve.sampling import Sampling
from sparq_ipu.serve.schemas import ChatRequest, CompletionRequest, Invalid
from sparq_ipu.transformers.generation.chats import chat_tokens

#: most tokens of a completion by default, as in OpenAI's API
_USUAL_TOKENS = 16
#: most characters of a text for each token of the context; a longer text is refused before it is tokenised
CHARACTERS_PER_TOKEN = 64


@dataclasses.dataclass
class Prompts:
    """Facts about the model that all requests need.

    Args:
        tokenizer: of transformers.
        context: most tokens of a prompt and its answer.
        vocabulary: tokens that there are.
        stops: tokens that end a text. chat_stops: tokens that end an answer to messages.
        is_greedy: every answer must be: of a server that is lossless.
        parses_special: special tokens that a message spells out are such, not text.
    """

    tokenizer: Any
    context: int
    vocabulary: int
    stops: Sequence[int] = ()
    chat_stops: Sequence[int] = ()
    is_greedy: bool = False
    parses_special: bool = False

    def of_completion(self, said: CompletionRequest) -> list[list[int]]:
        """Tokens of each prompt.

        Raises:
            Invalid: none, or too long a one.
        """
        if not said.prompts:
            raise Invalid("prompt must not be an empty list", "prompt")
        prompts = [self._tokens(p, "prompt") if isinstance(p, str) else p for p in said.prompts]
        for tokens in prompts:
            self._check(tokens, said.max_tokens, "prompt")
        return prompts

    def of_chat(self, said: ChatRequest) -> list[list[int]]:
        """Tokens of the conversation, as the model's template has it. Raises: Invalid, as above."""
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise Invalid("the model has no template for chats; use /v1/completions", "messages")
        if len(said.messages) > self.context:
            raise Invalid(f"messages must be at most {self.context}, got {len(said.messages)}", "messages")
        messages = [message.for_template() for message in said.messages]
        self._check_length(sum(len(message["content"]) for message in messages), "messages")
        try:
            tokens = chat_tokens(self.tokenizer, messages, self.parses_special)
        except ValueError as error:
            raise Invalid(str(error), "messages") from None
        self._check(tokens, said.max_completion_tokens or said.max_tokens, "messages")
        return [tokens]

    def _tokens(self, text: str, param: str) -> list[int]:
        self._check_length(len(text), param)
        tokens: list[int] = self.tokenizer(text).input_ids
        return tokens

    def _check_length(self, n_characters: int, param: str) -> None:
        most = CHARACTERS_PER_TOKEN * self.context
        if n_characters > most:
            message = f"{param} must have at most {most} characters, got {n_characters}"
            raise Invalid(message, param, "context_length_exceeded")

    def _check(self, tokens: Sequence[int], max_new: int | None, param: str) -> None:
        if not tokens:
            raise Invalid(f"{param} must have at least one token, got none", param)
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
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
        for prompt in prompts:
            tokens = np.array(prompt, np.int64)
            room = self.context - len(tokens)
            for choice in range(said.n or 1):
                top_p = 1.0 if said.top_p is None else said.top_p
                made.append(
                    Request(
                        tokens,
                        min(room if limit is None else limit, room),
                        Sampling(temperature, top_p, seed + choice, n_top),
                        emit(len(made)),
                        said.stops,
                        self.chat_stops if is_chat else self.stops,
                    )
                )
        return made
