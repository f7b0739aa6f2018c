# SPDX-License-Identifier: Apache-2.0
"""Tests of the CPU kernels: without the extension module they are skipped, by name."""

from __future__ import annotations

import pytest

_cpu = pytest.importorskip("sparq_ipu._cpu", reason="the extension module sparq_ipu._cpu is not built")


@pytest.fixture(scope="session", params=("avx512vnni", "avx2", "portable"))
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set; those that this machine lacks are skipped."""
    if request.param not in _cpu.available_isas():
        pytest.skip(f"this processor lacks {request.param}")
    return request.param
