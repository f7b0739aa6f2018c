# SPDX-License-Identifier: Apache-2.0
"""What to install where an optional package is missing. Needs the standard library only."""

from __future__ import annotations

import contextlib
import sys
from typing import Iterator

#: of an optional package, by the name it is imported by: the extra of this project that has it
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "gguf", "tqdm"), "models"),
    **dict.fromkeys(("fastapi", "uvicorn", "prometheus_client", "pydantic", "starlette"), "models,serve"),
    "matplotlib": "plot",
}


def hint(package: str) -> str:
    """What installs it: this project is on no index."""
    return f"pip install '.[{EXTRAS[package]}]' in a checkout of sparq-ipu"


def check_version(op: str, package: str, least: str, got: str) -> None:
    """Refuse an optional package that is older.

    Raises:
        ImportError: it is.
    """
    if [int(n) for n in got.split(".")[:2]] < [int(n) for n in least.split(".")]:
        raise ImportError(f"{op}: {package} must be {least} or newer, got {got}; run: {hint(package)}")


class PackageMissing(ModuleNotFoundError):
    """An optional package is not installed; the message says how to install it."""


@contextlib.contextmanager
def needed(op: str, is_command: bool = False) -> Iterator[None]:
    """Imports of optional packages go inside; PackageMissing for a missing one names the command to install
    it. is_command: end the process with one line on stderr and status 2, without a traceback."""
    try:
        try:
            yield
        except PackageMissing:  # from a module inside, which has said it
            raise
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name not in EXTRAS:
                raise
            message = f"{op}: {name} must be installed, got {error}; run: {hint(name)}"
            raise PackageMissing(message, name=name) from error
    except PackageMissing as error:
        if not is_command:
            raise
        print(error, file=sys.stderr)
        sys.exit(2)
