# SPDX-License-Identifier: Apache-2.0
"""Public-domain text in three genres, shipped with the package (data/ORIGIN.md says where it is from)."""

from __future__ import annotations

from pathlib import Path

GENRES = ("play", "novel", "speech")
_FOLDER = Path(__file__).parent / "data"


def excerpts() -> list[tuple[str, str]]:
    """(name, text) of every excerpt, about 24,000 characters each. Genres alternate."""
    by_genre = [sorted(_FOLDER.glob(f"{genre}_*.txt")) for genre in GENRES]
    if not all(by_genre):
        raise FileNotFoundError(f"accuracy: excerpts must be installed, got none of some genre in {_FOLDER}")
    return [(path.stem, path.read_text(encoding="ascii")) for group in zip(*by_genre) for path in group]
