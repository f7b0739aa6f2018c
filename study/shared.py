# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder take from those of bench/."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))

from common import Progress, check_output, guarded  # noqa: E402

from sparq_ipu.commands.command_line import Parser, refuse, thread_count  # noqa: E402

__all__ = ["ROOT", "Parser", "Progress", "check_output", "guarded", "only", "refuse", "thread_count"]


def only(parser: argparse.ArgumentParser, a: argparse.Namespace, flag: str, *others: str) -> None:
    """Refuse every argument that was given but that of `flag` and `others`: the rest would change nothing."""
    taken = {"help", flag.strip("-").replace("-", "_"), *others}
    refuse(parser, a, f"with {flag}", *(x.dest for x in parser._actions if x.dest not in taken))
