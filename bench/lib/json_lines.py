# SPDX-License-Identifier: Apache-2.0
"""The file of --json: rows of one bench, one a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator

from sparq_ipu.commands.command_line import try_writing

#: version of the rows. 2: the same names in all benches; 3: index_bits tells rows apart; 4: a modelled time
#: has its on-chip range; 5: row_bits tells rows apart
SCHEMA = 5
Row = Dict[str, Any]


class JsonLines:
    """The file of --json: rows of one bench, one a line, appended."""

    def __init__(self, path: Path, bench: str) -> None:
        self.path = path
        self.rule = f"be a file that can be written, new or with rows of {bench}.py (schema {SCHEMA})"
        self._wanted = {"schema": SCHEMA, "bench": bench}

    def check(self) -> None:
        """Raises: OSError, or ValueError for a file with other lines."""
        try_writing(self.path)
        self.read()

    def read(self) -> list[Row]:
        """All rows; without a last line that an interruption cut off."""
        if not self.path.is_file():  # none yet, or a pipe
            return []
        return [row for _, row in self._lines(self.path.read_bytes())]

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows; the file is closed again when this returns."""
        if self.path.is_file():
            self._mend()
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _lines(self, data: bytes) -> Iterator[tuple[int, Row]]:
        """Rows, with the place in the file where the line of each ends."""
        end = 0
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            end += len(line)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if line.endswith(b"\n") or not self._cut_off(line):
                    raise ValueError(f"line {number} is not JSON") from None
                return
            found = {name: row.get(name) if isinstance(row, dict) else None for name in self._wanted}
            if found != self._wanted:
                raise ValueError(f"line {number} has {', '.join(f'{k} {v!r}' for k, v in found.items())}")
            yield end, row

    def _cut_off(self, line: bytes) -> bool:
        """Whether the line is the beginning of a row: all rows begin alike."""
        begin = json.dumps(self._wanted)[:-1].encode()
        return line.startswith(begin) or begin.startswith(line)

    def _mend(self) -> None:
        """Make the file end with a whole line: what an interruption cut off is taken away."""
        data = self.path.read_bytes()
        if data.endswith(b"\n") or not data:
            return
        whole = max((end for end, _ in self._lines(data)), default=0)
        if whole == len(data):  # a row, only its line end is missing
            with open(self.path, "ab") as file:
                file.write(b"\n")
        else:
            os.truncate(self.path, whole)
