# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` as a process: it starts, answers, ends; and what it refuses before it starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_checkpoint

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
pytest.importorskip("sparq_ipu._cpu")

from sparq_ipu.serve import command  # noqa: E402

CALL = "import sys; from sparq_ipu.commands.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: Any) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model"))


def test_sigterm_in_the_middle_finishes_what_has_begun(checkpoint: Path) -> None:
    words = ["serve", "--model", str(checkpoint), "--port", "0", "--places", "1", "--grace", "60"]
    process = subprocess.Popen(
        [sys.executable, "-c", CALL, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if "running on" in line:
            break
    found = re.search(r"running on (http://127\.0\.0\.1:\d+)", log[-1])
    assert found, log
    url = found.group(1)
    rest: list = []
    drain = threading.Thread(target=lambda: rest.extend(process.stderr))  # type: ignore[arg-type]
    drain.start()
    waiting: list = []
    body = {"prompt": "w1 w2", "max_tokens": 300, "temperature": 0, "stream": True}
    late = threading.Thread(
        target=lambda: waiting.append(httpx.post(f"{url}/v1/completions", json={"prompt": "w3"}, timeout=60))
    )
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        late.start()
        while not re.search(r"^sparq_ipu_waiting 1", httpx.get(f"{url}/metrics").text, re.M):
            pass
        process.send_signal(signal.SIGTERM)
        text = [first, *lines]
    late.join()
    assert "data: [DONE]" in text[-2:]
    assert waiting[0].status_code == 503
    assert process.wait(60) in (0, -signal.SIGTERM)  # uvicorn sends itself what it was sent
    drain.join()
    process.stderr.close()
    assert not any("Traceback" in line or "w1" in line for line in [*log, *rest])


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "nowhere"], "path must exist"),
        (["--dense", "--rank", "8"], "serve: --dense must be without settings of SparQ"),
        (["--settings", "a.json", "--top-k", "8"], "serve: --settings must be in place of"),
        (["--api-key-file", "nowhere"], "serve: --api-key-file must be a file"),
        (["--layer-settings", "x"], "serve: --layer-settings must be"),
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


def test_threads_wait_actively_for_a_short_time(monkeypatch: Any) -> None:
    seen: list = []

    def build(_: Any) -> Any:
        seen.append(os.environ["GOMP_SPINCOUNT"])
        raise ValueError("not now")

    monkeypatch.setattr(command, "build", build)
    for said in (None, "7"):
        monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
        if said:
            monkeypatch.setenv("GOMP_SPINCOUNT", said)
        assert command.main([]) == 2
    monkeypatch.delenv("GOMP_SPINCOUNT")
    assert seen == ["10000", "7"]


def test_it_listens_to_this_machine_alone_by_default() -> None:
    arguments = command._parser("sparq-ipu serve").parse_args([])
    assert arguments.host == "127.0.0.1"
