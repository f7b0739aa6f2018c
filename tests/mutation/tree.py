# SPDX-License-Identifier: Apache-2.0
"""A copy of the project's tree, in which one file at a time is broken and mended."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[2]


class Tree:
    """The copy below `folder`. Unchanged files keep their time, so what is built from them stays up to date.

    Args:
        source: the tree to copy: what git tracks in it, and new files that git does not ignore.
    """

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.root = folder / "tree"
        self.source = source
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=source,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout.decode()
        wanted = {name for name in listed.split("\0") if name and (source / name).is_file()}
        for path in list(self.root.rglob("*")):
            if path.is_symlink() or (path.is_file() and str(path.relative_to(self.root)) not in wanted):
                path.unlink()
        for name in wanted:
            original, copy = source / name, self.root / name
            if not copy.exists() or copy.read_bytes() != original.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(original, copy)

    def text(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")

    @contextlib.contextmanager
    def broken(self, file: str, text: str) -> Iterator[None]:
        """The file has this text inside the `with` block."""
        path = self.root / file
        mended = path.read_text(encoding="utf-8")
        self._write(path, text)
        try:
            yield
        finally:
            self._write(path, mended)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """A file and its mutant may have one size and one time: what Python cached of it goes."""
        path.write_text(text, encoding="utf-8")
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
            cached.unlink()
