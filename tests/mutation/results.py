# SPDX-License-Identifier: Apache-2.0
"""The table of results: what became of each mutant when it was run first, and when it was run last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mutants import Mutant

FILE = Path(__file__).resolve().parent / "results.tsv"


class Row(NamedTuple):
    """One mutant. The results are the words of the runner's `--help`."""

    file: str
    #: what is broken there
    why: str
    #: when it was run first; tests were added where none noticed
    first: str
    last: str
    #: a test that failed in the last run; where none did, the reason
    noticed_by: str

    @property
    def key(self) -> tuple[str, str]:
        """Numbers of mutants change when others come in between; this does not."""
        return self.file, self.why


def read(file: Path = FILE) -> dict[tuple[str, str], Row]:
    """Rows by their keys; nothing where there is no file."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.exists() else []
    return {row.key: row for row in (Row(*line.split("\t")) for line in lines)}


def write(rows: dict[tuple[str, str], Row], file: Path = FILE) -> None:
    lines = ["\t".join(Row._fields), *("\t".join(rows[key]) for key in sorted(rows))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def record(file: Path, mutant: Mutant, result: str, detail: str) -> None:
    """Put the result of one mutant into a table; what its first run said is kept."""
    rows = read(file)
    if result in ("killed", "NOTICED"):
        found = re.match(r"(?:FAILED|ERROR) (\S+?)(?:\[|\s|$)", detail)
        detail = found.group(1) if found else "no result: the process ended or did not end"
    row = Row(mutant.file, mutant.why, result, result, " ".join(detail.split())[:300])
    if row.key in rows:
        row = row._replace(first=rows[row.key].first)
    rows[row.key] = row
    write(rows, file)
