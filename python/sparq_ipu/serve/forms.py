# SPDX-License-Identifier: Apache-2.0
"""Answers in a given form: which tokens may come next, by llguidance."""

from __future__ import annotations

import concurrent.futures
import copy
import json
from typing import Any

import numpy as np

from sparq_ipu.serve.schemas import ChatRequest, Invalid
from sparq_ipu.serve.tools import Style, grammar, style_of

#: one line, with the spaces that models write: blanks without end are no answer
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: keywords that may demand several patterns of one text: 30 of these take hours
_JOINS = ("allOf", "anyOf", "oneOf", "$ref")
_MOST_PATTERNS = 12
#: forms that are kept
_MOST_KNOWN = 32


def closed(schema: Any) -> Any:
    """A JSON schema whose objects have only the properties that it names, where it does not decide that: a
    model that may always add one more seldom ends."""
    if not isinstance(schema, dict):
        return schema
    made, named = dict(schema), schema.get("properties")
    if isinstance(named, dict):
        if any(key in made for key in ("anyOf", "oneOf", "$ref")):
            return schema  # together they decide
        decided = ("additionalProperties", "patternProperties", "minProperties")
        if not any(key in made for key in decided) and set(map(str, made.get("required", ()))) <= set(named):
            made["additionalProperties"] = False
    for key, part in made.items():
        if key in ("properties", "$defs", "definitions") and isinstance(part, dict):
            made[key] = {name: closed(value) for name, value in part.items()}
        elif key in ("anyOf", "oneOf", "prefixItems") and isinstance(part, list):
            made[key] = [closed(value) for value in part]
        elif key in ("items", "additionalProperties"):
            made[key] = closed(part)
    return made


class Form:
    """Of one answer. Masks are computed by a thread while the model computes logits.

    Args:
        matcher: of llguidance. n_tokens: logits that the model gives.
    """

    def __init__(self, matcher: Any, n_tokens: int, pool: concurrent.futures.Executor):
        self._matcher, self._n_tokens, self._pool = matcher, n_tokens, pool
        self._look()

    def _look(self) -> None:
        #: the next tokens, whatever the model gives
        self.forced: list[int] = self._matcher.compute_ff_tokens()
        self._matcher.consume_tokens(self.forced)
        self._is_stopped = self._matcher.is_stopped()
        #: what may come behind those
        self._next = self._pool.submit(self._mask)

    def _mask(self) -> np.ndarray:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise RuntimeError("the grammar has no next token")
        return np.flatnonzero(np.unpackbits(bits, count=self._n_tokens, bitorder="little"))

    def copy(self) -> Form:
        """For another answer: schemas are compiled once."""
        concurrent.futures.wait([self._next])
        made = copy.copy(self)
        made._matcher, made.forced = self._matcher.deep_copy(), list(self.forced)
        return made

    @property
    def is_complete(self) -> bool:
        """Nothing can follow."""
        return not self.forced and self._is_stopped

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, ascending."""
        return np.array(self.forced[:1]) if self.forced else self._next.result()

    def take(self, token: int) -> None:
        """The next token is this one."""
        if self.forced:
            del self.forced[0]
        elif self._matcher.consume_token(token):
            self._look()
        else:
            raise RuntimeError("the grammar does not allow a token")


class Forms:
    """Makes the forms of requests.

    Args:
        tokenizer: of transformers. n_tokens: logits that the model gives.
        ends: tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, n_tokens: int, ends: list[int]):
        self._tokenizer, self._n_tokens, self._ends = tokenizer, n_tokens, ends
        self._style = style_of(str(getattr(tokenizer, "chat_template", "")))
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "sparq-ipu-forms")
        self._made: Any = None
        #: of the latest requests, which often have the same schemas or tools
        self._known: dict[str, Form] = {}

    def style(self, said: ChatRequest) -> Style | None:
        """How calls are written in the answers to a request; None: there are none."""
        if not said.calls:
            return None
        if self._style is None:
            raise Invalid("tools must be known to the model's chat template, or their form to us", "tools")
        return self._style

    def of(self, said: ChatRequest) -> Form | None:
        """The form of answers to a request, which each take a copy; None: any text."""
        style, answer = self.style(said), said.answer_schema
        if style is None and answer is None:
            return None
        key = json.dumps([answer, said.calls, said.needs_call, said.parallel_tool_calls])
        if key not in self._known:
            if len(self._known) == _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = self._compiled(said, style, answer)
        return self._known[key]

    def _compiled(self, said: ChatRequest, style: Style | None, answer: Any) -> Form:
        param = "response_format" if answer is not None else "tools"
        self._load(param)
        if answer is not None:
            answer = self._checked(answer, "response_format.json_schema.schema", "response_format")
        tools = {
            name: self._checked(schema, f"tools: parameters of {name}", "tools")
            for name, schema in said.calls.items()
        }
        rules = grammar(
            style, tools, answer, said.needs_call, said.parallel_tool_calls is False, self._special
        )
        form = Form(self._matcher(rules, param, param), self._n_tokens, self._pool)
        try:
            form._next.result()
        except RuntimeError:
            raise Invalid(f"{param} must allow an answer", param) from None
        return form

    def _special(self, text: str) -> int | None:
        token = self._tokenizer.convert_tokens_to_ids(text)
        is_known = token is not None and self._tokenizer.convert_ids_to_tokens(token) == text
        return token if is_known and self._made.is_special_token(token) else None

    def _checked(self, schema: Any, name: str, param: str) -> Any:
        text = json.dumps(schema)
        if text.count('"pattern"') > _MOST_PATTERNS and any(f'"{key}"' in text for key in _JOINS):
            rule = f"must have at most {_MOST_PATTERNS} patterns with {', '.join(_JOINS)}"
            raise Invalid(f"{name} {rule}", param)
        made = {**(schema if '"allOf"' in text else closed(schema)), "x-guidance": _SPACES}
        from llguidance import LLMatcher

        try:
            rules = LLMatcher.grammar_from_json_schema(made)
        except ValueError as error:  # of a number without end, say
            raise Invalid(f"{name}: {str(error)[:100]}", param) from None
        self._matcher(rules, name, param)
        return made

    def _matcher(self, rules: str, name: str, param: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._made, rules, log_level=0, limits=limits)
        if matcher.is_error():
            raise Invalid(f"{name}: {matcher.get_error()[:300]}", param)
        return matcher

    def _load(self, param: str) -> None:
        if self._made is None:
            try:
                import llguidance.hf
            except ImportError:
                raise Invalid(f"{param} needs llguidance, which the server does not have", param) from None
            try:
                self._made = llguidance.hf.from_tokenizer(self._tokenizer, self._n_tokens, self._ends)
            except Exception as error:  # of a tokenizer that is not a fast one, say
                kind = type(error).__name__
                raise Invalid(f"{param} is not supported for the model's tokenizer ({kind})", param) from None
