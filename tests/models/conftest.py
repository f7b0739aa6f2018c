# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the model tests; the builders are in tests/helpers/tiny_models.py."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def model() -> Any:
    """A tiny random Llama."""
    from tiny_models import tiny_model

    return tiny_model()
