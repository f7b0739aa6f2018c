# SPDX-License-Identifier: Apache-2.0
"""Where measured rows come from, and the paragraph below a table that says it."""

from __future__ import annotations

import datetime
import functools
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, Iterable, Sequence

from sparq_ipu.commands.processor import processor

ROOT = Path(__file__).resolve().parents[2]


@functools.lru_cache(maxsize=None)
def git_revision() -> str | None:
    """The commit of this checkout, with "+" where it has changes; None outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def repeat_command(program: str, words: Sequence[str]) -> str:
    """The command line of a bench, for a shell; `program`: such as "sweep.py"."""
    return shlex.join(["python", *f"bench/{program}".split(), *words])


def origin(command: str) -> dict[str, Any]:
    """Columns of a row that is measured now."""
    cpu = f"{processor()}, {os.cpu_count()} cores"
    return dict(cpu=cpu, git=git_revision(), date=datetime.date.today().isoformat(), command=command)


def caption(rows: Iterable[dict[str, Any]], *more: str, environment: str = "") -> str:
    """Processor, threads, days, commits and commands of rows of one processor; `more`: other sentences."""
    rows = list(rows)
    commits = ", ".join(sorted({row["git"][:8] for row in rows}))
    days = " and ".join(map(_day, sorted({row["date"] for row in rows})))
    first = f"{rows[0]['cpu']}, {rows[0]['n_threads']} threads. Measured on {days}, commit {commits}"
    commands = "\n".join(sorted({f"    {environment}{row['command']}" for row in rows}))
    return f"{'. '.join([first, *more])}. Commands:\n\n{commands}"


def _day(date: str) -> str:
    """As people write it."""
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"
