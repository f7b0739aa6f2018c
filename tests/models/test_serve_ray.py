# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` with Ray Serve: two machines, which this one plays."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import save_checkpoint, tokens_of

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

pytestmark = pytest.mark.filterwarnings("ignore")

#: more than choose a machine
N_SHARED = 1100


@pytest.fixture(scope="module")
def url(tmp_path_factory: Any) -> Any:
    ray = pytest.importorskip("ray", reason="could not import 'ray'")
    from ray import serve
    from ray.cluster_utils import Cluster

    from sparq_ipu.serve.ray_deployment import deploy

    checkpoint = save_checkpoint(tmp_path_factory.mktemp("model"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2}, connect=True)
    cluster.add_node(num_cpus=2)
    options = f"--model {shlex.quote(str(checkpoint))} --name tiny --context 2048 --places 16 --threads 1"
    try:
        serve.start(http_options={"port": port})
        serve.run(deploy({"machines": "2", "options": options}))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def test_an_answer_comes_in_pieces_and_ends_with_its_client() -> None:
    """Without Ray's processes: what a machine makes of an application."""
    pytest.importorskip("ray.serve")
    from sparq_ipu.serve.ray_deployment import Machine

    ended: list = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"asked" and scope == {"path": "/"}
        await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        try:
            await receive()  # a client that stays says nothing more
        finally:
            ended.append(True)

    async def client() -> list:
        machine = SimpleNamespace(_app=app)
        parts = Machine.func_or_class.answer(machine, {"path": "/"}, b"asked")
        got = [await parts.__anext__(), await parts.__anext__()]
        assert not ended
        await parts.aclose()
        await asyncio.sleep(0.01)
        assert ended
        return got

    assert asyncio.run(client()) == [(201, [(b"a", b"b")]), b"one"]


def ask(url: str, tokens: list, n_new: int = 2, **more: Any) -> Any:
    body = {"prompt": tokens, "max_tokens": n_new, "temperature": 0, **more}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def metric(url: str, name: str) -> dict[str, float]:
    """A figure of each machine, by the processes that answer; requests that say nothing go to any."""
    seen: dict = {}
    deadline = time.monotonic() + 120
    while len(seen) < 2:
        assert time.monotonic() < deadline, seen
        text = httpx.get(f"{url}/metrics", timeout=60).text
        created = re.search(r"^sparq_ipu_new_tokens_created (.*)$", text, re.M)
        value = re.search(rf"^sparq_ipu_{name} (.*)$", text, re.M)
        assert created and value
        seen[created[1]] = float(value[1])
    return seen


@pytest.mark.slow
def test_texts_that_begin_alike_reach_the_same_machine(url: str) -> None:
    """So what they share is held there; and both machines get some."""
    texts = [tokens_of(N_SHARED, seed=seed)[0].tolist() for seed in range(10)]
    held: list = [[], []]
    for ending in (0, 1):
        for text in texts:
            answer = ask(url, [*text, 5, 6 + ending])
            held[ending].append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert held == [[0] * 10, [1024] * 10]
    n_new = metric(url, "new_tokens_total")
    assert sum(n_new.values()) == 40 and all(value >= 4 for value in n_new.values())


@pytest.mark.slow
def test_streams_errors_and_paths(url: str) -> None:
    prompt = tokens_of(50)[0].tolist()
    whole = ask(url, prompt, 20)["choices"][0]["text"]
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        parts = [line for line in answer.iter_lines() if line]
    assert parts[-1] == "data: [DONE]" and len(parts) > 10
    assert "".join(re.findall(r'"text": "([^"]*)"', "".join(parts))) == whole
    assert httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"] == "tiny"
    assert httpx.get(f"{url}/health", timeout=60).status_code == 200
    assert httpx.get(f"{url}/v1/none", timeout=60).status_code == 404
    for body_of_none in (b"{", b"[]", b'{"messages": 3}', b'{"prompt": [[]]}'):
        answer = httpx.post(f"{url}/v1/completions", content=body_of_none, timeout=60)
        assert answer.status_code == 400 and answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_client_that_vanishes_frees_its_place(url: str) -> None:
    prompts = ([1, token] for token in range(10, 60))
    endless = next(p for p in prompts if ask(url, p, 1900)["choices"][0]["finish_reason"] == "length")
    body = {"prompt": endless, "max_tokens": 1900, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_raw())
    deadline = time.monotonic() + 60
    while 'requests_total{outcome="cancelled"} 1.0' not in httpx.get(f"{url}/metrics", timeout=60).text:
        assert time.monotonic() < deadline
    assert sum(metric(url, "running").values()) == 0
