# SPDX-License-Identifier: Apache-2.0
"""Attention in a PopTorch session: the example decoder with SparQ and with dense attention. Skipped by name
where there is no PopTorch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from .items import Context, Item

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "poptorch_decoder.py"


def decoded(words: list[str]) -> dict[str, Any]:
    """Tokens of an IPU and of plain PyTorch, from the same weights. fp16 against fp32: some may differ."""
    for package in ("torch", "poptorch"):
        if importlib.util.find_spec(package) is None:
            return dict(skipped=f"{package} is not installed")
    tokens, said = [], []
    for on in ([], ["--ipu"]):
        command = [sys.executable, str(EXAMPLE), *words, *on]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr.strip()[-1500:]}")
        *rows, last = done.stdout.strip().splitlines()
        tokens.append(" ".join(rows).split())
        said.append(last)
    same = sum(a == b for a, b in zip(*tokens)) / max(1, len(tokens[0]))
    return dict(said=said, same_tokens=same)


def items(context: Context) -> list[Item]:
    short = ["--new-tokens", "4", "--prompt-tokens", "8"] if context.quick else []
    return [
        Item("decoder with SparQ", lambda: decoded(short), limit=1800),
        Item("decoder with dense attention", lambda: decoded(["--dense", *short]), limit=1800),
    ]
