# SPDX-License-Identifier: Apache-2.0
"""The study's window attention with one set for all heads is the kernel's (rule E11 of docs/exactness.md): on
inputs of a real model it reads the same positions, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparq_ipu import KVCache, available_devices
from sparq_ipu.attention import attention
from sparq_reference import WindowSettings, window
from sparq_study.accuracy.methods import History, Span, parse_method

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_hamlet.npz"
KV_HEADS, GROUP, DIM, SEQ, N_RECENT, TOP_K = 3, 3, 64, 768, 2, 96
DEVICES = [device for device in available_devices() if device in ("cpu", "reference")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layer", [2, 23])
def test_positions_are_those_of_a_real_cache(layer: int, device: str) -> None:
    """The tensors hold queries of the last tokens alone: half of them are the prompt's."""
    with np.load(REAL) as arrays:
        query, key, value = (arrays[f"{name}_{layer}"] for name in ("query", "key", "value"))
    n_steps = len(query)
    first = SEQ - n_steps + N_RECENT
    grouped = torch.from_numpy(query.astype(np.float32)).reshape(n_steps, KV_HEADS, GROUP, DIM)
    grouped = grouped.permute(1, 2, 0, 3)
    keys, values = (torch.from_numpy(x[:, :SEQ].astype(np.float32)) for x in (key, value))
    prompt = Span(grouped[:, :, :N_RECENT], keys[:, :first], values[:, :first], layer, DIM**-0.5)
    weights = torch.softmax(prompt.scores(), dim=-1).sum(1)
    history = History(weights.sum(1), weights)
    method = parse_method(f"alisa:k={TOP_K},n_recent={N_RECENT},one_set=1")

    settings = WindowSettings(TOP_K, n_recent=N_RECENT)
    cache = KVCache(1, KV_HEADS, DIM, SEQ, device=device)
    cache.append(key[None, :, :first], value[None, :, :first])
    cache.observe(np.moveaxis(query[:N_RECENT], 0, 1)[None], **settings.arguments())
    for step in range(N_RECENT, n_steps):
        now = SEQ - n_steps + step
        of_cache = cache.one_layer("test").history()
        sums = np.zeros((1, now + 1), np.int64)
        for shares in of_cache.steps[0]:
            sums[0, : len(shares)] += shares
        cache.append(key[None, :, now : now + 1], value[None, :, now : now + 1])
        output = attention(query[None, step], cache, settings)
        wanted, _ = window.select_positions(sums, settings, np.array([now + 1]))
        span = Span(
            grouped[:, :, step : step + 1], keys[:, : now + 1], values[:, : now + 1], layer, DIM**-0.5
        )
        span.history = history
        got = method.attend(span)
        rows = history.state["rows"]
        newest = rows[0, (history.state["next"] - 1) % N_RECENT]
        assert newest.nonzero()[:, 0].tolist() == [p for p in wanted[0].tolist() if newest[p]]
        own = cache.one_layer("test").history().steps[0][-1].astype(np.int64)
        assert np.abs(newest[: now + 1].numpy() - own).max() <= KV_HEADS * GROUP
        # The kernel's output is rounded to fp16: half an ulp. Sums in fp32 are the rest, as with the oracles.
        expected = output[0].astype(np.float32)
        np.testing.assert_allclose(got.reshape(-1, DIM).numpy(), expected, rtol=2**-11, atol=2e-5)
