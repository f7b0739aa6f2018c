# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, and documents with generated blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable, Sequence


def kernel_label(
    kernel: str,
    index_bits: int | None = 16,
    row_bits: int | None = 16,
    index_components: int | None = 0,
) -> str:
    """A kernel as tables call it: with the bits of its cache's key index and of its rows, where these are not
    16, and with the number of components in the index, where these are not all."""
    index = "" if index_bits in (None, 16) else f" int{index_bits}"
    index += f", {index_components} components" if index_components else ""
    return kernel + index + ("" if row_bits in (None, 16) else f", rows int{row_bits}")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def replace_block(path: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- begin name ... -->` and `<!-- end name -->` of a document.

    Raises:
        ValueError: the document has no such block.
    """
    content = path.read_text()
    pattern = re.compile(
        rf"(<!-- begin {re.escape(name)}\b[^>]*-->\n).*?(<!-- end {re.escape(name)} -->)", re.S
    )
    if not pattern.search(content):
        raise ValueError(f"replace_block: {path.name} must have a block {name!r}, got none")
    path.write_text(pattern.sub(lambda m: m.group(1) + text.rstrip("\n") + "\n" + m.group(2), content))
