# SPDX-License-Identifier: Apache-2.0
"""Requests to `sparq-ipu serve` that no well-meaning client sends: each gets an answer in the shape of the
API, soon, and the others go on."""

from __future__ import annotations

import contextlib
import http.client as http_client
import itertools
import json
import threading
import time
from typing import Any, Iterator

import pytest
from tiny_server import CONTEXT, Asked, running_engine, running_server

httpx = pytest.importorskip("httpx")
pytest.importorskip("sparq_ipu._cpu")

PATHS: dict[str, dict] = {
    "/v1/completions": {"prompt": "w1"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "w1"}]},
}
OTHERS: dict[str, dict] = {"/tokenize": {"prompt": "w1"}}
#: seconds for one request, whatever it asks for
LIMIT = 20
#: seconds that others wait for `/health`; the server alone takes a hundredth of it
SILENT = 1.0


@pytest.fixture(scope="module")
def engine() -> Any:
    with running_engine(n_places=2, max_waiting=4) as engine:
        yield engine


@pytest.fixture(scope="module")
def http(url: str) -> Any:
    with httpx.Client(base_url=url, timeout=LIMIT) as client:
        yield client


HUGE = "9" * 4000
#: as JSON
ODD_VALUES = [
    *("null", "true", "false", "0", "-1", "1.5", "1e308", "-0.0", "1e999", HUGE, "-" + HUGE),
    *('""', '"w1"', '"\\ud800"', '"\\u0000"', '"' + "w" * 4000 + '"', "[]", "[[]]", "[null]", '["w1", 1]'),
    *("[1, true]", "[-1]", "[" + HUGE + "]", "{}", '{"a": {"b": []}}', "[" * 150 + "]" * 150),
]
FIELDS = [
    *("model", "prompt", "messages", "temperature", "top_p", "seed", "n", "max_tokens", "stop", "stream"),
    *("max_completion_tokens", "stream_options", "logprobs", "top_logprobs", "best_of", "echo", "suffix"),
    *("tools", "tool_choice", "logit_bias", "response_format", "no_such_field", "__class__", ""),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "top_k", "min_p"),
]


def test_odd_values_of_every_field(http: Any, engine: Any, caplog: Any) -> None:
    n_requests = 0
    for (path, body), field, value in itertools.product(PATHS.items(), FIELDS, ODD_VALUES):
        others = {name: given for name, given in {**body, "max_tokens": 1}.items() if name != field}
        text = json.dumps(others)[:-1] + f", {json.dumps(field)}: {value}" + "}"
        answer = http.post(path, content=text)
        n_requests += 1
        assert answer.status_code in (200, 400, 404), (field, value[:50], answer.text[:300])
        assert len(answer.content) < 20000
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error["message"] and error["type"] == "invalid_request_error"
            assert len(answer.text) < 500, (field, value[:50])
    assert n_requests > 1000 and engine.is_alive
    assert not [record for record in caplog.records if record.exc_info or "error" in record.message]


#: what is wrong, and the field that is named
WRONG: list[tuple[str, dict, str]] = [
    ("/v1/completions", {"best_of": 2, "n": 2}, "best_of"),
    ("/v1/completions", {"best_of": True}, "best_of"),
    ("/v1/completions", {"echo": 0}, "echo"),
    ("/v1/completions", {"echo": "no"}, "echo"),
    ("/v1/completions", {"presence_penalty": False}, "presence_penalty"),
    ("/v1/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("/v1/completions", {"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options"),
    ("/v1/completions", {"stop": [""] * 17}, "stop"),
    ("/v1/completions", {"prompt": [1, True]}, "prompt"),
    ("/v1/completions", {"prompt": [[1], "w1"]}, "prompt"),
    ("/v1/chat/completions", {"tools": [{}]}, "tools"),
    ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    ("/v1/chat/completions", {"max_tokens": 10**30}, "max_tokens"),
    ("/v1/chat/completions", {"echo": True}, "echo"),
    ("/v1/chat/completions", {"best_of": 2}, "best_of"),
    ("/tokenize", {"messages": [{"role": "user", "content": "w1"}]}, "prompt"),
]


@pytest.mark.parametrize(("path", "fields", "name"), WRONG)
def test_what_is_wrong_is_named(http: Any, path: str, fields: dict, name: str) -> None:
    answer = http.post(path, json={**{**PATHS, **OTHERS}[path], **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == name, answer.text


def test_neutral_values_are_taken(http: Any) -> None:
    neutral = {"best_of": 1, "n": 2, "echo": False, "repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}
    neutral = {**neutral, "tools": [], "tool_choice": "auto", "logit_bias": {}, "suffix": "", "min_tokens": 0}
    stream = {"stream": True, "stream_options": {"include_usage": False}}
    for fields in (neutral, stream, {"stop": [f"w{at} w{at}" for at in range(16)]}):
        answer = http.post("/v1/completions", json={"prompt": "w1", "max_tokens": 1, **fields})
        assert answer.status_code == 200, answer.text


def test_more_answers_than_ever_fit_are_refused_for_good(http: Any, engine: Any) -> None:
    """Those that fit later are asked to come again; of these, no room ever comes."""
    for prompts, n in ((["w1"] * 7, 1), ([[1]], 7), (["w1", "w2"], 4), ("w1", 32)):
        answer = http.post("/v1/completions", json={"prompt": prompts, "n": n})
        assert answer.status_code == 400 and "retry-after" not in answer.headers
        assert "at most 6 answers" in answer.json()["error"]["message"]
    fits = http.post("/v1/completions", json={"prompt": ["w1", "w2"], "n": 3, "max_tokens": 1})
    assert fits.status_code == 200 and len(fits.json()["choices"]) == 6
    running = [Asked(engine, [1], 900) for _ in range(2)]
    later = http.post("/v1/completions", json={"prompt": ["w1"] * 6})
    for one in running:
        engine.cancel(one.request)
    assert later.status_code == 429 and later.headers["retry-after"]


@contextlib.contextmanager
def longest_silence(url: str) -> Iterator[list[float]]:
    """Meanwhile somebody asks for `/health` again and again: the seconds that each answer took."""
    seconds: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not is_over.is_set():
                start = time.perf_counter()
                assert client.get("/health").status_code == 200
                seconds.append(time.perf_counter() - start)
                time.sleep(0.005)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield seconds
    finally:
        is_over.set()
        asker.join()


def test_no_request_silences_the_server(url: str, http: Any) -> None:
    bodies: list[tuple[str, dict]] = [
        ("/v1/completions", {"prompt": [[1]] * 2000, "n": 32}),
        ("/v1/completions", {"prompt": [[1]] * 20000}),
        ("/v1/completions", {"prompt": ["w"] * 200000}),
        ("/v1/completions", {"prompt": "w " * 400000}),
        ("/v1/completions", {"prompt": [1, "a"] * 100000}),
        ("/v1/completions", {"prompt": "w1", "stop": [1] * 300000}),
        ("/v1/completions", {"prompt": "w1", "metadata": [[[[[]]]]] * 50000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}] * 20000}),
        ("/v1/chat/completions", {"messages": [{"role": "robot"}] * 20000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [0] * 300000}]}),
    ]
    contents = [(path, json.dumps(body).encode()) for path, body in bodies]
    with longest_silence(url) as seconds:
        for path, content in contents * 3:
            start = time.perf_counter()
            answer = http.post(path, content=content)
            assert answer.status_code == 400, answer.text[:300]
            assert time.perf_counter() - start < 5
    assert len(seconds) > 10 and max(seconds) < SILENT


def test_no_body_of_many_lists_is_built(http: Any) -> None:
    """Meanwhile no other thread would run; brackets in a text are no lists."""
    for field, value in (
        ("metadata", [[]] * 10000),
        ("metadata", [{'\\"': {}}] * 5001),
        ("prompt", [[]] * 20000),
    ):
        answer = http.post("/v1/completions", json={"prompt": "w1", field: value})
        assert answer.status_code == 400 and "at most 10000 lists" in answer.json()["error"]["message"]
    for metadata in ("[{" * 20000, '\\"[' * 20000, [[]] * 9990):
        body = {"prompt": "w1", "max_tokens": 1, "metadata": metadata}
        assert http.post("/v1/completions", json=body).status_code == 200


def test_a_text_is_measured_before_it_is_tokenised(http: Any, monkeypatch: Any) -> None:
    text = "w1 " * (64 * CONTEXT // 3 + 1)
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        error = http.post(path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded" and f"{64 * CONTEXT} characters" in error["message"]


def test_any_content_type(http: Any) -> None:
    content = json.dumps({"prompt": "w1", "max_tokens": 1})
    for headers in (
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ):
        assert http.post("/v1/completions", content=content, headers=headers).status_code == 200


def test_a_slash_at_the_end(http: Any) -> None:
    assert http.post("/v1/completions/", json={"prompt": "w1", "max_tokens": 1}).status_code == 200
    assert http.get("/health/").status_code == http.get("/v1/models/").status_code == 200
    assert http.get("//").status_code == 200


def test_a_key_in_any_spelling(engine: Any) -> None:
    with running_server(engine, api_key="right") as url:
        for given, status in (
            ("Bearer right", 200),
            ("bearer right", 200),
            ("BEARER  right", 200),
            ("Bearer wrong", 401),
            ("Bearer right right", 401),
            ("Basic right", 401),
            ("right", 401),
            ("Bearer", 401),
        ):
            answer = httpx.get(f"{url}/v1/models", headers={"authorization": given})
            assert answer.status_code == status, given
        assert httpx.options(f"{url}/v1/models").status_code == 405
        assert httpx.get(f"{url}/v1/models/").status_code == 401


def test_pages_of_other_origins(engine: Any, url: str) -> None:
    ask = {"origin": "https://page.example", "access-control-request-method": "POST"}
    asked = {**ask, "access-control-request-headers": "authorization, content-type"}
    assert "access-control-allow-origin" not in httpx.options(f"{url}/v1/completions", headers=asked).headers
    with running_server(engine, api_key="right", origins=["https://page.example"]) as other:
        allowed = httpx.options(f"{other}/v1/completions", headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        refused = httpx.post(f"{other}/v1/completions", json={}, headers={"origin": "https://page.example"})
        assert refused.status_code == 401 and "access-control-allow-origin" in refused.headers
        foreign = httpx.options(f"{other}/v1/completions", headers={**asked, "origin": "https://a.example"})
        assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_large_body_is_read_to_its_end(url: str, is_chunked: bool) -> None:
    """A client that still writes when the connection is closed sees a reset, and no answer."""
    connection = http_client.HTTPConnection(url.partition("//")[2], timeout=LIMIT)
    with contextlib.closing(connection):
        pieces = [b" " * (1 << 18)] * 64
        body = iter(pieces) if is_chunked else b"".join(pieces)
        connection.request("POST", "/v1/completions", body, encode_chunked=is_chunked)
        answer = connection.getresponse()
        assert answer.status == 413 and json.loads(answer.read())["error"]["message"]
