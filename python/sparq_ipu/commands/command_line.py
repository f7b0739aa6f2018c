# SPDX-License-Identifier: Apache-2.0
"""What the command lines of the package share: types of options, and descriptions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Callable


def description(text: str | None, prog: str) -> str:
    """A module's docstring with its commands as they are called: "sparq-ipu tune", or "python -m ..."."""
    before = "sparq-ipu " if prog.startswith("sparq-ipu ") else "python -m sparq_ipu."
    return (text or "").replace("python -m sparq_ipu.", before)


def number(
    kind: type[int] | type[float], rule: str, is_valid: Callable[[float], bool]
) -> Callable[[str], float]:
    """The type of an option that is a number.

    Args:
        rule: what it must be, for messages.
    """

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}")
        return value

    return parse


positive_integer = number(int, "a positive integer", lambda n: n > 0)


def output_path(text: str) -> Path:
    """A path that can be written: it is written last, when a long run would be lost."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file that can be written, got {text!r}")
    return path


def read_text(op: str, option: str, path: Path) -> str:
    """The text of the file that an option names.

    Raises:
        ValueError: `<op>: <option> must be a file of UTF-8 text that can be read, got <path> (<reason>)`.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        rule = "must be a file of UTF-8 text that can be read"
        raise ValueError(f"{op}: {option} {rule}, got {path} ({reason})") from None
