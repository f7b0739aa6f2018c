# SPDX-License-Identifier: Apache-2.0
"""/v1/responses with OpenAI's client: the answers of chats, whole and as events."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tiny_tools import TOOLS, USER, WEATHER, client_of, openai

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
HOW: dict = dict(model="tiny", max_output_tokens=300, temperature=0)
CHAT: dict = dict(model="tiny", max_tokens=300, temperature=0)


@pytest.fixture(scope="module")
def client() -> Any:
    with client_of("Hermes") as client:
        yield client


def test_a_text_is_that_of_a_chat(client: Any) -> None:
    system = {"role": "system", "content": "b"}
    chat = client.chat.completions.create(messages=[system, USER], **CHAT)
    response = client.responses.create(input="a", instructions="b", **HOW)
    assert response.output_text == chat.choices[0].message.content
    assert (response.usage.input_tokens, response.usage.output_tokens) == (chat.usage.prompt_tokens, 300)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    content = [{"type": "input_text", "text": "a"}]
    parts = [{"type": "message", "role": "user", "content": content}]
    assert client.responses.create(input=parts, instructions="b", **HOW).output_text == response.output_text


def test_events(client: Any) -> None:
    whole = client.responses.create(input="a", **HOW)
    with client.responses.stream(input="a", **HOW) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    kinds = [event.type.partition(".")[2] for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    ends = ["output_text.done", "content_part.done", "output_item.done", whole.status]
    assert kinds[-4:] == ends and set(kinds[4:-4]) == {"output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_calls_and_their_outputs(client: Any) -> None:
    how: dict = dict(**HOW, tools=FLAT, tool_choice={"type": "function", "name": "weather"})
    how["parallel_tool_calls"] = False
    chat_choice = {"type": "function", "function": {"name": "weather"}}
    chat = client.chat.completions.create(
        messages=[USER], **CHAT, tools=TOOLS, tool_choice=chat_choice, parallel_tool_calls=False
    )
    (call,) = client.responses.create(input="a", **how).output
    assert call.arguments == chat.choices[0].message.tool_calls[0].function.arguments
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    with client.responses.stream(input="a", **how) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments and len(pieces) > 3
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turn = [USER, call.model_dump(), output]
    assert client.responses.create(input=turn, **HOW).output_text


def test_a_schema(client: Any) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": WEATHER, "strict": True}}
    response = client.responses.create(input="a", text=form, **HOW)
    assert set(json.loads(response.output_text)) == {"city", "days"} and response.status == "completed"


WRONG: list[tuple[dict, str]] = [
    ({"input": 3}, "input"),
    ({"input": [{"type": "image"}]}, "input"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input"),
    ({"input": "a" * 2000}, "input"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"format": {"type": "xml"}}}, "text"),
    ({"text": {"format": {"type": "json_schema", "schema": 3}}}, "text"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools"),
    ({"extra_body": {"messages": [USER]}}, "input"),
    ({"extra_body": {"n": 2}}, "n"),
    ({"extra_body": {"\\q": 2}}, "\\q"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_what_is_wrong_is_named(client: Any, fields: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"input": "a", **HOW, **fields})
    assert refused.value.param == param
    message = refused.value.body["message"]  # type: ignore[index]
    assert not re.match(
        r"messages|max_completion_tokens|response_format|.*\b(json_schema|function)\.", message
    )
