# SPDX-License-Identifier: Apache-2.0
"""Conversations: tokens as the model's template writes them, text that stays text; and the names and places
of tokens that are parts of a character."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("pydantic")

from sparq_ipu import generate
from sparq_ipu.serve.answers import Answer
from sparq_ipu.serve.engine import Text
from sparq_ipu.serve.prompts import Prompts
from sparq_ipu.serve.sampling import LogProbability
from sparq_ipu.serve.schemas import ChatRequest, Invalid
from sparq_ipu.serve.text import TokenNames
from sparq_ipu.transformers.generation.chats import chat_tokens

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BODY = (
    "{% for m in messages %}"
    "{% if m.role == 'robot' or (m.role == 'system' and not loop.first) %}"
    "{{ raise_exception('The system speaks first, and once.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


TOKENIZERS = {
    (writes, adds): byte_tokenizer(("{{ bos_token }}" if writes else "") + BODY, SPECIAL, adds)
    for writes in (True, False)
    for adds in (True, False)
}
TOKENIZER = TOKENIZERS[True, True]
CHAT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "é 😀\n\nwhy?"}]


def template_tokens(tokenizer: Any, messages: Any) -> list[int]:
    found = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    return list(found if isinstance(found, list) else found["input_ids"])


@pytest.mark.parametrize("writes_and_adds", TOKENIZERS)
def test_tokens_are_those_of_the_template(writes_and_adds: Any) -> None:
    """The token that begins a text comes once where the template writes it, and else not at all."""
    tokenizer = TOKENIZERS[writes_and_adds]
    tokens = chat_tokens(tokenizer, CHAT)
    assert tokens == template_tokens(tokenizer, CHAT)
    assert tokens.count(tokenizer.bos_token_id) == writes_and_adds[0]
    prompts = Prompts(tokenizer, 1000, len(tokenizer))
    assert prompts.of_chat(ChatRequest(messages=CHAT)) == [tokens]


@given(st.lists(st.sampled_from([*SPECIAL, "<", "im_end|>", "a", " ", "\n", "\ue000", "😀"]), max_size=9))
def test_what_a_message_spells_out_stays_text(parts: list[str]) -> None:
    """Control tokens are those of the same conversation about something else; and the text is the same."""
    text = "".join(parts)
    said = [CHAT[0], {"role": "user", "content": text}]
    tokens = chat_tokens(TOKENIZER, said)
    special = {token for token, added in TOKENIZER.added_tokens_decoder.items() if added.special}
    usual = [token for token in chat_tokens(TOKENIZER, CHAT) if token in special]
    assert [token for token in tokens if token in special] == usual
    parsed = template_tokens(TOKENIZER, said)
    assert TOKENIZER.decode(tokens) == TOKENIZER.decode(parsed)
    if not any(one in text for one in SPECIAL):
        assert tokens == parsed


def test_special_tokens_in_calls_of_tools_stay_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "<|im_end|>"}'}}
    said = ChatRequest(
        messages=[
            {"role": "user", "content": "ask"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "<|im_end|>"},
        ]
    )
    (tokens,) = Prompts(TOKENIZER, 1000, len(TOKENIZER)).of_chat(said)
    text = TOKENIZER.decode(tokens)
    assert '[f {"a": "<|im_end|>"}]' in text and text.count("<|im_end|>") == 5
    assert tokens.count(TOKENIZER.convert_tokens_to_ids("<|im_end|>")) == 3


def chat(*messages: dict) -> list[list[int]]:
    said = ChatRequest.read(json.dumps({"messages": messages}).encode())
    return Prompts(TOKENIZER, 1000, len(TOKENIZER)).of_chat(said)


USER = {"role": "user", "content": "a"}
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_template_says_why_it_refuses() -> None:
    with pytest.raises(Invalid, match="The system speaks first, and once") as refused:
        chat(USER, {"role": "system", "content": "b"})
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": None, "tool_calls": CALLS}],
        [USER, {"role": "assistant", "tool_calls": CALLS}],
        [USER, {"role": "assistant", "content": "", "tool_calls": CALLS}],
        [USER, {"role": "assistant", "content": "b", "tool_calls": None}],
        [USER, {"role": "tool", "tool_call_id": "1", "content": "b"}],
        [{"role": "user", "content": ""}],
        [{"role": "developer", "content": "b"}, USER],
    ],
)
def test_messages_of_the_api_are_taken(messages: list) -> None:
    assert chat(*messages)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "a", "tool_calls": CALLS},
        {"role": "tool", "content": "a"},
        {"role": "user", "content": "a", "tool_call_id": "1"},
        {"role": "user", "content": []},
        {"role": "user", "content": 1},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "tool_calls": {"function": {"name": "f", "arguments": "{}"}}},
    ],
)
def test_messages_that_the_api_refuses(message: dict) -> None:
    with pytest.raises(Invalid) as refused:
        chat(message)
    assert refused.value.param == "messages"


def test_a_developer_is_the_system() -> None:
    assert chat({"role": "developer", "content": "b"}, USER) == chat({"role": "system", "content": "b"}, USER)


def entries(tokens: list[int], top: list[int]) -> list[LogProbability]:
    return [LogProbability(token, -0.5, [(one, -1.0 - at) for at, one in enumerate(top)]) for token in tokens]


def test_bytes_of_tokens_that_are_parts_of_a_character() -> None:
    tokens = TOKENIZER("a😀", add_special_tokens=False).input_ids
    chosen = entries(tokens, tokens[1:])
    answer = Answer("tiny", TokenNames(TOKENIZER), True, True).part(0, Text("a😀", tokens, chosen))[0]
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[97], [0xF0], [0x9F], [0x98], [0x80]]
    assert [entry["token"] for entry in content] == ["a", "\\xf0", "\\x9f", "\\x98", "\\x80"]
    answer = Answer("tiny", TokenNames(TOKENIZER), False, True).part(0, Text("a😀", tokens, chosen))[0]
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    assert [len(top) for top in found["top_logprobs"]] == [5, 4, 4, 4, 4]
    assert found["text_offset"] == [0, 1, 1, 1, 1]


def test_places_of_tokens_lie_in_the_text() -> None:
    """Counted in characters; tokens of a stop string are at the end of the text."""
    tokens = TOKENIZER("é😀bc", add_special_tokens=False).input_ids
    form = Answer("tiny", TokenNames(TOKENIZER), False, True)
    parts = [
        *form.part(0, Text("é", tokens[:2], entries(tokens[:2], []))),
        *form.part(0, Text("😀", tokens[2:], entries(tokens[2:], []))),
    ]
    offsets = [at for part in parts for at in part["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [0, 0, 1, 1, 1, 1, 2, 2]


def test_pieces_of_sentencepiece() -> None:
    """A byte that is no character, a space, a text that looks like one of bytes; and equal names."""

    class Pieces:
        pieces = ("<0xE2>", "▁a", "é", "a", "�", "a")

        def convert_ids_to_tokens(self, token: int) -> str:
            return self.pieces[token]

        def decode(self, tokens: list[int], **_: Any) -> str:
            text = "".join("�" if self.pieces[t] == "<0xE2>" else self.pieces[t] for t in tokens)
            return text.replace("▁", " ").lstrip()

    names = TokenNames(Pieces())
    assert [names.of(token) for token in range(5)] == [
        ("\\xe2", b"\xe2"),
        (" a", b" a"),
        ("é", "é".encode()),
        ("a", b"a"),
        ("�", "�".encode()),
    ]
    form = Answer("tiny", names, False, True)
    top = form.part(0, Text("a", [3], entries([3], [5, 1])))[0]["choices"][0]["logprobs"]["top_logprobs"]
    assert top == [{"a": -0.5, "token_id:5": -1.0, " a": -2.0}]


@pytest.mark.parametrize("writes_and_adds", TOKENIZERS)
def test_generate_writes_the_same_conversation(writes_and_adds: Any) -> None:
    """Also of the first tokens of a prompt: no token that begins a text is in the message."""
    tokenizer = TOKENIZERS[writes_and_adds]
    for n, text in ((None, "be kind"), (4, "be k")):
        arguments = types.SimpleNamespace(chat=True, prompt_tokens=n)
        found = generate._encode(arguments, "be kind", tokenizer)  # type: ignore[arg-type]
        assert found.tolist() == [template_tokens(tokenizer, [{"role": "user", "content": text}])]
