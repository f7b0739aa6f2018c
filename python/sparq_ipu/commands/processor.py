# SPDX-License-Identifier: Apache-2.0
"""The name of the processor, which measured rows say."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@functools.lru_cache(maxsize=None)
def processor() -> str:
    """Its name, with family and model where the system says them: a virtual machine may call several alike.

    AMD's family 25, model 17 is a Zen 4, family 26 a Zen 5.
    """
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        said.setdefault(key.strip(), value.strip())  # of the first processor
    name = said.get("model name")
    if not name:
        return platform.processor() or platform.machine()
    which = [
        f"{word} {said[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in said
    ]
    return f"{name}, {' '.join(which)}" if which else name
