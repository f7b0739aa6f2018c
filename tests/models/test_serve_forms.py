# SPDX-License-Identifier: Apache-2.0
"""Answers in a given form over HTTP: JSON, JSON schemas, calls of tools as several families write them."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from random_schemas import object_of, root_of
from tiny_tools import BODY, FAMILIES, SPECIAL, TOOLS, USER, WEATHER, client_of, openai, tool

from sparq_ipu.serve.contexts import Contexts
from sparq_ipu.serve.engine import Engine
from sparq_ipu.serve.forms import closed
from sparq_ipu.serve.prompts import Prompts
from sparq_ipu.serve.schemas import ChatRequest
from sparq_ipu.serve.tools import Calls, style_of

jsonschema = pytest.importorskip("jsonschema")

#: seconds for random schemas
SECONDS = 20.0
SOON: dict = dict(model="tiny", messages=[USER], max_tokens=600, temperature=1.0)


@pytest.fixture(scope="module")
def client() -> Any:
    with client_of("Hermes") as client:
        yield client


def form_of(schema: Any) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


@pytest.mark.parametrize("most", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_random_schemas(client: Any, most: int) -> None:
    """Each answer is an instance."""
    start, n = time.monotonic(), 0
    while n < most and (n < 5 or most == 500 or time.monotonic() - start < SECONDS):
        schema = root_of(random.Random(n))
        n += 1
        choice = client.chat.completions.create(**SOON, seed=n, response_format=form_of(schema)).choices[0]
        assert choice.finish_reason == "stop", (schema, choice.message.content)
        jsonschema.validate(json.loads(choice.message.content), schema)


def test_any_object(client: Any) -> None:
    how: dict = dict(**SOON, seed=1, response_format={"type": "json_object"}, logit_bias={"92": 20, "66": 9})
    whole = client.chat.completions.create(**how)
    assert isinstance(json.loads(whole.choices[0].message.content), dict)
    parts = list(client.chat.completions.create(**how, stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content and parts[-1].choices[0].finish_reason == "stop"


def joined(parts: list) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls and the reason of a stream."""
    content, calls = "", {}
    for part in parts:
        choice = part.choices[0]
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            name, arguments = calls.get(call.index, ("", ""))
            assert bool(call.id) == bool(call.function.name) == (call.index not in calls)
            calls[call.index] = name + (call.function.name or ""), arguments + call.function.arguments
    return content, [calls[at] for at in sorted(calls)], choice.finish_reason


@pytest.mark.parametrize("n_requests", [6, pytest.param(29, marks=pytest.mark.slow)])  # 8 families: 232
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_tools(family: str, n_requests: int) -> None:
    """Whole and streamed: every call is of a tool, with arguments of its schema."""
    schemas = {"weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}
    n = 0
    with client_of(family) as client:
        for seed in range(n_requests):
            named = {"type": "function", "function": {"name": "weather"}}
            choice = ["required", named][seed % 2]
            how: dict = dict(**SOON, tools=TOOLS, tool_choice=choice, seed=seed)
            how["parallel_tool_calls"] = seed > 2
            if seed > 2:  # a random model would call again and again
                how["max_tokens"] = 400
            whole = client.chat.completions.create(**how).choices[0]
            calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
            streamed = joined(list(client.chat.completions.create(**how, stream=True)))
            assert streamed == (whole.message.content or "", calls, whole.finish_reason)
            assert not any(call.model_extra for call in whole.message.tool_calls)  # "index" is of streams
            if whole.finish_reason == "length":
                calls = calls[:-1]
            else:
                assert whole.finish_reason == "tool_calls" and whole.message.content is None
            assert seed > 2 or len(calls) == 1
            for name, arguments in calls:
                assert name == "weather" or seed % 2 == 0
                jsonschema.validate(json.loads(arguments), schemas[name])
                n += 1
            assert len({call.id for call in whole.message.tool_calls}) == len(whole.message.tool_calls)
            turns = [USER, whole.message.model_dump(), {"role": "tool", "tool_call_id": "1", "content": "b"}]
            assert client.chat.completions.create(model="tiny", messages=turns, max_tokens=1).choices
    assert n > 5


def test_the_choice_of_a_tool(client: Any) -> None:
    """Text unless the model calls; a call if it wants to; none where that was asked for."""
    marks = {str(ord(c)): 50 for c in "a"}
    how: dict = dict(**{**SOON, "max_tokens": 50, "temperature": 0}, tools=TOOLS)
    text = client.chat.completions.create(**how, logit_bias=marks).choices[0]
    assert text.message.tool_calls is None and text.finish_reason == "length"
    none = client.chat.completions.create(**how, tool_choice="none")
    plain = client.chat.completions.create(**{**how, "tools": []})
    assert none.choices == plain.choices and none.usage.prompt_tokens == plain.usage.prompt_tokens
    assert client.chat.completions.create(**how).usage.prompt_tokens > plain.usage.prompt_tokens


def test_variables_of_the_template(client: Any) -> None:
    def n_tokens(**kwargs: Any) -> int:
        body = {"chat_template_kwargs": kwargs}
        used = client.chat.completions.create(model="tiny", messages=[USER], max_tokens=1, extra_body=body)
        n: int = used.usage.prompt_tokens
        return n

    assert n_tokens(mood="</s>") == n_tokens(mood="1234") == n_tokens() + 4
    with pytest.raises(openai.BadRequestError) as refused:
        n_tokens(chat_template="{% for i in range(10) %}{% endfor %}")
    assert refused.value.param == "chat_template_kwargs"


def test_the_same_answers_in_any_company(client: Any) -> None:
    schema = object_of(random.Random(7))
    mixed: list[dict] = [
        {"response_format": form_of(schema), "presence_penalty": 1.0},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"extra_body": {"top_k": 5}},
        {"response_format": form_of(WEATHER), "temperature": 0},
    ]
    asked = [{**SOON, "seed": 3, "max_tokens": 200, **fields} for fields in mixed]
    alone = [client.chat.completions.create(**how).choices[0] for how in asked]
    streams = [client.chat.completions.create(**how, stream=True) for how in asked]
    for one, stream in zip(alone, streams):
        content, calls, reason = joined(list(stream))
        assert (content, reason) == (one.message.content or "", one.finish_reason)
        assert calls == [(c.function.name, c.function.arguments) for c in one.message.tool_calls or []]


def test_objects_have_the_properties_that_are_named() -> None:
    """Unless the schema decides otherwise."""
    inner = {"properties": {"b": {"type": "null"}}}
    shut = {**inner, "additionalProperties": False}
    assert closed({"items": inner, "$defs": {"c": inner}}) == {"items": shut, "$defs": {"c": shut}}
    assert closed({"properties": {"properties": inner}})["properties"] == {"properties": shut}
    assert closed({"const": inner}) == {"const": inner}
    for more in (
        {"additionalProperties": True},
        {"minProperties": 2},
        {"required": ["a"]},
        {"anyOf": [inner]},
    ):
        assert closed({**inner, **more}) == {**inner, **more}


PATTERNS = {"allOf": [{"type": "string", "pattern": f"a{{{n}}}"} for n in range(30)]}
WRONG: list[tuple[dict, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": form_of({"type": "nope"})}, "response_format"),
    ({"response_format": form_of({"not": {}})}, "response_format"),
    ({"response_format": form_of({"$ref": "#/none"})}, "response_format"),
    ({"response_format": form_of({"$ref": "#"})}, "response_format"),
    ({"response_format": form_of({"maximum": 10**300})}, "response_format"),
    ({"response_format": form_of(PATTERNS)}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [tool("a b")]}, "tools"),
    ({"tools": [tool("a"), tool("a")]}, "tools"),
    ({"tools": [tool("a", {"type": "array"})]}, "tools"),
    ({"tools": [tool("a", {"type": "object", "properties": {"b": {"type": 3}}})]}, "tools"),
    ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_what_is_wrong_is_named(client: Any, fields: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**SOON, **fields)
    assert refused.value.param == param and param in str(refused.value)


def test_tokens_that_the_schema_forces_share_a_step(monkeypatch: Any) -> None:
    """The same answer in fewer steps; they are no drafts."""
    schema = {"properties": {"longer name": {"type": "integer"}, "b": {"const": "a value"}}}
    form = form_of({"type": "object", **schema, "required": ["longer name", "b"]})
    steps: list[int] = []
    step = Contexts.step
    monkeypatch.setattr(Contexts, "step", lambda *a: steps.append(len(a[2])) or step(*a))
    answers = []
    with client_of("Hermes") as client:
        for is_together in (True, False):
            steps.clear()
            answer = client.chat.completions.create(**SOON, seed=1, response_format=form)
            answers.append(answer.choices[0].message.content)
            assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 0
            assert max(steps) > 8 if is_together else len(steps) == answer.usage.completion_tokens - 1
            monkeypatch.setattr(Engine, "_drafts", lambda _, requests: [[] for _ in requests])
    assert answers[0] == answers[1]


def test_answers_of_a_request_share_a_schema_and_no_state(monkeypatch: Any) -> None:
    prompts = Prompts(byte_tokenizer(BODY, SPECIAL), 100, 300, [], [257])
    compiled: list[Any] = []
    checked = prompts.forms._checked
    monkeypatch.setattr(prompts.forms, "_checked", lambda *a: compiled.append(a) or checked(*a))
    said = ChatRequest(messages=[USER], response_format={"type": "json_object"}, n=3)
    forms = [request.form for request in prompts.requests(said, [[1]], lambda index: print)]
    forms += [request.form for request in prompts.requests(said, [[1]], lambda index: print)]
    assert len(forms) == 6 and len(compiled) == 1
    first, *others = forms
    assert first is not None
    begin = first.allowed()
    first.take(int(begin[0]))
    assert not np.array_equal(first.allowed(), begin)
    for other in others:
        assert other is not None and np.array_equal(other.allowed(), begin)
        other.take(int(begin[0]))  # which the grammar allows at the beginning alone
        assert np.array_equal(other.allowed(), first.allowed())


def test_a_template_without_tools_is_refused_by_name() -> None:
    for template in ("{{ messages }}", "{{ tools }} <tool_call><function=f>"):
        assert style_of(template) is None
        prompts = Prompts(byte_tokenizer(template, SPECIAL), 100, 300, [], [])
        with pytest.raises(ValueError, match="tools must be known to the model's chat template") as refused:
            prompts.of_chat(ChatRequest(messages=[USER], tools=TOOLS))
        assert refused.value.param == "tools"  # type: ignore[attr-defined]


def test_without_the_library(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    prompts = Prompts(byte_tokenizer(BODY, SPECIAL), 100, 300, [], [])
    said = ChatRequest(messages=[USER], response_format={"type": "json_object"})
    with pytest.raises(ValueError, match="response_format needs llguidance"):
        prompts.requests(said, [[1]], lambda index: print)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parser_takes_text_in_any_pieces(family: str) -> None:
    style = style_of(f"tools {FAMILIES[family]}")
    assert style is not None
    city = '["}\n</tool_call>x</tool_call>]'  # ends of calls, which are text in it
    arguments = [json.dumps({"city": city}), "{}"][: 1 if style.between is None else 2]
    calls = [style.name + name + style.arguments + given + style.end for name, given in zip("fg", arguments)]
    before = "hi <too" if style.mark else ""
    text = before + style.mark + style.first + (style.between or "").join(calls) + style.last
    for size in (1, 2, 7, len(text)):
        parser, content, found = Calls(style, "fg"), "", ["", ""]
        for at in range(0, len(text) + 1, size):
            delta = parser.push(text[at : at + size], is_last=at + size > len(text))
            content += delta.get("content", "")
            for call in delta.get("tool_calls", []):
                found[call["index"]] += call["function"]["arguments"]
        assert content == before and [one for one in found if one] == arguments == found[: parser.n]
    parser = Calls(style, "fg")
    plain = '{"name": "h", <tool_call'
    assert (
        "".join(parser.push(c).get("content", "") for c in plain) + parser.push("", True).get("content", "")
        == plain
        and not parser.n
    )
    if not style.mark:  # an answer that began as text has no call
        parser = Calls(style, "fg")
        assert [parser.push(part) for part in ("hi ", text)] == [{"content": "hi "}, {"content": text}]
