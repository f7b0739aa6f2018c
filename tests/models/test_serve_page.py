# SPDX-License-Identifier: Apache-2.0
"""The page at / in headless Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from browser import browser
from tiny_server import CONTEXT, running_engine, running_server


def test_a_chat(tmp_path: Path) -> None:
    """Two turns, whose answers come with their speed; an error; a new chat."""
    with running_engine() as engine, running_server(engine) as url, browser(tmp_path) as page:
        page.open(url)
        page.wait("document.querySelector('h1').textContent === 'tiny'")

        def said(kind: str) -> Any:
            return page.value(f"[...document.querySelectorAll('.{kind}')].map(p => p.textContent)")

        for turn in (1, 2):
            page.value("at('used').textContent = ''")
            page.type("w1 <b>w2</b>", "Enter")
            used = page.wait("running === null && at('used').textContent")
            assert re.fullmatch(r"\d+ tokens, [\d.]+ tokens/s; prompt \d+, \d+ cached", used)
            assert said("user") == ["w1 <b>w2</b>"] * turn and page.value("messages.length") == 2 * turn
            assert len(said("assistant")) == turn and all(said("assistant"))
            assert page.value("scrollY > 0 && innerHeight + scrollY >= document.body.scrollHeight - 1")
        page.type("w1 " * CONTEXT, "Enter")
        page.wait("document.querySelector('.error') !== null")
        assert "at most" in said("error")[0] and page.value("messages.length") == 4
        page.value("at('clear').click()")
        assert page.value("at('chat').children.length") == 0
