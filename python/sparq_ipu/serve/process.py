# SPDX-License-Identifier: Apache-2.0
"""The process of a server: its socket, and how it ends."""

from __future__ import annotations

import gc
import resource
import threading
from types import FrameType
from typing import Any

import uvicorn

from sparq_ipu.serve.engine import Engine

#: seconds for the last bytes of answers, after the engine has ended
_LAST_SECONDS = 5


class _Server(uvicorn.Server):
    """A server that listens until its engine has ended.

    A signal (SIGINT, SIGTERM) closes the engine: what waits is refused, what runs has `grace` seconds and
    then fails. New requests and `/health` get status 503 meanwhile. With a second signal what runs fails at
    once; a third one waits for nobody.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, grace: float):
        super().__init__(config)
        self._engine, self._grace = engine, grace
        self._n_signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._n_signals += 1
        if self._n_signals > 2:
            self.should_exit = self.force_exit = True
            return
        grace = self._grace if self._n_signals == 1 else 0.0
        # In a thread of its own, for a signal may come while this one holds the engine's lock.
        threading.Thread(target=self._end, args=(grace,), daemon=True).start()

    def _end(self, grace: float) -> None:
        self._engine.stop(grace)
        self.should_exit = True


def run(app: Any, engine: Engine, host: str, port: int, grace: float) -> int:
    """Serve until a signal comes, then finish answers for `grace` seconds. Returns the exit status."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # a connection is a file
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        timeout_graceful_shutdown=_LAST_SECONDS,
        log_level="info",
        proxy_headers=False,
    )
    server = _Server(config, engine, grace)
    gc.freeze()  # to look for garbage in PyTorch and the model stops all threads for 0.1 s and more
    try:
        server.run()
    finally:
        engine.stop()
    return 0
