# SPDX-License-Identifier: Apache-2.0
"""Tests of bench/: its scripts are modules here."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
