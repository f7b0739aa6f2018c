# SPDX-License-Identifier: Apache-2.0
"""Generated blocks of documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparq_ipu.commands import tables


def test_replace_block(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- begin x: how -->\nold\n<!-- end x -->\nb\n")
    tables.replace_block(path, "x", "new\\1")
    assert path.read_text() == "a\n<!-- begin x: how -->\nnew\\1\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match=r"replace_block: page\.md must have a block 'y', got none"):
        tables.replace_block(path, "y", "")
