# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder share."""

from __future__ import annotations

from pathlib import Path

from sparq_ipu.commands.command_line import Parser, check_output, guarded, only, refuse, thread_count
from sparq_ipu.commands.progress import Progress

ROOT = Path(__file__).resolve().parents[1]

__all__ = ["ROOT", "Parser", "Progress", "check_output", "guarded", "only", "refuse", "thread_count"]
