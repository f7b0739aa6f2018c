# SPDX-License-Identifier: Apache-2.0
"""Find and load the library of PopART operators; loading registers them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Optional, Union

#: file name of the library that poplar_ops/popart builds
LIBRARY = "libsparq_popart.so"
#: environment variable with its path
ENVIRONMENT = "SPARQ_IPU_POPART_LIBRARY"

_loaded: Optional[Path] = None


def candidates(path: Union[str, os.PathLike[str], None] = None) -> list[Path]:
    """Paths that `load_library` tries, in order: `path` or that of the environment alone if given, else the
    usual ones."""
    if path is not None:
        return [Path(path)]
    if os.environ.get(ENVIRONMENT):
        return [Path(os.environ[ENVIRONMENT])]
    package = Path(__file__).resolve().parents[1]
    return [package / LIBRARY, package / "lib" / LIBRARY, Path.cwd() / "build" / LIBRARY]


def load_library(path: Union[str, os.PathLike[str], None] = None) -> Path:
    """Load the operators once per process.

    Args:
        path: of the library; None searches (`candidates`).

    Returns: the path loaded.

    Raises:
        FileNotFoundError: no library found; lists the paths tried.
        RuntimeError: the loader refuses the file, usually because the SDK is not enabled in this shell.
    """
    global _loaded
    if _loaded is not None and path is None:
        return _loaded
    tried = candidates(path)
    for candidate in tried:
        if not candidate.is_file():
            continue
        try:
            ctypes.CDLL(str(candidate))
        except OSError as error:
            raise RuntimeError(
                f"load_library: {candidate} must load, got: {error}; "
                "source enable.sh of the Poplar SDK it was built with"
            ) from error
        _loaded = candidate
        return candidate
    listed = ", ".join(str(candidate) for candidate in tried)
    raise FileNotFoundError(
        f"load_library: {LIBRARY} must exist, got none; tried {listed}. "
        f"Build it (docs/poptorch.md), or set {ENVIRONMENT}"
    )
