# SPDX-License-Identifier: Apache-2.0
"""Pages of tables and pictures, as one HTML file."""

from __future__ import annotations

import base64
import dataclasses
import html
from typing import Any, Sequence

from sparq_ipu.commands.extras import hint

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:2px 10px;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)


@dataclasses.dataclass(frozen=True)
class Section:
    """One part of a page."""

    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: str | None = None  # file name without ending


def as_html(parts: Sequence[Section], pictures: dict[str, bytes], title: str) -> str:
    """The page; pictures are inside."""
    name = html.escape(title)
    out = [f"<!doctype html><meta charset=utf-8><title>{name}</title><style>{STYLE}</style><h1>{name}</h1>"]
    for part in parts:
        out.append(f"<h2>{html.escape(part.title)}</h2><p>{html.escape(part.text)}</p>")
        if part.picture in pictures:
            image = base64.b64encode(pictures[part.picture]).decode()
            out.append(f'<img alt="{html.escape(part.title)}" src="data:image/png;base64,{image}">')
        if part.rows:
            header = "".join(f"<th>{html.escape(cell)}</th>" for cell in part.header)
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
                for row in part.rows
            )
            out.append(f"<table><tr>{header}</tr>{body}</table>")
    return "\n".join(out) + "\n"


def load_matplotlib(op: str) -> Any:
    """`matplotlib.pyplot`, which needs no display.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise RuntimeError(
            f"{op}: matplotlib must be installed for pictures ({hint('matplotlib')}), got {error}"
        ) from None
    return plt
