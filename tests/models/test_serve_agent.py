# SPDX-License-Identifier: Apache-2.0
"""The requests of a coding agent, written by hand after the documentation of OpenAI's API, and answers that
such a client can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
jsonschema = pytest.importorskip("jsonschema")
from tiny_tools import client_of  # noqa: E402

LOG = Path(__file__).parents[1] / "data" / "coding_agent.jsonl"
REQUESTS = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def url() -> Any:
    with client_of("Hermes", 4096) as client:
        yield str(client.base_url).partition("/v1")[0]


def events_of(answer: Any) -> list[dict]:
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[len("data: ") :]) for line in lines[:-1]]


def calls_of(events: list[dict]) -> list[dict]:
    """The calls of a stream, joined as the documentation says: by index, arguments one after another."""
    calls: dict[int, dict] = {}
    for event in events:
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls", []):
                if piece["index"] not in calls:
                    calls[piece["index"]] = {"id": piece["id"], **piece["function"]}
                else:
                    assert "id" not in piece
                    calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return [calls[index] for index in sorted(calls)]


@pytest.mark.parametrize("index", range(len(REQUESTS)))
def test_an_agent_reads_the_answer(url: str, index: int) -> None:
    said = REQUESTS[index]
    body: dict[str, Any] = said.get("body", {})
    headers = {"Authorization": "Bearer none"}
    answer = httpx.request(said["method"], url + said["path"], json=body or None, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    if said["expects"] == "list":
        (model,) = answer.json()["data"]
        assert (answer.json()["object"], model["object"], model["id"]) == ("list", "model", "tiny")
        return
    if not body.get("stream"):
        (choice,) = answer.json()["choices"]
        assert choice["message"]["role"] == "assistant" and choice["finish_reason"] in ("stop", "length")
        assert answer.json()["usage"]["total_tokens"] > 0
        if said["expects"] == "json":
            schema = body["response_format"]["json_schema"]["schema"]
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        return
    events = events_of(answer)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert set(reasons[:-1]) <= {None} and reasons[-1] in ("stop", "length", "tool_calls")
    calls = calls_of(events)
    if said["expects"] == "call":
        assert calls and reasons[-1] == "tool_calls"
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    for call in calls if reasons[-1] == "tool_calls" else []:
        jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
    chosen = body.get("tool_choice")
    if isinstance(chosen, dict):
        assert [call["name"] for call in calls] == [chosen["function"]["name"]]
