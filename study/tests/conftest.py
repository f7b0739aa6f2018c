# SPDX-License-Identifier: Apache-2.0
"""Tests of the study: its programs are modules here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
