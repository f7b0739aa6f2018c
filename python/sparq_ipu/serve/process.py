# SPDX-License-Identifier: Apache-2.0
"""The process of a server: its socket, and how it ends."""

from __future__ import annotations

import resource
import threading
from types import FrameType
from typing import Any

import uvicorn

from sparq_ipu.serve.engine import Engine


class _Server(uvicorn.Server):
    """A server that tells the engine at once when it is to end (SIGINT, SIGTERM): what waits is refused, what
    runs is finished."""

    def __init__(self, config: uvicorn.Config, engine: Engine):
        super().__init__(config)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # In a thread of its own, for a signal may come while this one holds the engine's lock.
        threading.Thread(target=self._engine.close, daemon=True).start()
        super().handle_exit(sig, frame)


def run(app: Any, engine: Engine, host: str, port: int, grace: float) -> int:
    """Serve until a signal says to end; then for `grace` seconds what has begun. Returns the exit status."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # a connection is a file
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = uvicorn.Config(
        app, host=host, port=port, timeout_graceful_shutdown=max(1, round(grace)), log_level="info"
    )
    try:
        _Server(config, engine).run()
    finally:
        engine.stop()
    return 0
