# SPDX-License-Identifier: Apache-2.0
"""The run directory: records.jsonl, of which every line is on disk before anything else happens.

A line is a dict with "event":

    run     how the day was started: device, quick, versions; the first line. Later ones: it was started again
    start   an item begins
    result  an item has ended: measured, modelled, more; or its error
    note    of a part: what went wrong beside its items

What an interruption cuts off is the last line at most, and is taken away at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any, Dict, Iterator

Record = Dict[str, Any]
SCHEMA = 1
FILE = "records.jsonl"
#: is there for a full disk: its room is for the last lines
RESERVE, RESERVE_BYTES = "reserve", 1 << 20
LOCK = "lock"
#: an item that has begun so often and never ended is not begun again
MOST_STARTS = 2


class DiskFull(Exception):
    """A line could not be written. What was written before is there."""


def without_names(text: str, root: Path) -> str:
    """A text without what says whose machine this is: the checkout, the home directory, the host's name."""
    for private, public in (
        (str(root), "<checkout>"),
        (str(Path.home()), "<home>"),
        (socket.gethostname(), "<host>"),
    ):
        if len(private) > 2:
            text = re.sub(rf"(?<!\w){re.escape(private)}(?!\w)", public, text)
    return text


class Run:
    """The records of a run directory, which is made where there is none.

    Raises:
        ValueError: the file has lines that are no records.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        path.mkdir(parents=True, exist_ok=True)
        self.file = path / FILE
        self._mend()
        self.records: list[Record] = list(read(self.file)) if self.file.exists() else []

    @property
    def first(self) -> Record | None:
        """How the day was started."""
        return self.records[0] if self.records else None

    def reload(self) -> None:
        """Read what a process of a part has added."""
        self._mend()
        self.records = list(read(self.file))

    def results(self, part: str | None = None) -> dict[tuple[str, str], Record]:
        """By part and name."""
        return {
            (r["part"], r["name"]): r
            for r in self.records
            if r["event"] == "result" and part in (None, r["part"])
        }

    def starts(self, part: str, name: str) -> int:
        """How often an item has begun."""
        return sum((r["event"], r.get("part"), r.get("name")) == ("start", part, name) for r in self.records)

    def unfinished(self, part: str) -> str | None:
        """The item that began last and has not ended."""
        begun = [r["name"] for r in self.records if r["event"] == "start" and r["part"] == part]
        return begun[-1] if begun and (part, begun[-1]) not in self.results(part) else None

    def notes(self) -> list[Record]:
        return [r for r in self.records if r["event"] == "note"]

    def add(self, event: str, **fields: Any) -> Record:
        """Write a line; it is on disk when this returns.

        Raises:
            DiskFull: it can not be written, not even in the room that was kept for it.
        """
        record = {"event": event, "schema": SCHEMA, "time": time.time(), **fields}
        line = without_names(json.dumps(record), self.root).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            self._mend()
            reserve = self.path / RESERVE
            if not reserve.exists():
                raise DiskFull(f"{FILE}: {error.strerror}") from error
            reserve.unlink()
            try:
                self._write(line)
            except OSError as again:
                self._mend()
                raise DiskFull(f"{FILE}: {again.strerror}") from again
            message = f"{FILE}: {error.strerror}; the last line went into the room kept for it"
            raise DiskFull(message) from error
        finally:
            if self.file.exists():
                self.records = list(read(self.file))
        return record

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Meanwhile no other process may conduct this day.

        Raises:
            ValueError: another does.
        """
        with open(self.path / LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                text = f"hardware_day: nobody else may run this day, got another in {self.path}"
                raise ValueError(text) from None
            yield

    def keep_room(self) -> None:
        """Set room aside for the last lines. Raises DiskFull where there is none."""
        reserve = self.path / RESERVE
        try:
            with open(reserve, "wb") as file:
                file.write(b"\0" * RESERVE_BYTES)
                os.fsync(file.fileno())
        except OSError as error:
            reserve.unlink()
            raise DiskFull(f"{self.path.name}: {error.strerror}") from error

    def _write(self, line: bytes) -> None:
        with open(self.file, "ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())

    def _mend(self) -> None:
        """Take away a last line that was cut off."""
        if self.file.exists():
            data = self.file.read_bytes()
            if not data.endswith(b"\n"):
                os.truncate(self.file, data.rfind(b"\n") + 1)


def read(file: Path) -> Iterator[Record]:
    """The records of a file.

    Raises:
        ValueError: a line is no record of this schema.
    """
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            message = f"hardware_day: line {number} of {file.name} must be a record, got {line[:60]!r}"
            raise ValueError(message)
        yield record
