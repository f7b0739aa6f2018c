# SPDX-License-Identifier: Apache-2.0
"""A page in headless Chromium, which is told what to do through two pipes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

SECONDS = 60.0


class Page:
    """One page. Args: the ends of the pipes."""

    def __init__(self, to: Any, of: Any):
        self._to, self._of, self._n, self._held = to, of, 0, b""
        self._session: dict[str, str] = {}

    def call(self, method: str, **params: Any) -> Any:
        """A command of Chromium's protocol."""
        self._n += 1
        sent = dict(id=self._n, method=method, params=params, **self._session)
        os.write(self._to, json.dumps(sent).encode() + b"\0")
        while True:
            while b"\0" not in self._held:
                more = os.read(self._of, 1 << 16)
                assert more, "Chromium ended"
                self._held += more
            message, _, self._held = self._held.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == self._n:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str) -> None:
        target = self.call("Target.createTarget", url=url)["targetId"]
        self._session = dict(
            sessionId=self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        )
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Until it is true."""
        end = time.monotonic() + SECONDS
        while not (value := self.value(expression)):
            assert time.monotonic() < end, expression
            time.sleep(0.02)
        return value

    def type(self, text: str, key: str = "") -> None:
        """Into the element that has the focus, then a key."""
        self.call("Input.insertText", text=text)
        if key:
            for kind in ("keyDown", "keyUp"):
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    text="\r",
                    windowsVirtualKeyCode=13,
                )

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Skips the test where Chromium is not installed. folder: for its files."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    (their_in, to), (of, their_out) = os.pipe(), os.pipe()
    words = [
        chromium,
        "--headless=new",
        "--no-sandbox",
        f"--user-data-dir={folder}",
        "--remote-debugging-pipe",
    ]
    ends = f'exec "$@" 3<&{their_in} 4>&{their_out} 2> /dev/null'
    process = subprocess.Popen(["bash", "-c", ends, "bash", *words], pass_fds=(their_in, their_out))
    os.close(their_in), os.close(their_out)
    try:
        page = Page(to, of)
        yield page
        page.call("Browser.close")
    finally:
        os.close(to)
        os.close(of)
        process.wait(SECONDS)
