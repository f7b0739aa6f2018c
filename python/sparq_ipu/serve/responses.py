# SPDX-License-Identifier: Apache-2.0
"""OpenAI's responses, as chats in other words. Nothing is stored: clients send the conversation again."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any, Sequence

from pydantic import model_validator

from sparq_ipu.serve.answers import Answer, usage
from sparq_ipu.serve.requests import Done, Text
from sparq_ipu.serve.schemas import ChatRequest, Invalid

#: names of fields in chats, and here
_RENAMED = {
    "response_format.json_schema": "text.format",
    "response_format": "text",
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
}
#: fields that change nothing
_DROPPED = ("include", "truncation", "reasoning", "stream_options", "max_tool_calls", "background")


class ResponsesRequest(ChatRequest):
    """POST /v1/responses."""

    renamed = _RENAMED

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        said = {name: value for name, value in said.items() if value is not None and name not in _DROPPED}
        for name in ("previous_response_id", "conversation", "prompt", "n", *_RENAMED):
            if name in said:
                raise Invalid(f"{name} is not supported: one answer to the conversation in input", name)
        messages = _messages(said.pop("input", None))
        instructions = said.pop("instructions", None)
        if instructions is not None:
            messages.insert(0, {"role": "system", "content": instructions})
        text = said.pop("text", None)
        form = text.get("format") if isinstance(text, dict) else text
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": form}
        if isinstance(said.get("tools"), list):
            said["tools"] = [_nested(tool) for tool in said["tools"]]
        most = said.pop("max_output_tokens", None)
        return {
            **said,
            "messages": messages,
            "max_completion_tokens": most,
            "response_format": form,
            "tool_choice": _nested(said.get("tool_choice")),
        }


def _nested(tool: Any) -> Any:
    """A function's fields in an object of their own, as chats have them."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}}


def _messages(given: Any) -> list[Any]:
    """Messages of a text or of items."""
    messages: list[Any] = []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise Invalid("input must be a text or a list", "input")
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            content = item.get("content")
            parts = [_part(part) for part in content] if isinstance(content, list) else content
            messages.append({"role": item.get("role"), "content": parts})
        elif kind == "function_call":
            function = {name: item.get(name) for name in ("name", "arguments")}
            if not (messages and messages[-1].get("tool_calls")):
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1]["tool_calls"].append(call)
        elif kind == "function_call_output":
            call_id = str(item.get("call_id"))
            messages.append({"role": "tool", "tool_call_id": call_id, "content": item.get("output")})
        elif kind != "reasoning":
            raise Invalid("input must contain messages, calls of functions and their outputs", "input")
    return messages


def _part(part: Any) -> Any:
    is_text = isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
    return {"type": "text", "text": part.get("text")} if is_text else part


class ResponsesAnswer(Answer):
    """An answer as a response, whole or as events."""

    last = b""

    def whole(self, texts: Sequence[Text], ends: Sequence[Done], n_prompts: int) -> dict[str, Any]:
        self.first(0)
        self.part(0, texts[0])
        response: dict[str, Any] = self.end(0, ends[0])[-1]["response"]
        return response

    def first(self, index: int) -> list[dict[str, Any]]:
        self._id = f"resp_{uuid.uuid4().hex}"
        self._output: list[dict[str, Any]] = []
        self._n_events = 0
        return [
            self._event(kind, response=self._response("in_progress")) for kind in ("created", "in_progress")
        ]

    def part(self, index: int, text: Text) -> list[dict[str, Any]]:
        return self._deltas(self._delta(index, text.text))

    def end(self, index: int, end: Done) -> list[dict[str, Any]]:
        status = "incomplete" if end.reason == "length" else "completed"
        events = self._deltas(self._delta(index, "", True)) + self._close(status)
        return [*events, self._event(status, response=self._response(status, end))]

    def used(self, ends: Sequence[Done], n_prompts: int) -> list[dict[str, Any]]:
        return []  # the last event contains it

    def sent(self, part: dict[str, Any]) -> bytes:
        return f"event: {part.get('type', 'error')}\ndata: {json.dumps(part)}\n\n".encode()

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": f"response.{kind}", "sequence_number": self._n_events - 1, **fields}

    def _response(self, status: str, end: Done | None = None) -> dict[str, Any]:
        used = None if end is None else usage([end], 1)
        return {
            **{"id": self._id, "object": "response", "created_at": self._created, "model": self._model},
            **{"status": status, "error": None, "output": self._output, "store": False, "metadata": {}},
            **{"parallel_tool_calls": True, "tool_choice": "auto", "tools": []},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": used
            and {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            },
        }

    def _deltas(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        if delta.get("content"):
            if not self._output:
                part = {"type": "output_text", "text": "", "annotations": []}
                events += self._open(
                    type="message", id=f"msg_{uuid.uuid4().hex}", role="assistant", content=[]
                )
                events.append(self._event("content_part.added", **self._place(), part=dict(part)))
                self._output[-1]["content"].append(part)
            self._output[-1]["content"][0]["text"] += delta["content"]
            kind = "output_text.delta"
            events.append(self._event(kind, **self._place(), delta=delta["content"], logprobs=[]))
        for call in delta.get("tool_calls", []):
            name, text = call["function"].get("name"), call["function"]["arguments"]
            if "id" in call:
                names = {"id": f"fc_{uuid.uuid4().hex}", "call_id": call["id"], "name": name}
                events += self._close("completed") + self._open(type="function_call", **names, arguments="")
            self._output[-1]["arguments"] += text
            events.append(self._event("function_call_arguments.delta", **self._place(), delta=text))
        return events

    def _place(self) -> dict[str, Any]:
        """Of the last item."""
        item = self._output[-1]
        place = {"item_id": item["id"], "output_index": len(self._output) - 1}
        return {**place, "content_index": 0} if item["type"] == "message" else place

    def _open(self, **item: Any) -> list[dict[str, Any]]:
        self._output.append({**item, "status": "in_progress"})
        index = len(self._output) - 1
        return [self._event("output_item.added", output_index=index, item=copy.deepcopy(self._output[-1]))]

    def _close(self, status: str) -> list[dict[str, Any]]:
        if not self._output:
            return []
        item, place = self._output[-1], self._place()
        item["status"] = status
        if item["type"] == "message":
            (part,) = item["content"]
            done = [self._event("output_text.done", **place, text=part["text"], logprobs=[])]
            done.append(self._event("content_part.done", **place, part=part))
        else:
            words = {name: item[name] for name in ("name", "arguments")}
            done = [self._event("function_call_arguments.done", **place, **words)]
        return [*done, self._event("output_item.done", output_index=place["output_index"], item=item)]
