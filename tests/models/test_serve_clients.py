# SPDX-License-Identifier: Apache-2.0
"""The clients that docs/serve.md names, with the settings that it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sparq_ipu._cpu")
from tiny_tools import TOOLS, USER, WEATHER, client_of

PAGE = (Path(__file__).resolve().parents[2] / "docs/serve.md").read_text()


@pytest.fixture(scope="module")
def url() -> Any:
    with client_of("Hermes") as client:
        yield str(client.base_url).rstrip("/")


@pytest.mark.filterwarnings("ignore")  # of its own
def test_litellm(url: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no list of prices from the net
    litellm = pytest.importorskip("litellm")
    assert 'completion(model="openai/NAME", api_base="http://127.0.0.1:8000/v1", api_key="none", ...)' in PAGE
    how: dict = dict(
        model="openai/tiny", api_base=url, api_key="none", messages=[USER], max_tokens=12, seed=3
    )
    whole = litellm.completion(**how)
    assert whole.usage.completion_tokens <= 12 and whole.choices[0].message.content
    parts = list(litellm.completion(**how, stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    named = {"type": "function", "function": {"name": "weather"}}
    how.update(max_tokens=400, tools=TOOLS, tool_choice=named)
    (call,) = litellm.completion(**how).choices[0].message.tool_calls
    assert call.function.name == "weather" and set(json.loads(call.function.arguments)) == {"city", "days"}


def test_langchain_openai(url: str) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    assert 'ChatOpenAI(model="NAME", base_url="http://127.0.0.1:8000/v1", api_key="none")' in PAGE
    chat = langchain_openai.ChatOpenAI(model="tiny", base_url=url, api_key="none", max_tokens=400, seed=3)
    whole = chat.bind(max_tokens=12).invoke("a")
    assert whole.usage_metadata["output_tokens"] <= 12 and whole.content
    assert "".join(part.content for part in chat.bind(max_tokens=12).stream("a")) == whole.content
    called = chat.bind_tools(TOOLS, tool_choice="weather").invoke("a")
    assert called.tool_calls[0]["name"] == "weather" and set(called.tool_calls[0]["args"]) == {"city", "days"}
    schema = {"title": "weather", "description": "of a city", **WEATHER}
    answer = chat.with_structured_output(schema, method="json_schema").invoke("a")
    assert set(answer) == {"city", "days"}


def test_lm_eval(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("aiohttp")
    from byte_tokenizer import byte_tokenizer
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from tiny_tools import BODY, SPECIAL

    words = "--model local-completions --model_args model=NAME,base_url=http://127.0.0.1:8000/v1/completions,"
    assert f"{words}tokenizer=PATH,max_length=CONTEXT" in PAGE
    byte_tokenizer(BODY, SPECIAL, False).save_pretrained(tmp_path)
    client = LocalCompletionsAPI(
        model="tiny", base_url=f"{url}/completions", tokenizer=str(tmp_path), max_length=512
    )
    pairs = [("a b", " c"), ("a b", " d"), ("", "x")]
    asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    scores = client.loglikelihood(asked)
    assert len(scores) == 3 and all(score < 0 and isinstance(is_greedy, bool) for score, is_greedy in scores)
    assert scores[0] != scores[1]
    until = Instance("generate_until", {}, ("a b", {"until": ["z"], "max_gen_toks": 5}), 0)
    assert len(client.generate_until([until])) == 1
