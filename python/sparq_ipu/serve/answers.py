# SPDX-License-Identifier: Apache-2.0
"""Answers as OpenAI's API has them: whole, and in pieces of a stream."""

from __future__ import annotations

import collections
import json
import time
import uuid
from typing import Any, Callable, Sequence

from sparq_ipu.serve.requests import Done, Text
from sparq_ipu.serve.sampling import LogProbability
from sparq_ipu.serve.text import TextStream, TokenNames
from sparq_ipu.serve.tools import Calls


def error(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """The body of an answer that is none."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage(ends: Sequence[Done], n_prompts: int) -> dict[str, Any]:
    """Tokens of a request. `ends`: of all choices, the same number for each prompt, in order."""
    each = max(len(ends) // max(n_prompts, 1), 1)
    n_prompt = sum(end.n_prompt for end in ends[::each])
    n_held = sum(end.n_held for end in ends[::each])
    n_new = sum(end.n_new for end in ends)
    n_accepted = sum(end.n_accepted for end in ends)
    n_rejected = sum(end.n_drafted for end in ends) - n_accepted
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "prompt_tokens_details": {"cached_tokens": n_held},
        "completion_tokens_details": {
            "accepted_prediction_tokens": n_accepted,
            "rejected_prediction_tokens": n_rejected,
        },
    }


class Answer:
    """One request's: its name, and the form of its parts, which are objects of JSON.

    Args:
        model: the name of the model. names: of its tokens.
        is_chat: of chat completions.
        has_log_probabilities: they were asked for.
        calls: makes a parser of the calls in a text; None: there are none.
    """

    #: ends a stream
    last = b"data: [DONE]\n\n"

    def __init__(
        self,
        model: str,
        names: TokenNames,
        is_chat: bool,
        has_log_probabilities: bool,
        calls: Callable[[], Calls] | None = None,
    ):
        self._names = names
        self._is_chat = is_chat
        self._has_log_probabilities = has_log_probabilities
        self._model = model
        self._id = ("chatcmpl-" if is_chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        #: of each choice, its text so far: all that its tokens are, and what was given of it
        self._streams: dict[int, TextStream] = {}
        self._n_decoded: dict[int, int] = {}
        self._n_given: dict[int, int] = {}
        self._calls: collections.defaultdict[int, Calls] = collections.defaultdict(calls)

    def _envelope(self, choices: list[dict[str, Any]], is_chunk: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self._is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def whole(self, texts: Sequence[Text], ends: Sequence[Done], n_prompts: int) -> dict[str, Any]:
        """All choices at once."""
        choices = []
        for index, (text, end) in enumerate(zip(texts, ends)):
            choice: dict[str, Any] = {"index": index}
            if self._is_chat:
                choice["message"] = self._message(index, text.text)
            else:
                choice["text"] = text.text
            choice["finish_reason"] = self._reason(index, end)
            choice["logprobs"] = self._log_probabilities(index, text)
            choices.append(choice)
        return {**self._envelope(choices, False), "usage": usage(ends, n_prompts)}

    def sent(self, part: dict[str, Any]) -> bytes:
        """A part as a server-sent event."""
        return b"data: " + json.dumps(part).encode() + b"\n\n"

    def first(self, index: int) -> list[dict[str, Any]]:
        """The first parts of a stream, for each choice."""
        if not self._is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [self._envelope([{"index": index, "delta": delta, "finish_reason": None}], True)]

    def part(self, index: int, text: Text) -> list[dict[str, Any]]:
        """More of a choice."""
        choice: dict[str, Any] = {"index": index, "finish_reason": None}
        choice.update({"delta": self._delta(index, text.text)} if self._is_chat else {"text": text.text})
        choice["logprobs"] = self._log_probabilities(index, text)
        return [self._envelope([choice], True)]

    def end(self, index: int, end: Done) -> list[dict[str, Any]]:
        """The end of a choice."""
        choice: dict[str, Any] = {"index": index, "finish_reason": self._reason(index, end), "logprobs": None}
        choice.update({"delta": self._delta(index, "", True)} if self._is_chat else {"text": ""})
        return [self._envelope([choice], True)]

    def used(self, ends: Sequence[Done], n_prompts: int) -> list[dict[str, Any]]:
        """The last part of a stream, where it was asked for."""
        return [{**self._envelope([], True), "usage": usage(ends, n_prompts)}]

    def _delta(self, index: int, text: str, is_last: bool = False) -> dict[str, Any]:
        """What more text adds to a message."""
        if self._calls.default_factory is None:
            return {"content": text} if text or not is_last else {}
        return self._calls[index].push(text, is_last)

    def _message(self, index: int, text: str) -> dict[str, Any]:
        """A whole message; its calls have no `index`, which only parts of a stream need."""
        made = self._delta(index, text, True)
        for call in made.get("tool_calls", ()):
            del call["index"]
        return {"role": "assistant", "content": None if "tool_calls" in made else "", **made}

    def _reason(self, index: int, end: Done) -> str:
        has_calls = index in self._calls and self._calls[index].n and end.reason == "stop"
        return "tool_calls" if has_calls else end.reason

    def _log_probabilities(self, index: int, text: Text) -> dict[str, Any] | None:
        if not self._has_log_probabilities:
            return None
        if self._is_chat:
            content = []
            for of_token in text.log_probabilities:
                top = [self._entry(token, value) for token, value in of_token.top]
                content.append({**self._entry(of_token.token, of_token.value), "top_logprobs": top})
            return {"content": content, "refusal": None}
        stream = self._streams.setdefault(index, TextStream(self._names.tokenizer))
        given = self._n_given[index] = self._n_given.get(index, 0) + len(text.text)
        offsets = []
        for of_token in text.log_probabilities:
            decoded = self._n_decoded.get(index, 0)
            offsets.append(min(decoded, given))  # tokens of a stop string are not in the text
            self._n_decoded[index] = decoded + len(stream.push(of_token.token))
        return {
            "tokens": [self._name(of_token.token) for of_token in text.log_probabilities],
            "token_logprobs": [of_token.value for of_token in text.log_probabilities],
            "top_logprobs": [self._top(of_token) for of_token in text.log_probabilities],
            "text_offset": offsets,
        }

    def _top(self, of_token: LogProbability) -> dict[str, float] | None:
        """The token itself and the likeliest, by their names; of two with one name, the latter has its
        number."""
        if of_token.value is None:
            return None
        top = {self._name(of_token.token): of_token.value}
        for token, value in of_token.top:
            name = self._name(token)
            if token != of_token.token:
                top[name if name not in top else f"token_id:{token}"] = value
        return top

    def _name(self, token: int) -> str:
        name, content = self._names.of(token)
        return f"bytes:{name}" if name.encode() != content else name

    def _entry(self, token: int, value: float | None) -> dict[str, Any]:
        name, content = self._names.of(token)
        return {"token": name, "logprob": value, "bytes": list(content)}
