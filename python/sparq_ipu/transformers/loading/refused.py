# SPDX-License-Identifier: Apache-2.0
"""Errors of other packages over a file, in one line that names it."""

from __future__ import annotations

import contextlib
from typing import Iterator

_MOST_CHARACTERS = 300


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise what goes wrong as ValueError: `load_model: <what> must be readable, got <error>`.

    A panic of a package in Rust is no Exception, so it is known by its name. Our own errors pass, and those
    of the machine (memory, a missing package or file).
    """
    try:
        yield
    except (MemoryError, FileNotFoundError):
        raise
    except BaseException as raised:
        error = raised
        if isinstance(raised, ImportError):  # transformers asks for protobuf where a tokenizer is damaged
            if raised.__context__ is None or isinstance(raised.__context__, ImportError):
                raise
            error = raised.__context__
        if isinstance(error, ValueError) and str(error).startswith("load_model: "):
            raise
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = " ".join(str(error).split())
        if len(text) > _MOST_CHARACTERS:
            text = text[:_MOST_CHARACTERS] + "…"
        message = f"load_model: {what} must be readable, got {type(error).__name__}: {text}"
        raise ValueError(message) from error
