# SPDX-License-Identifier: Apache-2.0
"""From the fields of a request to the arguments of the engine: tokens, settings, stops."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import secrets
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from sparq_ipu.serve.forms import Forms
from sparq_ipu.serve.requests import Event, Request
from sparq_ipu.serve.sampling import Sampling
from sparq_ipu.serve.schemas import (
    ChatRequest,
    CompletionRequest,
    Invalid,
    Message,
    TokenizeRequest,
)
from sparq_ipu.serve.tools import Calls
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
    """

    tokenizer: Any
    context: int
    vocabulary: int
    stops: Sequence[int] = ()
    chat_stops: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.forms = Forms(self.tokenizer, self.vocabulary, list(self.chat_stops))

    def of_completion(self, said: CompletionRequest) -> list[list[int]]:
        """Tokens of each prompt."""
        if not said.prompts:
            raise Invalid("prompt must not be an empty list", "prompt")
        prompts = [self._tokens(p, "prompt") if isinstance(p, str) else p for p in said.prompts]
        for tokens in prompts:
            self._check(tokens, 1 if said.max_tokens is None else said.max_tokens, "prompt")
        return prompts

    def of_chat(self, said: ChatRequest) -> list[list[int]]:
        """Tokens of the conversation, as the model's template has it."""
        self.forms.style(said)
        kwargs = said.chat_template_kwargs or {}
        if set(kwargs) & set(inspect.signature(self.tokenizer.apply_chat_template).parameters):
            raise Invalid("chat_template_kwargs must be variables of the template", "chat_template_kwargs")
        given = {**kwargs, **({"tools": said.tools} if said.calls else {})}
        tokens = self._chat_tokens(said.messages, given)
        self._check(tokens, said.max_completion_tokens or said.max_tokens or 1, "messages")
        return [tokens]

    def calls(self, said: ChatRequest) -> Callable[[], Calls] | None:
        """Makes parsers of the calls in answers; None: there are none."""
        style = self.forms.style(said)
        return None if style is None else functools.partial(Calls, style, said.calls)

    def of_tokenize(self, said: TokenizeRequest) -> dict[str, Any]:
        """The answer to POST /tokenize."""
        if said.messages is not None:
            tokens = self._chat_tokens(said.messages)
        else:
            tokens = self._tokens(said.prompt or "", "prompt", said.add_special_tokens is not False)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": self.context}

    def _chat_tokens(self, said: Sequence[Message], given: dict[str, Any] | None = None) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise Invalid("the model has no template for chats; use /v1/completions", "messages")
        if len(said) > self.context:
            raise Invalid(f"messages must be at most {self.context}, got {len(said)}", "messages")
        messages = [message.for_template() for message in said]
        self._check_length(sum(len(message["content"]) for message in messages), "messages")
        try:
            return chat_tokens(self.tokenizer, messages, given)
        except ValueError as error:
            raise Invalid(str(error), "messages") from None

    def _tokens(self, text: str, param: str, adds_special: bool = True) -> list[int]:
        self._check_length(len(text), param)
        tokens: list[int] = self.tokenizer(text, add_special_tokens=adds_special).input_ids
        return tokens

    def _check_length(self, n_characters: int, param: str) -> None:
        most = CHARACTERS_PER_TOKEN * self.context
        if n_characters > most:
            message = f"{param} must have at most {most} characters, got {n_characters}"
            raise Invalid(message, param, "context_length_exceeded")

    def _check(self, tokens: Sequence[int], max_new: int, param: str) -> None:
        if not tokens:
            raise Invalid(f"{param} must have at least one token, got none", param)
        self._check_tokens(tokens, param)
        if len(tokens) + max_new > self.context:
            message = (
                f"the prompt and the answer must have at most {self.context} tokens, "
                f"got {len(tokens)} and {max_new}"
            )
            raise Invalid(message, param, "context_length_exceeded")

    def _check_tokens(self, tokens: Iterable[int], param: str) -> None:
        if not all(0 <= token < self.vocabulary for token in tokens):
            raise Invalid(f"{param} must have tokens in [0, {self.vocabulary})", param)

    def _sampling(self, said: Any) -> Sampling:
        bias = {int(token): float(value) for token, value in (said.logit_bias or {}).items()}
        self._check_tokens(bias, "logit_bias")
        if isinstance(said, ChatRequest):
            n_top = (said.top_logprobs or 0) if said.logprobs else None
        else:
            n_top = said.logprobs
        return Sampling(
            1.0 if said.temperature is None else said.temperature,
            1.0 if said.top_p is None else said.top_p,
            secrets.randbits(63) if said.seed is None else said.seed % (1 << 63),
            n_top,
            max(said.top_k or 0, 0),
            said.min_p or 0.0,
            said.presence_penalty or 0.0,
            said.frequency_penalty or 0.0,
            said.repetition_penalty or 1.0,
            tuple(bias.items()),
        )

    def requests(
        self, said: Any, prompts: Sequence[Sequence[int]], emit: Callable[[int], Callable[[Event], None]]
    ) -> list[Request]:
        """One for each text: `n` for each prompt, in order.

        Args:
            emit: of a text's index, what takes its events.

        Raises:
            Invalid: a bias of tokens that do not exist.
        """
        sampling = self._sampling(said)
        if isinstance(said, ChatRequest):
            limit, stops, given = said.max_completion_tokens or said.max_tokens, self.chat_stops, [None]
        else:
            limit = _USUAL_TOKENS if said.max_tokens is None else said.max_tokens
            stops, given = self.stops, said.prompts if said.echo else [None] * len(prompts)
        form = self.forms.of(said) if isinstance(said, ChatRequest) else None
        made: list[Request] = []
        for prompt, text in zip(prompts, given):
            tokens = np.array(prompt, np.int64)
            room = self.context - len(tokens)
            echo = self.tokenizer.decode(text) if isinstance(text, list) else text
            for choice in range(said.n or 1):
                made.append(
                    Request(
                        tokens,
                        min(room if limit is None else limit, room),
                        dataclasses.replace(sampling, seed=sampling.seed + choice),
                        emit(len(made)),
                        said.stops,
                        stops,
                        echo,
                        None if form is None else form.copy(),
                    )
                )
        return made
