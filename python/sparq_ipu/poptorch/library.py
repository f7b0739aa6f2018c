# SPDX-License-Identifier: Apache-2.0
"""Find and load the library of PopART operators; loading registers them."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

#: file name of the library that poplar_ops/popart builds
LIBRARY = "libsparq_popart.so"
#: environment variable with its path
ENVIRONMENT = "SPARQ_IPU_POPART_LIBRARY"


def candidates() -> list[Path]:
    """Paths that `load_library` tries, in order: that of the environment alone if it is set, else the usual
    ones."""
    if os.environ.get(ENVIRONMENT):
        return [Path(os.environ[ENVIRONMENT])]
    package = Path(__file__).resolve().parents[1]
    return [package / LIBRARY, package / "lib" / LIBRARY, Path.cwd() / "build" / LIBRARY]


@functools.lru_cache(maxsize=None)
def load_library() -> Path:
    """Load the operators once per process; returns the path loaded.

    Raises:
        FileNotFoundError: no library found; lists the paths tried.
        RuntimeError: the loader refuses the file, usually because the SDK is not enabled in this shell.
    """
    for candidate in candidates():
        if not candidate.is_file():
            continue
        try:
            ctypes.CDLL(str(candidate))
        except OSError as error:
            raise RuntimeError(
                f"load_library: {candidate} must load, got: {error}; "
                "source enable.sh of the Poplar SDK it was built with"
            ) from error
        return candidate
    listed = ", ".join(map(str, candidates()))
    raise FileNotFoundError(
        f"load_library: {LIBRARY} must exist, got none; tried {listed}. "
        f"Build it (docs/poptorch.md), or set {ENVIRONMENT}"
    )
