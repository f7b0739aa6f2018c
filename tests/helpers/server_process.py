# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` as a process.

Importing torch and transformers takes longer than the rest, so these processes are forked from one that has
imported them. Our own modules are imported in each."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Sequence

import pytest

httpx = pytest.importorskip("httpx")

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "transformers.models.llama.modeling_llama", "transformers.generation"]
)


def serve(words: Sequence[str], log: Any) -> None:
    """In the process."""
    os.dup2(log.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from sparq_ipu.commands.cli import main

    sys.exit(main(["serve", *words]))


class Process:
    """A server as a process of its own; its log is empty of tracebacks and prompts when it ends."""

    def __init__(self, checkpoint: Path, *words: str):
        words = ("--model", str(checkpoint), "--port", "0", *words)
        read, write = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=serve, args=(words, write))
        self.process.start()
        write.close()
        self._stderr = open(os.dup(read.fileno()), errors="replace")
        read.close()
        self.log: list[str] = []
        for line in self._stderr:
            self.log.append(line)
            if "running on" in line:
                break
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", self.log[-1])
        assert found, self.log
        self.url = found.group(1)
        self._drain = threading.Thread(target=lambda: self.log.extend(self._stderr))
        self._drain.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.join()
        self._drain.join()
        self._stderr.close()

    def wait_for(self, pattern: str) -> None:
        """Until the metrics have it."""
        while not re.search(pattern, httpx.get(f"{self.url}/metrics").text, re.M):
            pass

    def send(self, signal_number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal_number)

    def end(self) -> int | None:
        """Its exit status."""
        self.process.join(60)
        status = self.process.exitcode
        self._drain.join()
        assert not any("Traceback" in line or "w1" in line for line in self.log), self.log
        return status
