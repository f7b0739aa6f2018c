# SPDX-License-Identifier: Apache-2.0
"""These tests need the extra `models`; without it they are skipped by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="accuracy tests need torch (extra `models`)")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)
