# SPDX-License-Identifier: Apache-2.0
"""The digest that `sparq_ipu.commands.pictures.save` wrote into a picture."""

from __future__ import annotations

import struct
from pathlib import Path

from sparq_ipu.commands.pictures import KEY


def digest_in(path: Path) -> str | None:
    """The digest in a PNG; None: it has none."""
    content, at = path.read_bytes(), 8
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if kind == b"tEXt" and data.startswith(KEY.encode() + b"\0"):
            return data.partition(b"\0")[2].decode()
        at += size + 12
    return None
