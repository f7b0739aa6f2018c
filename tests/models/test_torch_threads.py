# SPDX-License-Identifier: Apache-2.0
"""The kernels on PyTorch's own threads (tests/cpu/test_cpu_openmp.py has what they ask of a runtime)."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sparq_ipu.torch  # noqa: E402, F401  # from here on
from sparq_ipu import KVCache, _cpu, sparq_attention  # noqa: E402
from sparq_reference import exact  # noqa: E402


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_of_torch", [1, 2])
def test_bits_between_operations_of_torch(n_threads: int, n_of_torch: int) -> None:
    assert _cpu.use_openmp()
    rng = np.random.default_rng(n_threads)
    key, value = rng.standard_normal((2, 1, 2, 5000, 16)).astype(np.float16)
    query = rng.standard_normal((1, 4, 16)).astype(np.float16)
    cache = KVCache(1, 2, 16, 5000, device="cpu", n_threads=n_threads)
    cache.append(key, value)
    expected = exact.sparq_attention(query, key, value, rank=8, top_k=50).view(np.uint16)
    before, weight = torch.get_num_threads(), torch.ones(512, 512)
    torch.set_num_threads(n_of_torch)
    try:
        for _ in range(3):
            assert float((weight @ weight)[0, 0]) == 512
            assert (sparq_attention(query, cache, rank=8, top_k=50).view(np.uint16) == expected).all()
    finally:
        torch.set_num_threads(before)
