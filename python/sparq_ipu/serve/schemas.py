# SPDX-License-Identifier: Apache-2.0
"""What a request over HTTP may say: OpenAI's completions and chat completions.

A field that would change the answer and that this server does not have is refused, unless it says what holds
anyway; so is a field that nobody knows.
"""

# ruff: noqa: UP006, pydantic reads annotations, and Python 3.8 has no list[int]

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: fields that change nothing here
_HARMLESS = frozenset(
    {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier", "verbosity"}
)
#: fields that may only say what holds anyway
_FIXED: dict[str, Any] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Sampled(_Strict):
    """What both kinds of requests have."""

    model: Optional[str] = None
    temperature: Optional[float] = Field(None, ge=0, le=2)
    top_p: Optional[float] = Field(None, gt=0, le=1)
    seed: Optional[int] = Field(None, ge=-(1 << 63), lt=1 << 63)
    n: Optional[int] = Field(None, ge=1, le=32)
    max_tokens: Optional[int] = Field(None, ge=1)
    stop: Union[str, List[str], None] = None
    stream: Optional[bool] = None
    stream_options: Optional[Dict[str, Any]] = None

    @model_validator(mode="after")
    def _no_others(self) -> _Sampled:
        for name, value in (self.model_extra or {}).items():
            if value is None or name in _HARMLESS:
                continue
            if name not in _FIXED:
                raise ValueError(f"{name[:64]} is not a field of this request")
            if value not in _FIXED[name]:
                raise ValueError(f"{name} is not supported by this server")
        if len(self.stops) > 16:
            raise ValueError(f"stop must have at most 16 strings, got {len(self.stops)}")
        return self

    @property
    def stops(self) -> List[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def with_usage(self) -> bool:
        """A stream ends with what it used."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionRequest(_Sampled):
    """POST /v1/completions."""

    prompt: Union[str, List[int], List[str], List[List[int]]]
    logprobs: Optional[int] = Field(None, ge=0, le=20)

    @property
    def prompts(self) -> List[Any]:
        """Each a text, or a list of tokens."""
        is_one = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        return [self.prompt] if is_one else list(self.prompt)


class Message(_Strict):
    """One of a conversation."""

    role: str
    content: Union[str, List[Dict[str, Any]]]

    @model_validator(mode="after")
    def _text_only(self) -> Message:
        if self.role not in ("system", "developer", "user", "assistant"):
            raise ValueError("role must be system, developer, user or assistant")
        for name, value in (self.model_extra or {}).items():
            if value and name not in ("name", "annotations"):
                raise ValueError(f"{name[:64]} of a message is not supported by this server")
        if not isinstance(self.content, str):
            for part in self.content:
                if part.get("type") != "text" or not isinstance(part.get("text"), str):
                    raise ValueError("content must be text")
        return self

    @property
    def text(self) -> str:
        """All of its text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part["text"] for part in self.content)


class ChatRequest(_Sampled):
    """POST /v1/chat/completions."""

    messages: List[Message] = Field(min_length=1)
    max_completion_tokens: Optional[int] = Field(None, ge=1)
    logprobs: Optional[bool] = None
    top_logprobs: Optional[int] = Field(None, ge=0, le=20)

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs")
        return self
