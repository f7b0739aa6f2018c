# SPDX-License-Identifier: Apache-2.0
"""Pages of tables and pictures, and generated blocks of documents."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from sparq_ipu.commands import pages, tables
from sparq_ipu.planning import plan_command


def test_what_a_page_shows_is_text() -> None:
    part = pages.Section("a < b", "x & y", ("<head>",), (("<cell>",),))
    page = pages.as_html([part], {}, "<title>")
    for text in ("a &lt; b", "x &amp; y", "&lt;head&gt;", "&lt;cell&gt;", "&lt;title&gt;"):
        assert text in page
    assert "<head>" not in page and "<cell>" not in page and "<script" not in page


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is refused before anything is planned or written."""
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.setattr(plan_command, "plan_model", None)
    with pytest.raises(SystemExit):
        plan_command.main(["Llama-3-8B", "--page", str(tmp_path / "page")])
    install = "pip install '.[plot]' in a checkout of sparq-ipu"
    assert f"plan: matplotlib must be installed for pictures ({install})" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_a_file_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plan_command, "plan_model", None)
    (tmp_path / "page").touch()
    with pytest.raises(SystemExit):
        plan_command.main(["Llama-3-8B", "--page", str(tmp_path / "page")])
    assert "--page must be a directory that can be written, got " in capsys.readouterr().err


def test_replace_block(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- begin x: how -->\nold\n<!-- end x -->\nb\n")
    tables.replace_block(path, "x", "new\\1")
    assert path.read_text() == "a\n<!-- begin x: how -->\nnew\\1\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match=r"replace_block: page\.md must have a block 'y', got none"):
        tables.replace_block(path, "y", "")
