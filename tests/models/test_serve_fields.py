# SPDX-License-Identifier: Apache-2.0
"""Usual fields of requests over HTTP: penalties, echo, and /tokenize."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import tokens_of
from tiny_server import Asked

from sparq_ipu.serve.sampling import Sampling

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")
pytest.importorskip("sparq_ipu._cpu")

PROMPT = " ".join(f"w{token}" for token in tokens_of(300)[0].tolist())
GREEDY: dict = dict(prompt=PROMPT, max_tokens=40, temperature=0)


@pytest.fixture(scope="module")
def http(url: str) -> Any:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def ask(http: Any, **fields: Any) -> Any:
    answer = http.post("/v1/completions", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def words(http: Any, **fields: Any) -> list[str]:
    return ask(http, **{**GREEDY, **fields})[0]["text"].split()


def test_fields_reach_the_sampler(http: Any) -> None:
    plain = words(http)
    first = plain[0]
    assert len(set(plain)) < 38
    assert len(set(words(http, presence_penalty=2, frequency_penalty=2))) > len(set(plain))
    assert not set(words(http, repetition_penalty=100, max_tokens=5)) & set(PROMPT.split())
    assert words(http, logit_bias={"7": 100}) == ["w7"] * 40
    assert first not in words(http, logit_bias={first[1:]: -100})
    hot = dict(temperature=2, seed=3)
    assert words(http, **hot, top_k=1) == plain == words(http, **hot, min_p=1.0) != words(http, **hot)


def test_an_answer_without_text_is_an_empty_text(http: Any) -> None:
    said = dict(messages=[{"role": "user", "content": "w5"}], logit_bias={"7": 100}, stop=["w7"])
    choice = http.post("/v1/chat/completions", json=said).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": ""} and choice["finish_reason"] == "stop"


MIXED = [
    Sampling(0.0, presence=1.0, frequency=0.5),
    Sampling(1.0, 0.9, 3, top_k=20, min_p=0.01),
    Sampling(0.8, 1.0, 4, repetition=1.3, bias=((7, 3.0), (9, -100.0))),
    Sampling(0.0, n_top=3),
]


def test_the_same_tokens_in_any_company(engine: Any) -> None:
    prompts = [tokens_of(60 + 90 * at, seed=at) for at in range(4)]
    alone = [Asked(engine, prompt, 30, how).tokens for prompt, how in zip(prompts, MIXED)]
    asked = [Asked(engine, prompt, 30, how) for prompt, how in zip(prompts, MIXED)]
    assert [one.tokens for one in asked] == alone
    assert len({tuple(tokens) for tokens in alone}) == 4


@pytest.mark.parametrize("is_text", [True, False])
def test_echo(http: Any, is_text: bool) -> None:
    tokens = tokens_of(300)[0].tolist()
    how = {**GREEDY, "max_tokens": 5, "prompt": PROMPT if is_text else tokens}
    (plain,), (echoed,) = ask(http, **how), ask(http, **how, echo=True)
    assert echoed["text"] == f"{PROMPT} {plain['text']}" and echoed["logprobs"] is None
    (nothing,) = ask(http, **{**how, "max_tokens": 0}, echo=True)
    assert nothing["text"] == PROMPT and nothing["finish_reason"] == "length"
    lines = http.post("/v1/completions", json={**how, "echo": True, "stream": True}).text.split("data: ")[
        1:-1
    ]
    assert PROMPT in lines[0] and len(lines) > 5


def test_echo_with_log_probabilities(http: Any) -> None:
    """The same bits as of a next token, in a prompt of several pieces that a place holds already."""
    tokens = tokens_of(300)[0].tolist()
    (answer,) = ask(http, **{**GREEDY, "max_tokens": 1}, echo=True, logprobs=1)
    found = answer["logprobs"]
    assert len(found["tokens"]) == 301 and found["token_logprobs"][0] is found["top_logprobs"][0] is None
    for at in (1, 2, 127, 128, 129, 255, 256, 299):
        how: dict = dict(prompt=tokens[:at], logit_bias={str(tokens[at]): 100}, max_tokens=1, temperature=0)
        (choice,) = ask(http, **how, logprobs=1)
        assert choice["logprobs"]["tokens"] == [found["tokens"][at]] == [f"w{tokens[at]}"]
        assert choice["logprobs"]["token_logprobs"] == [found["token_logprobs"][at]]
        assert choice["logprobs"]["top_logprobs"] == [found["top_logprobs"][at]]
    (answer,) = ask(http, prompt="w5 w6 w7", max_tokens=2, temperature=0, echo=True, logprobs=0)
    text, found = answer["text"], answer["logprobs"]
    assert [text[at:].split()[0] for at in found["text_offset"]] == text.split()


def test_tokenize(http: Any) -> None:
    made = http.post("/tokenize", json={"prompt": "w1 w5", "model": "tiny"}).json()
    assert made == {"tokens": [1, 5], "count": 2, "max_model_len": 1024}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "w5"}]}).json()
    assert chat["tokens"] == [1, 5, 2]


def test_embeddings_are_refused(http: Any) -> None:
    answer = http.post("/v1/embeddings", json={"input": "w1"})
    assert answer.status_code == 404 and "embeddings" in answer.json()["error"]["message"]
