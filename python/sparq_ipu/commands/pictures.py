# SPDX-License-Identifier: Apache-2.0
"""Pictures with a digest of the rows that they show: a test can tell when one is older than its rows."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

_KEY = b"Rows"


def digest(shown: Any) -> str:
    """A name for what a picture shows: anything that JSON can hold."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def save(figure: Any, path: Path, shown: Any, **options: Any) -> Path:
    """Write a PNG of a matplotlib figure, with the digest of what it shows inside, and close the figure."""
    from matplotlib import pyplot

    figure.savefig(path, format="png", metadata={_KEY.decode(): digest(shown)}, **options)
    pyplot.close(figure)
    return path


def digest_in(path: Path) -> str | None:
    """The digest in a PNG that `save` wrote; None: it has none."""
    content, at = path.read_bytes(), 8
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if kind == b"tEXt" and data.startswith(_KEY + b"\0"):
            return data.partition(b"\0")[2].decode()
        at += size + 12
    return None
