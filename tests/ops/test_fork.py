# SPDX-License-Identifier: Apache-2.0
"""After a fork: a child has none of the threads of a cache on the emulator, and starts its own."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import sparq_ipu

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("uses_it", [True, False])
def test_a_child_goes_on_and_ends(uses_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARQ_EMULATOR_THREADS", "3")
    rng = np.random.default_rng(1)
    key, value, query = rng.standard_normal((3, 1, 2, 100, 16)).astype(np.float16)
    cache = sparq_ipu.KVCache(1, 2, 16, 128, device="emulator", n_tiles=64)
    cache.append(key, value)
    expected = sparq_ipu.sparq_attention(query[:, :, 0], cache, rank=8, top_k=16)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that waits for ever ends too
        same = False
        try:
            got = sparq_ipu.sparq_attention(query[:, :, 0], cache, rank=8, top_k=16) if uses_it else expected
            same = bool((got == expected).all())
            del cache  # and with it its threads
        finally:
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
