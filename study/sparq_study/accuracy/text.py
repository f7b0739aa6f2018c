# SPDX-License-Identifier: Apache-2.0
"""Public-domain text in several genres, shipped with the package (data/ORIGIN.md says where it is from)."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "data"
#: set of texts -> its folder, its genres. Settings are chosen on "study"; "held_out" has other works, which
#: are only for confirming what was chosen.
TEXTS = {
    "study": (_FOLDER, ("play", "novel", "speech")),
    "held_out": (_FOLDER / "held_out", ("play", "milton", "speech")),
}


def excerpts(texts: str = "study") -> list[tuple[str, str]]:
    """(name, text) of every excerpt of a set, about 24,000 characters each. Genres alternate."""
    folder, genres = TEXTS[texts]
    by_genre = [sorted(folder.glob(f"{genre}_*.txt")) for genre in genres]
    if not all(by_genre):
        raise FileNotFoundError(f"accuracy: excerpts must be installed, got none of some genre in {folder}")
    return [(path.stem, path.read_text(encoding="ascii")) for group in zip(*by_genre) for path in group]
