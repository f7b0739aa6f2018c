# SPDX-License-Identifier: Apache-2.0
"""These tests need the extra `models`; without it they are skipped by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="accuracy tests need torch (extra `models`)")
pytest.importorskip(
    "transformers", minversion="5.24", reason="accuracy tests need transformers (extra `models`)"
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tiny tensors: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
