# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` over HTTP: the official client, requests that can not be, clients that vanish."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import socket
import time
from typing import Any

import pytest
from tiny_models import tokens_of
from tiny_server import CONTEXT, Asked, running_engine, running_server

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")
pytest.importorskip("sparq_ipu._cpu")

PROMPT = " ".join(f"w{token}" for token in tokens_of(50)[0].tolist())
MESSAGES = [{"role": "system", "content": "w4"}, {"role": "user", "content": "w5 w6 w7"}]


@pytest.fixture
def client(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_idle(engine: Any) -> bool:
    return all(place.is_free for place in engine._places) and not engine._waiting


def test_completion(client: Any, engine: Any) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20, temperature=0)
    asked = Asked(engine, tokens_of(50), 20)
    assert answer.choices[0].text == asked.text and answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (50, 20)
    by_tokens = client.completions.create(
        model="tiny", prompt=tokens_of(50)[0].tolist(), max_tokens=20, temperature=0
    )
    assert by_tokens.choices[0].text == answer.choices[0].text
    usual = client.completions.create(model="tiny", prompt=PROMPT)
    assert usual.usage.completion_tokens == 16


def test_completion_streamed(client: Any) -> None:
    how: dict = dict(model="tiny", prompt=PROMPT, max_tokens=20, temperature=0, logprobs=2)
    whole = client.completions.create(**how).choices[0]
    parts = list(client.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.text
    assert len(parts) > 10 and parts[-1].usage.completion_tokens == 20
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "length"
    of_parts = [part.choices[0].logprobs for part in parts if part.choices and part.choices[0].logprobs]
    assert [value for part in of_parts for value in part.token_logprobs] == whole.logprobs.token_logprobs
    assert [at for part in of_parts for at in part.text_offset] == whole.logprobs.text_offset


def test_log_probabilities(client: Any) -> None:
    how: dict = dict(model="tiny", temperature=0, max_tokens=8)
    of_text = client.completions.create(prompt=PROMPT, logprobs=3, **how).choices[0].logprobs
    for value, name, top in zip(of_text.token_logprobs, of_text.tokens, of_text.top_logprobs):
        assert len(top) == 3 and value == max(top.values()) == top[name] <= 0
    of_chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **how)
    content = of_chat.choices[0].logprobs.content
    assert len(content) == 8 and all(len(entry.top_logprobs) == 2 for entry in content)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in content)
    plain = client.chat.completions.create(messages=MESSAGES, logprobs=True, **how)
    assert [e.logprob for e in plain.choices[0].logprobs.content] == [e.logprob for e in content]


def test_chat(client: Any) -> None:
    how: dict = dict(model="tiny", messages=MESSAGES, max_completion_tokens=12, temperature=0)
    whole = client.chat.completions.create(**how)
    assert whole.choices[0].message.role == "assistant" and whole.usage.completion_tokens == 12
    parts = list(client.chat.completions.create(**how, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    same = client.completions.create(
        model="tiny", prompt="w3 w4 w1 w5 w6 w7 w2", max_tokens=12, temperature=0
    )
    assert same.choices[0].text == text
    # the next turn, as clients send it back
    message = whole.choices[0].message.model_dump()
    turns = [*MESSAGES, message, {"role": "user", "content": [{"type": "text", "text": "w8"}]}]
    assert client.chat.completions.create(model="tiny", messages=turns, max_tokens=3).choices


def test_stop_strings(client: Any) -> None:
    how: dict = dict(model="tiny", prompt=PROMPT, max_tokens=30, temperature=0)
    full = client.completions.create(**how).choices[0].text
    stop = full.split(" ")[7] + " " + full.split(" ")[8][:1]
    for stops in (stop, ["never there", stop]):
        choice = client.completions.create(**how, stop=stops).choices[0]
        assert choice.text == full[: full.index(stop)] and choice.finish_reason == "stop"
    streamed = client.completions.create(**how, stop=stop, stream=True)
    assert "".join(part.choices[0].text for part in streamed) == full[: full.index(stop)]


def test_seeds_and_choices(client: Any) -> None:
    how: dict = dict(model="tiny", prompt=PROMPT, max_tokens=15, temperature=1.5, top_p=0.95)
    first = client.completions.create(**how, seed=7).choices[0].text
    assert client.completions.create(**how, seed=7).choices[0].text == first
    assert client.completions.create(**how, seed=8).choices[0].text != first
    assert client.completions.create(**how).choices[0].text != first
    three = client.completions.create(**how, seed=7, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.choices[0].text == first and len({choice.text for choice in three.choices}) == 3
    assert (three.usage.prompt_tokens, three.usage.completion_tokens) == (50, 45)
    two = client.completions.create(model="tiny", prompt=[PROMPT, "w1 w2"], max_tokens=5, temperature=0)
    assert two.usage.prompt_tokens == 52 and len(two.choices) == 2
    texts = {0: "", 1: ""}
    for part in client.completions.create(
        model="tiny", prompt=[PROMPT, "w1 w2"], max_tokens=5, temperature=0, stream=True
    ):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == {0: two.choices[0].text, 1: two.choices[1].text}


def test_models_health_metrics(client: Any, url: str) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    before = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=2)
    assert before.usage.prompt_tokens_details.cached_tokens == 0  # shorter than what is held at least
    text = httpx.get(f"{url}/metrics").text
    assert float(re.findall(r"^sparq_ipu_new_tokens_total (.*)$", text, re.M)[0]) >= 2
    assert 'sparq_ipu_requests_total{outcome="length"}' in text
    assert "sparq_ipu_between_tokens_seconds_bucket" in text


def test_cached_tokens_are_reported(client: Any) -> None:
    long = " ".join(f"w{token}" for token in tokens_of(300, seed=9)[0].tolist())
    cached = [
        client.completions.create(model="tiny", prompt=long, max_tokens=2).usage.prompt_tokens_details
        for _ in range(2)
    ]
    assert [details.cached_tokens for details in cached] == [0, 256]


WRONG: list = [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"n": 1000}, "n"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [1, 101]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"stop": [1]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"logprobs": 1000}, "logprobs"),
    ({"seed": 1 << 70}, "seed"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"logit_bias": {"w1": 1}}, "logit_bias"),
    ({"logit_bias": {"101": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"suffix": "w1"}, "suffix"),
    ({"best_of": 0}, "best_of"),
    ({"max_tokens": CONTEXT, "echo": True}, "prompt"),
    ({"tools": [{}]}, "tools"),
    ({"temprature": 1}, "temprature"),
    ({"prompt": "w1 " * (CONTEXT + 1)}, "prompt"),
    ({"max_tokens": CONTEXT}, "prompt"),
]


@pytest.mark.parametrize("field, name", WRONG)
def test_wrong_fields(url: str, field: dict, name: str, caplog: Any) -> None:
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "w1 w2", **field})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and name in f"{error['param']} {error['message']}"
    assert "w1 w1" not in answer.text


def test_too_long_a_prompt_has_the_code_of_openai(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt=[1] * CONTEXT, max_tokens=1)
    assert refused.value.code == "context_length_exceeded"
    assert client.completions.create(model="tiny", prompt=[1] * (CONTEXT - 1), max_tokens=1).choices


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"w1"',
        b"\xff\xfe",
        b"null",
        b'{"prompt": "w1", "temperature": NaN}',
        b'{"prompt": "w1", "top_p": Infinity}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100000,
    ],
)
def test_bodies_that_are_no_request(url: str, body: bytes) -> None:
    answer = httpx.post(f"{url}/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_the_page(url: str) -> None:
    """One file, which asks this server alone."""
    page = httpx.get(url)
    assert page.headers["content-type"].startswith("text/html") and "<script>" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    paths = re.findall(r"fetch\(\"([^\"]*)\"", page.text)
    assert sorted(paths) == ["/v1/chat/completions", "/v1/models"] and "http" not in page.text


def test_other_paths_methods_and_models(url: str) -> None:
    for answer, status in (
        (httpx.get(f"{url}/v1/none"), 404),
        (httpx.get(f"{url}/v1/completions"), 405),
        (httpx.post(f"{url}/v1/completions", json={"prompt": "w1", "model": "gpt"}), 404),
    ):
        assert answer.status_code == status and answer.json()["error"]["message"]


def test_bodies_that_are_too_large(url: str) -> None:
    body = b'{"prompt": "' + b"w" * (2 << 20) + b'"}'
    assert httpx.post(f"{url}/v1/completions", content=body).status_code == 413

    def pieces() -> Any:  # of which the length is not said
        for _ in range(40):
            yield b" " * (1 << 16)

    assert httpx.post(f"{url}/v1/completions", content=pieces()).status_code == 413


def test_clients_that_vanish_free_their_places(url: str, engine: Any) -> None:
    cancelled = engine.metrics.requests.labels("cancelled")._value
    body = {"prompt": "w1 w2", "max_tokens": 1000, "temperature": 0}
    for stream in (True, False):
        before = cancelled.get()
        try:
            with httpx.stream(
                "POST", f"{url}/v1/completions", json={**body, "stream": stream}, timeout=0.2
            ) as answer:
                next(answer.iter_raw())
        except httpx.ReadTimeout:
            assert not stream
        wait_until(lambda: is_idle(engine))
        assert cancelled.get() == before + 1


def test_a_stream_that_is_closed_is_cancelled(client: Any, engine: Any) -> None:
    before = engine.metrics.requests.labels("cancelled")._value.get()
    stream = client.completions.create(model="tiny", prompt="w1", max_tokens=1000, temperature=0, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: is_idle(engine))
    assert engine.metrics.requests.labels("cancelled")._value.get() == before + 1


def test_too_many_get_429() -> None:
    with running_engine(n_places=1, max_waiting=0) as engine, running_server(engine) as url:
        running = Asked(engine, [1, 2], 1000)
        assert running.begun.wait(60)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "w1"})
        assert answer.status_code == 429 and answer.headers["retry-after"]
        engine.cancel(running.request)
        wait_until(lambda: is_idle(engine))
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "w1"}).status_code == 200
        engine.close()
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "w1"}).status_code == 503
        assert httpx.get(f"{url}/health").status_code == 503


def test_a_failed_request_is_an_error_of_the_server(monkeypatch: Any) -> None:
    with running_engine(n_places=1) as engine, running_server(engine) as url:

        def fails(*_: Any) -> Any:
            raise RuntimeError("secret")

        monkeypatch.setattr(engine.contexts, "step", fails)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "w1", "max_tokens": 5})
        assert answer.status_code == 500 and "secret" not in answer.text
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with client, pytest.raises(openai.APIError, match="could not be made"):
            list(client.completions.create(model="tiny", prompt="w1", max_tokens=5, stream=True))


def test_an_api_key() -> None:
    """As the client of OpenAI gives it; how else it may be given: test_serve_odd.py."""
    with running_engine(n_places=1) as engine, running_server(engine, api_key="right") as url:
        for key, is_right in (("wrong", False), ("right", True)):
            with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                with contextlib.nullcontext() if is_right else pytest.raises(openai.AuthenticationError):
                    client.models.list()
        assert httpx.get(f"{url}/health").status_code == 200


@pytest.fixture
def many_files() -> Any:
    """Both ends of each connection are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if enough < 2300:
        pytest.skip(f"a process may have {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_open_connections(url: str, client: Any, many_files: Any) -> None:
    """Idle; in the middle of a request's head, or of its body, that never ends."""
    port = int(url.rpartition(":")[2])
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 33\r\n"
    connections = []
    try:
        for index in range(1000):
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
            connections.append(connection)
            connection.sendall([b"", head, head + b"\r\n{"][index % 3])
        for _ in range(3):
            assert client.completions.create(model="tiny", prompt="w1", max_tokens=2).choices
        last = connections[-1]  # idle until now, as the 333 like it: it is served all the same
        assert len(connections) % 3 == 1
        last.sendall(head + b'\r\n{"prompt": "w1", "max_tokens": 2}')
        assert last.recv(12) == b"HTTP/1.1 200"
        assert httpx.get(f"{url}/health").status_code == 200
    finally:
        for connection in connections:
            connection.close()
    assert client.completions.create(model="tiny", prompt="w1", max_tokens=2).choices


def test_nothing_of_a_prompt_is_logged(url: str, caplog: Any, capfd: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        secret = "w77 w78 w79"
        chat = {"messages": [{"role": "user", "content": secret}], "max_tokens": 2}
        httpx.post(f"{url}/v1/completions", json={"prompt": secret, "max_tokens": 2})
        httpx.post(f"{url}/v1/completions", json={"prompt": secret, "temperature": -1})
        httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=60)
        httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "x", "content": secret}]})
    out, err = capfd.readouterr()
    assert "w78" not in caplog.text + out + err
    assert json.dumps(secret) not in caplog.text
