# SPDX-License-Identifier: Apache-2.0
"""A server of a tiny random model in a thread of the tests."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Iterator, Sequence

import numpy as np
import pytest
from tiny_models import tiny_model, tiny_tokenizer

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
uvicorn = pytest.importorskip("uvicorn")

import sparq_ipu.transformers  # noqa: E402
from sparq_ipu.serve.api import create_app  # noqa: E402
from sparq_ipu.serve.contexts import Contexts  # noqa: E402
from sparq_ipu.serve.engine import Engine, Event, Request, Text  # noqa: E402
from sparq_ipu.serve.metrics import Metrics  # noqa: E402
from sparq_ipu.serve.prompts import Prompts  # noqa: E402
from sparq_ipu.serve.sampling import Sampling  # noqa: E402

#: a small cache, so that tests come to its end
CONTEXT = 1024
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'w3', 'user': 'w1', 'assistant': 'w2'}[m['role']] }} "
    "{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w2 {% endif %}"
)


def served_model(**settings: Any) -> Any:
    """Tiny, with SparQ attention from 40 tokens on."""
    model = tiny_model(max_position_embeddings=CONTEXT)
    sparq_ipu.transformers.enable(model, **{"rank": 8, "top_k": 16, "min_seq_len": 40, **settings})
    return model


def chat_tokenizer() -> Any:
    """Of words, with a template for chats."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@contextlib.contextmanager
def running_engine(
    model: Any = None,
    n_places: int = 4,
    max_waiting: int = 100,
    tokenizer: Any = None,
    looks_up: bool = False,
    context: int = CONTEXT,
) -> Iterator[Engine]:
    """An engine, stopped at the end; the model is then as it was."""
    contexts = Contexts(served_model() if model is None else model, n_places, context)
    engine = Engine(contexts, tokenizer or tiny_tokenizer(), max_waiting, Metrics(), looks_up=looks_up)
    try:
        while engine._untouched:  # the steps of a test are all that come later
            time.sleep(0.001)
        yield engine
    finally:
        engine.stop()
        contexts.close()


class Asked:
    """A request to an engine, and what came of it."""

    def __init__(
        self, engine: Engine, tokens: Any, n_new: int, sampling: Sampling | None = None, **more: Any
    ):
        self.events: list[Event] = []
        #: when each of them came, by the engine's own thread
        self.times: list[float] = []
        self._ended = threading.Event()
        self.begun = threading.Event()
        self.request = Request(
            np.array(tokens, np.int64).ravel(), n_new, sampling or Sampling(0.0), self._take, **more
        )
        self._engine = engine
        engine.submit(self.request)

    def _take(self, event: Event) -> None:
        self.times.append(time.perf_counter())
        self.events.append(event)
        self.begun.set()
        if not isinstance(event, Text):
            self._ended.set()

    def end(self) -> Event:
        """The last event."""
        assert self._ended.wait(60), "no end came"
        return self.events[-1]

    @property
    def tokens(self) -> list[int]:
        """Those of the answer, when it is there."""
        self.end()
        return [token for event in self.events if isinstance(event, Text) for token in event.tokens]

    @property
    def text(self) -> str:
        """The same as text."""
        self.end()
        return "".join(event.text for event in self.events if isinstance(event, Text))


@contextlib.contextmanager
def running_server(
    engine: Engine,
    api_key: str | None = None,
    context: int = CONTEXT,
    origins: Sequence[str] = (),
    prompts: Prompts | None = None,
) -> Iterator[str]:
    """The URL of a server on a free port of this machine."""
    prompts = prompts or Prompts(chat_tokenizer(), context, 101)
    app = create_app(engine, prompts, "tiny", api_key, origins)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
