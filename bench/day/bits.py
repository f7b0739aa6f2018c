# SPDX-License-Identifier: Apache-2.0
"""Every kernel bit for bit: the conformance vectors (docs/vectors.md), each file in each memory that it is
for."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from .items import Context, Item

VECTORS = Path(__file__).resolve().parents[2] / "tests" / "vectors"
sys.path.append(str(VECTORS))
from vector_file import FOLDER, read  # noqa: E402
from vector_play import has_index, is_for_sram, play  # noqa: E402

#: of a quick day every so many of the files, of each memory
EVERY = 16
#: tiles of an emulated IPU: bits do not depend on them, and the time that a test takes does
TILES = 8


def takes(memory: str, records: list[Any]) -> bool:
    """Whether a cache in this memory can do what a file says."""
    if not has_index(memory, records):
        return False
    bits = records[0].numbers
    if memory == "tiered":
        return bool(bits["index_bits"] < 16)
    return bool(bits["row_bits"] == 16) and (memory == "streaming" or is_for_sram(records))


def compared(path: Path, memory: str, context: Context) -> dict[str, Any]:
    options: dict[str, Any] = {"memory": memory}
    if context.device == "emulator":
        options["n_tiles"] = TILES
    left_out = {"streaming": (), "tiered": ("dense",), "sram": ("sparq", "window")}[memory]
    wrong = play(read(path), context.device, left_out, **options)
    return dict(bit_exact=not wrong, differs=wrong[:8] or None)


def items(context: Context) -> list[Item]:
    found = []
    for memory in ("streaming", "tiered", "sram"):
        files = [path for path in sorted(FOLDER.glob("*.vec")) if takes(memory, read(path))]
        for path in files[:: EVERY if context.quick else 1]:
            run = functools.partial(compared, path, memory, context)
            found.append(Item(f"{path.stem} in {memory}", run, limit=1800))
    return found
