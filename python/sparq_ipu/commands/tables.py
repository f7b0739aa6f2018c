# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, and documents with generated blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def replace_block(path: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- begin name ... -->` and `<!-- end name -->` of a document."""
    content = path.read_text()
    pattern = re.compile(
        rf"(<!-- begin {re.escape(name)}\b[^>]*-->\n).*?(<!-- end {re.escape(name)} -->)", re.S
    )
    if not pattern.search(content):
        raise ValueError(f"replace_block: {path.name} must have a block {name!r}, got none")
    path.write_text(pattern.sub(lambda m: m.group(1) + text.rstrip("\n") + "\n" + m.group(2), content))
