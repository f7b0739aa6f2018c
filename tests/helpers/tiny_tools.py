# SPDX-License-Identifier: Apache-2.0
"""A server of a tiny random model that writes bytes, whose template takes tools as some family's does."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import pytest
from byte_tokenizer import byte_tokenizer
from tiny_models import tiny_model
from tiny_server import CONTEXT, running_engine, running_server

import sparq_ipu.transformers
from sparq_ipu.serve.prompts import Prompts

openai = pytest.importorskip("openai")
pytest.importorskip("llguidance")
pytest.importorskip("sparq_ipu._cpu")

#: what the templates of families contain that names them
FAMILIES = {
    "Hermes": "<tool_call>",
    "Mistral": "[TOOL_CALLS]",
    "Mistral, SentencePiece": "[TOOL_CALLS] [",
    "Mistral, newer": "[TOOL_CALLS] [ARGS]",
    "Granite": "<|tool_call|>",
    "Phi-4-mini": "<|tool|>",
    "Llama": "<|python_tag|>",
}
SPECIAL = ["<s>", "</s>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>"]
BODY = (
    "{% if tools %}{{ tools | tojson }} TAG {% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}\n{% endfor %}{{ mood }}>"
)
USER = {"role": "user", "content": "a"}


def tool(name: str, schema: Any = None) -> dict:
    return {"type": "function", "function": {"name": name, **({"parameters": schema} if schema else {})}}


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 99}},
}
TOOLS = [tool("weather", WEATHER), tool("now")]


@contextlib.contextmanager
def client_of(family: str, context: int = CONTEXT) -> Iterator[Any]:
    tokenizer = byte_tokenizer(BODY.replace("TAG", FAMILIES[family]), SPECIAL, False)
    model = tiny_model(max_position_embeddings=context, vocab_size=len(tokenizer))
    sparq_ipu.transformers.enable(model, rank=8, top_k=16, min_seq_len=40)
    end = tokenizer.eos_token_id
    prompts = Prompts(tokenizer, context, len(tokenizer), [end], [end])
    running = running_engine(model, tokenizer=tokenizer, context=context)
    with running as engine, running_server(engine, prompts=prompts) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield client
