# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder take from those of bench/."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))

from common import Progress, check_output, guarded  # noqa: E402

__all__ = ["ROOT", "Progress", "check_output", "guarded"]
