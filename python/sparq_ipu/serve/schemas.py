# SPDX-License-Identifier: Apache-2.0
"""Fields of a request over HTTP: OpenAI's completions and chat completions.

A field that would change the answer and that this server does not support is refused, unless its value
changes nothing. An unknown field is refused.
"""

# ruff: noqa: UP006, pydantic reads annotations, and Python 3.8 has no list[int]

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Dict, List, Optional, Type, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

#: a number as large as any that a client sends where it wants no limit
_MOST = 1 << 53

#: fields that change nothing here
_HARMLESS = frozenset(
    "user metadata store safety_identifier prompt_cache_key service_tier verbosity cache_prompt".split()
)
#: fields that take only the value that holds anyway
_FIXED: dict[str, Any] = {
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "echo": (False,),
    "best_of": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "typical_p": (1,),
}

#: lists and objects of a body: while pydantic makes them, no other thread runs
_MOST_CONTAINERS = 10_000
#: that a request offers
_MOST_TOOLS = 128
_NO_PARAMETERS: Dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

_Kind = TypeVar("_Kind", bound="_Strict")


class Invalid(ValueError):
    """A request that cannot be served: the message, the field, a code of OpenAI's, and the HTTP status."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


def _n_containers(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _is_list_of(kind: type, value: Any) -> bool:
    # Written out: pydantic makes an error for each element, and for each kind of a union.
    return isinstance(value, list) and all(type(part) is kind for part in value)


def _is_one_of(value: Any, fixed: tuple[Any, ...]) -> bool:
    """Whether a value is one of these, where true is not 1 and false is not 0."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in fixed)


def _is_bias(value: Any) -> bool:
    # A token has at most 9 digits: no text is turned into a huge number.
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,9}", token) and type(bias) in (int, float) and abs(bias) <= 100
        for token, bias in value.items()
    )


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    #: what clients call a field that has another name here, the longest first
    renamed: ClassVar[Dict[str, str]] = {}

    @classmethod
    def read(cls: Type[_Kind], body: bytes) -> _Kind:
        """The request that a body contains. Errors name the field, and nothing of what it contains."""
        if (
            _n_containers(body) > _MOST_CONTAINERS
            and _n_containers(_STRING.sub(b"", body)) > _MOST_CONTAINERS
        ):
            raise Invalid(f"the body must have at most {_MOST_CONTAINERS} lists and objects")
        try:
            return cls.model_validate_json(body)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
        reason = first.get("ctx", {}).get("error")
        if isinstance(reason, Invalid) and reason.param:
            raise reason
        if first["type"] == "json_invalid":
            raise Invalid("the body must be JSON")
        place = [str(part)[:64] for part in first["loc"]]
        where = ".".join(place) or "the body"
        raise Invalid(f"{where}: {reason or first['msg']}", place[0] if place else None)


class _Sampled(_Strict):
    """Fields of both kinds of requests."""

    model: Optional[str] = None
    temperature: Optional[float] = Field(None, ge=0, le=2)
    top_p: Optional[float] = Field(None, gt=0, le=1)
    seed: Optional[int] = Field(None, ge=-(1 << 63), lt=1 << 63)
    n: Optional[int] = Field(None, ge=1, le=32)
    top_k: Optional[int] = Field(None, ge=-1, le=_MOST)
    min_p: Optional[float] = Field(None, ge=0, le=1)
    presence_penalty: Optional[float] = Field(None, ge=-2, le=2)
    frequency_penalty: Optional[float] = Field(None, ge=-2, le=2)
    repetition_penalty: Optional[float] = Field(None, ge=0.01, le=100)
    logit_bias: Any = None
    max_tokens: Optional[int] = Field(None, ge=1, le=_MOST)
    stop: Any = None
    stream: Optional[bool] = None
    stream_options: Optional[Dict[str, Any]] = None

    @model_validator(mode="after")
    def _no_others(self) -> _Sampled:
        for name, value in (self.model_extra or {}).items():
            if value is None or name in _HARMLESS:
                continue
            if name not in _FIXED:
                raise Invalid(f"{name[:64]} is not a field of this request", name[:64])
            if not _is_one_of(value, _FIXED[name]):
                raise Invalid(f"{name} is not supported by this server", name)
        if not _is_list_of(str, self.stops):
            raise Invalid("stop must be a string or a list of strings", "stop")
        if len(self.stops) > 16:
            raise Invalid(f"stop must have at most 16 strings, got {len(self.stops)}", "stop")
        if not _is_bias({} if self.logit_bias is None else self.logit_bias):
            raise Invalid("logit_bias must map tokens to numbers in [-100, 100]", "logit_bias")
        if self.stream_options is not None:
            if not self.stream:
                raise Invalid("stream_options must only be set with stream", "stream_options")
            if not isinstance(self.stream_options.get("include_usage") or False, bool):
                raise Invalid("stream_options.include_usage must be a boolean", "stream_options")
        return self

    @property
    def prompts(self) -> List[Any]:
        """What answers are generated to."""
        return [None]

    @property
    def stops(self) -> List[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else [] if self.stop is None else self.stop

    @property
    def with_usage(self) -> bool:
        """A stream ends with what it used."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionRequest(_Sampled):
    """POST /v1/completions."""

    prompt: Any
    max_tokens: Optional[int] = Field(None, ge=0, le=_MOST)
    logprobs: Optional[int] = Field(None, ge=0, le=20)
    echo: Optional[bool] = None

    @field_validator("prompt")
    @classmethod
    def _of_one_kind(cls, prompt: Any) -> Any:
        parts = prompt if _is_list_of(list, prompt) else [prompt]
        if isinstance(prompt, str) or _is_list_of(str, prompt) or all(_is_list_of(int, p) for p in parts):
            return prompt
        raise ValueError("must be a text, a list of texts, a list of tokens or a list of such lists")

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise Invalid("max_tokens must be at least 1 without echo, got 0", "max_tokens")
        return self

    @property
    def prompts(self) -> List[Any]:
        """Each a text, or a list of tokens."""
        is_one = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        return [self.prompt] if is_one else list(self.prompt)


class Message(_Strict):
    """One of a conversation."""

    role: str
    content: Any = None
    tool_calls: Any = None
    tool_call_id: Optional[str] = None

    @model_validator(mode="after")
    def _text_only(self) -> Message:
        if self.role not in ("system", "developer", "user", "assistant", "tool"):
            raise ValueError("role must be system, developer, user, assistant or tool")
        for name, value in (self.model_extra or {}).items():
            if value and name not in ("name", "annotations"):
                raise ValueError(f"{name[:64]} of a message is not supported by this server")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls must be an assistant's")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id must be set in messages of tools, and only there")
        if self.content in (None, []) and not self.tool_calls:
            raise ValueError("content must be text, unless an assistant has tool_calls")
        if not (self.content is None or isinstance(self.content, str) or _is_list_of(dict, self.content)):
            raise ValueError("content must be text")
        for part in self._parts:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ValueError("content must be text")
        if not _is_list_of(dict, self.tool_calls or []):
            raise ValueError("tool_calls must be a list of objects")
        for call in self.tool_calls or []:
            function = call.get("function")
            words = function if isinstance(function, dict) else {}
            if not all(isinstance(words.get(name), str) for name in ("name", "arguments")):
                raise ValueError("tool_calls must be of functions, with name and arguments as text")
        return self

    @property
    def _parts(self) -> List[Dict[str, Any]]:
        return (
            [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content or []
        )

    def for_template(self) -> Dict[str, Any]:
        """As a model's template for chats takes it."""
        role = "system" if self.role == "developer" else self.role  # its newer name
        made: Dict[str, Any] = {"role": role, "content": "".join(part["text"] for part in self._parts)}
        if self.tool_call_id is not None:
            made["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            made["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _arguments(call["function"])}}
                for call in self.tool_calls
            ]
        return made


def _check_function(tool: Dict[str, Any], name: str) -> None:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise Invalid(f"{name} must be an object with type function, and function", "tools")
    if not re.fullmatch("[a-zA-Z0-9_.-]{1,64}", str(function.get("name"))):
        raise Invalid(f"{name}: name must be at most 64 letters, digits and _.-", "tools")
    parameters = function.get("parameters")
    if parameters and not (isinstance(parameters, dict) and parameters.get("type") == "object"):
        raise Invalid(f"{name}: parameters must be a JSON schema of type object", "tools")


def _arguments(function: Dict[str, Any]) -> Any:
    """Of a call: templates write objects as JSON, so text of JSON would be quoted twice."""
    try:
        return json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return function["arguments"]


class ChatRequest(_Sampled):
    """POST /v1/chat/completions."""

    messages: List[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: Optional[int] = Field(None, ge=1, le=_MOST)
    logprobs: Optional[bool] = None
    top_logprobs: Optional[int] = Field(None, ge=0, le=20)
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Optional[bool] = None
    response_format: Any = None
    chat_template_kwargs: Optional[Dict[str, Any]] = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise Invalid("top_logprobs needs logprobs", "top_logprobs")
        if not _is_list_of(dict, self.tools or []) or len(self.tools or []) > _MOST_TOOLS:
            raise Invalid(f"tools must be a list of at most {_MOST_TOOLS} objects", "tools")
        for at, tool in enumerate(self.tools or []):
            _check_function(tool, f"tools[{at}]")
        names = [tool["function"]["name"] for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise Invalid("tools must have different names", "tools")
        if self.tool_choice not in (None, "none", "auto") and self._named not in ("", *names):
            raise Invalid("tool_choice must be none, auto, required or one of tools", "tool_choice")
        if self.tool_choice == "required" and not names:
            raise Invalid("tool_choice must not be required without tools", "tool_choice")
        self.answer_schema  # noqa: B018, raises an error
        return self

    @property
    def _named(self) -> Any:
        """The tool that must be called; empty: any."""
        if self.tool_choice == "required":
            return ""
        choice = self.tool_choice if isinstance(self.tool_choice, dict) else {}
        function = choice.get("function") if choice.get("type") == "function" else None
        return function.get("name") if isinstance(function, dict) else None

    @property
    def needs_call(self) -> bool:
        """The answer must be a call."""
        return self.tool_choice not in (None, "none", "auto")

    @property
    def calls(self) -> Dict[str, Any]:
        """Of each tool that may be called, the schema of its arguments."""
        named = self._named if self.needs_call else ""
        return {
            tool["function"]["name"]: tool["function"].get("parameters") or _NO_PARAMETERS
            for tool in self.tools or []
            if self.tool_choice != "none" and named in ("", tool["function"]["name"])
        }

    @property
    def answer_schema(self) -> Optional[Dict[str, Any]]:
        """The JSON schema of an answer; None: it is any text."""
        form = {"type": "text"} if self.response_format is None else self.response_format
        kind = form.get("type") if isinstance(form, dict) else None
        if kind == "text":
            return None
        if kind == "json_object":
            return {"type": "object"}
        if kind != "json_schema":
            rule = "type text, json_object or json_schema"
            raise Invalid(f"response_format must be an object with {rule}", "response_format")
        of_form = form.get("json_schema")
        schema = of_form.get("schema") if isinstance(of_form, dict) else None
        if not isinstance(schema, dict):
            raise Invalid("response_format.json_schema.schema must be an object", "response_format")
        return schema


class TokenizeRequest(_Sampled):
    """POST /tokenize: a text, or messages."""

    prompt: Optional[str] = None
    messages: Optional[List[Message]] = Field(None, min_length=1, fail_fast=True)
    add_special_tokens: Optional[bool] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise Invalid("prompt or messages must be given, and not both", "prompt")
        return self
