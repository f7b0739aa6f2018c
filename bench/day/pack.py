# SPDX-License-Identifier: Apache-2.0
"""The archive of a day: what is sent, and how it is read again."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from . import page
from .complete import completed
from .records import FILE, LOCK, RESERVE, Run, read, without_names


def pack(run: Run, out: Path) -> None:
    """Write the page into the run directory, and all of it into the archive: whole, or not at all."""
    page.write(run)
    beside = out.with_name(out.name + ".part")
    with tarfile.open(beside, "w:gz") as archive:
        for path in sorted(run.path.iterdir()):
            if path.name in (RESERVE, LOCK):
                continue
            data = path.read_bytes()
            if path.suffix in (".txt", ".md", ".html", ".jsonl"):
                data = without_names(data.decode(errors="replace"), run.root).encode()
            member = tarfile.TarInfo(f"day/{path.name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    beside.replace(out)


def records_of(archive: Path) -> list[dict[str, Any]]:
    """The records of an archive, with what the model says of them.

    Raises:
        ValueError: it is no archive of a day.
    """
    try:
        with tarfile.open(archive) as opened, tempfile.TemporaryDirectory() as folder:
            member = opened.extractfile(f"day/{FILE}")
            assert member is not None
            path = Path(folder) / FILE
            path.write_bytes(member.read())
            return completed(read(path))
    except (tarfile.TarError, KeyError, AssertionError, EOFError) as error:
        message = f"hardware_day: an archive of hardware_day.py is needed, got {archive} ({error})"
        raise ValueError(message) from None
