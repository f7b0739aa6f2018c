# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu serve` as a process."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")

CALL = "import sys; from sparq_ipu.commands.cli import main; sys.exit(main())"


class Process:
    """A server as a process of its own; its log is empty of tracebacks and prompts when it ends."""

    def __init__(self, checkpoint: Path, *words: str):
        call = [sys.executable, "-c", CALL, "serve", "--model", str(checkpoint), "--port", "0", *words]
        self.process = subprocess.Popen(call, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if "running on" in line:
                break
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", self.log[-1])
        assert found, self.log
        self.url = found.group(1)
        self._drain = threading.Thread(target=lambda: self.log.extend(self.process.stderr or ()))
        self._drain.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        self._drain.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def wait_for(self, pattern: str) -> None:
        """Until the metrics have it."""
        while not re.search(pattern, httpx.get(f"{self.url}/metrics").text, re.M):
            pass

    def end(self) -> int:
        """Its exit status."""
        status = self.process.wait(60)
        self._drain.join()
        assert not any("Traceback" in line or "w1" in line for line in self.log), self.log
        return status
