# SPDX-License-Identifier: Apache-2.0
"""What keys and values in SRAM are held in: fp32 where there is room, unless a test asks for fp16."""

from __future__ import annotations

import contextlib
import functools
from typing import Iterator

import pytest

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

HELD_IN = ("fp16", "fp32")


@contextlib.contextmanager
def held_in(numbers: str) -> Iterator[None]:
    """For programs that are compiled meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        if numbers == "fp16":
            patch.setattr(_core, "Session", functools.partial(_core.Session, may_widen=False))
        yield
