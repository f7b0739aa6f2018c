# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the model tests; the builders are in tiny_models.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # tiny_models, whatever the import mode


@pytest.fixture
def model() -> Any:
    """A tiny random Llama."""
    from tiny_models import tiny_model

    return tiny_model()
