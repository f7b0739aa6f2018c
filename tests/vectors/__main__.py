# SPDX-License-Identifier: Apache-2.0
"""Writes the conformance vectors (docs/vectors.md). They are the same bytes on every machine, and a test
compares them with those that are committed. Other numbers are another version."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from vector_cases import cases
from vector_file import FOLDER, SUMS, sums_of, to_bytes


def write(folder: Path) -> int:
    """Write every case; how many bytes that is."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, case in cases():
        total += (folder / f"{name}.vec").write_bytes(to_bytes(case().records))
    (folder / SUMS).write_text(sums_of(folder), encoding="utf-8")
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python tests/vectors", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where to; default: %(default)s")
    where = parser.parse_args().folder
    print(f"{where}: {write(where)} bytes")
