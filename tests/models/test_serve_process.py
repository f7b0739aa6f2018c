# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` as a process: it starts, answers, ends; and what it refuses before it starts."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
from gguf_files import a_gguf
from server_process import Process
from tiny_models import tiny_model

from sparq_ipu import generate
from sparq_ipu.serve import command, process
from sparq_ipu.transformers.loading.checkpoints import Checkpoint

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
pytest.importorskip("sparq_ipu._cpu")


def asked(url: str, answers: list, **body: Any) -> threading.Thread:
    """A thread that waits for an answer."""

    def ask() -> None:
        answers.append(httpx.post(f"{url}/v1/completions", json={"prompt": "w1 w2", **body}, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_sigterm_in_the_middle_finishes_what_has_begun(checkpoint: Path) -> None:
    with Process(checkpoint, "--places", "1", "--grace", "60") as server:
        waiting: list = []
        body = {"prompt": "w1 w2", "max_tokens": 300, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            late = asked(server.url, waiting)
            server.wait_for("^sparq_ipu_waiting 1")
            server.send(signal.SIGTERM)
            text = [first, *lines]
        late.join()
        assert "data: [DONE]" in text[-2:]
        assert waiting[0].status_code == 503
        assert server.end() == 0


def test_what_is_not_done_within_the_grace_is_told_so(checkpoint: Path) -> None:
    """A stream gets an error, any other answer status 503; and until then the server says that it ends."""
    with Process(checkpoint, "--places", "2", "--context", "30000", "--grace", "2") as server:
        whole: list = []
        long = {"max_tokens": 29000, "temperature": 0}
        running = asked(server.url, whole, **long)
        body = {"prompt": "w1 w2", **long, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.wait_for("^sparq_ipu_running 2")
            server.send(signal.SIGINT)
            while httpx.get(f"{server.url}/health").status_code == 200:
                pass
            assert httpx.get(f"{server.url}/health").json() == {"status": "closing"}
            assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "w1"}).status_code == 503
            last = [line for line in lines if line][-1]
        running.join()
        assert json.loads(last.partition("data: ")[2])["error"]["type"] == "server_error"
        assert whole[0].status_code == 503 and whole[0].json()["error"]["type"] == "server_error"
        assert server.end() == 0


def test_a_second_signal_ends_at_once(checkpoint: Path) -> None:
    with Process(checkpoint, "--places", "1", "--context", "30000", "--grace", "1000") as server:
        body = {"prompt": "w1 w2", "max_tokens": 29000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.send(signal.SIGINT)
            while httpx.get(f"{server.url}/health").status_code == 200:
                pass
            server.send(signal.SIGINT)
            start = time.monotonic()
            assert "error" in [line for line in lines if line][-1]
            assert server.end() == 0 and time.monotonic() - start < 20


@pytest.mark.parametrize("key", ["\udcff", "\u00e9", " ", "a\nb", "\x7f"])
@pytest.mark.parametrize("is_file", [True, False])
def test_a_key_that_no_header_has(
    checkpoint: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, key: str, is_file: bool
) -> None:
    path = tmp_path / "key"
    path.write_text(key, encoding="utf-8", errors="surrogateescape")
    if not is_file:
        monkeypatch.setenv(command.KEY_VARIABLE, key)
    monkeypatch.setattr(process, "run", lambda *_: 0)  # where a key is taken, no server shall run for ever
    words = ["--api-key-file", str(path)] if is_file else []
    assert command.main(["--model", str(checkpoint), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"serve: {'--api-key-file' if is_file else command.KEY_VARIABLE} must be")
    assert len(said.splitlines()) == 1


def test_forwarded_addresses_are_not_believed(monkeypatch: Any) -> None:
    seen: list = []

    class Server:
        def __init__(self, config: Any, *_: Any):
            seen.append(config.proxy_headers)

        def run(self) -> None:
            pass

    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setattr(process, "_Server", Server)
    process.run(lambda *_: None, types.SimpleNamespace(stop=lambda: None), "127.0.0.1", 0, 1.0)
    assert seen == [False]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "nowhere"], "path must exist"),
        (["--dense", "--rank", "8"], "serve: --dense must be without settings of SparQ"),
        (["--api-key-file", "nowhere"], "serve: --api-key-file must be a file"),
        (["--places", "1000", "--context", "16000000"], "memory"),
    ],
)
def test_what_is_refused_before_it_starts(checkpoint: Path, capsys: Any, words: list, message: str) -> None:
    assert command.main(["--model", str(checkpoint), *words]) == 2
    assert message in capsys.readouterr().err


def test_the_thread_that_loads_the_model_ends(checkpoint: Path, monkeypatch: Any) -> None:
    """And its helpers with it: beside those of the engine they would be more than processors."""
    from sparq_ipu.serve import contexts

    threads: list = []
    make = contexts.Contexts.__init__

    def noted(*words: Any) -> None:
        threads.append(threading.current_thread())
        make(*words)

    monkeypatch.setattr(contexts.Contexts, "__init__", noted)
    words = ["--model", str(checkpoint), "--places", "1", "--context", "64"]
    _, engine = command.build(command.parsed(words))
    engine.stop()
    assert len(threads) == 1 and not threads[0].is_alive()


@pytest.mark.parametrize("given", [None, "7"])
@pytest.mark.parametrize(
    "words, turns", [(["--dtype", "float32"], "10000"), ([], "10000"), (["--weights", "int4"], None)]
)
@pytest.mark.parametrize("main", [command.main, generate.main])
def test_how_long_threads_wait_is_set_before_pytorch_is_imported(
    checkpoint: Path,
    monkeypatch: Any,
    capsys: Any,
    main: Any,
    words: list,
    turns: str | None,
    given: str | None,
) -> None:
    seen: list = []

    def stop(_: str) -> Any:
        seen.append(os.environ.get("GOMP_SPINCOUNT"))
        raise ImportError("not now")

    monkeypatch.setattr("sparq_ipu.transformers.settings.command.import_torch", stop)
    with monkeypatch.context() as context:
        context.setenv("GOMP_SPINCOUNT", given or "")
        if given is None:
            context.delenv("GOMP_SPINCOUNT")
        prompt = ["--prompt", "w1"] * (main is generate.main)
        assert main(["--model", str(checkpoint), *words, *prompt]) == 2
    assert seen == [given or turns]
    assert capsys.readouterr().err.startswith(f"loading {checkpoint.name} ...\n")


@pytest.mark.parametrize(
    "kind, dtype, turns", [("Q4_0", None, None), ("Q4_0", "float32", "10000"), ("F32", None, "10000")]
)
def test_weights_of_4_bits_in_a_file_wait_as_the_runtime_does(
    tmp_path: Path, monkeypatch: Any, kind: str, dtype: str | None, turns: str | None
) -> None:
    checkpoint = Checkpoint(a_gguf(tmp_path, tiny_model(vocab_size=112), {"_proj": kind}))
    with monkeypatch.context() as context:
        context.setenv("GOMP_SPINCOUNT", "")
        context.delenv("GOMP_SPINCOUNT")
        checkpoint.set_waiting(dtype, None)
        assert os.environ.get("GOMP_SPINCOUNT") == turns


def test_it_listens_to_this_machine_alone_by_default() -> None:
    arguments = command._parser("sparq-ipu serve").parse_args([])
    assert arguments.host == "127.0.0.1"
