# SPDX-License-Identifier: Apache-2.0
"""Mutants by hand: semantic breaks that a generator of operator swaps would not find (by_hand.tsv).

A row quotes as little source as possible. White space does not count, and a file that moves within its top
folder is found by its name, so a row survives reformatting and moves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).resolve().with_name("by_hand.tsv")


class ByHand(NamedTuple):
    """One break of one file."""

    file: str
    #: what breaks, in words
    why: str
    old: str
    new: str

    def path_in(self, root: Path) -> Path:
        """The file, also after a move: the same name somewhere below the same top folder."""
        if (root / self.file).is_file():
            return root / self.file
        top, name = self.file.split("/")[0], self.file.rsplit("/", 1)[1]
        found = sorted((root / top).rglob(name))
        if len(found) != 1:
            raise ValueError(f"{self.file}: no longer applies ({self.why}): {len(found)} files of this name")
        return found[0]

    def broken(self, text: str) -> str:
        """The file's text with this break."""
        tokens = re.findall(r"\w+|[^\w\s]", self.old)
        found = list(re.finditer(r"\s*".join(map(re.escape, tokens)), text))
        if len(found) != 1:
            raise ValueError(
                f"{self.file}: no longer applies ({self.why}): {self.old!r} occurs {len(found)} times"
            )
        return text[: found[0].start()] + self.new + text[found[0].end() :]


def read(path: Path = LIST) -> list[ByHand]:
    """The list."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [ByHand(*line.split("\t")) for line in lines]
