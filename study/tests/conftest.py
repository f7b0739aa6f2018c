# SPDX-License-Identifier: Apache-2.0
"""Tests of the study: its programs are modules here, and so is what these tests share."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
