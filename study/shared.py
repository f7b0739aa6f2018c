# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder take from those of bench/."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))

from lib.common import Progress, check_output, guarded  # noqa: E402

from sparq_ipu.commands.command_line import Parser, only, refuse, thread_count  # noqa: E402

__all__ = ["ROOT", "Parser", "Progress", "check_output", "guarded", "only", "refuse", "thread_count"]
