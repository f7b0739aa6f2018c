# SPDX-License-Identifier: Apache-2.0
"""Plans of window attention: what a run reports, and the memory that its history takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from calls import refusal
from emulated import _core as core

from sparq_ipu import planning
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import KERNELS, Attention
from sparq_ipu.planning.device_model import device_model
from sparq_reference import CacheSpec, WindowSettings

#: batch, n_heads, n_kv_heads, head_dim, capacity, tiles, lengths; several rounds, and a tile for each part
SHAPES = [(3, 6, 3, 64, 700, 4, [30, 700, 512]), (1, 4, 2, 32, 300, 40, [290])]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("settings", [WindowSettings(24, n_recent=5), WindowSettings(24, 0, 0)], ids=str)
@pytest.mark.parametrize("name", [k.name for k in KERNELS.values() if k.takes == "window"])
def test_a_plan_is_what_a_run_reports(shape: tuple[Any, ...], settings: WindowSettings, name: str) -> None:
    batch, n_heads, n_kv_heads, head_dim, capacity, tiles, lengths = shape
    options: dict[str, Any] = dict(index_bits=4, row_bits=8) if KERNELS[name].memory == "tiered" else {}
    missing: dict[str, Any] = {}
    if options and not settings.n_recent:  # a strided list may have fewer rows, of which nothing is hot yet
        rows = [len(range(0, n, -(-n // settings.top_k))) for n in lengths]
        missing["misses"] = np.repeat(rows, n_kv_heads)
    model = device_model()
    plan = planning.plan(
        batch,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        kernel=name,
        lengths=lengths,
        n_tiles=tiles,
        append=True,
        baseline=False,
        **settings.arguments(),
        **options,
        **missing,
    )
    session = core.Session(
        CacheSpec(batch, n_kv_heads, head_dim, capacity, **options),
        n_heads,
        attention=[Attention(name, settings)],
        options=DeviceOptions(tiles),
    )
    key = np.random.default_rng(0).standard_normal((batch, n_kv_heads, max(lengths), head_dim))
    session.write(key.astype(np.float16), key.astype(np.float16), lengths)
    session.attention(0, np.ones((batch, n_heads, head_dim), np.float16))
    counted = core.emulator_last_run(session, dataclasses.replace(model, tiles=tiles).parameters())
    assert plan.steps == counted["steps"]  # of three tiers too: at first nothing is hot
    assert plan.seconds_per_query == counted["seconds"]["total"]
    assert plan.row()["n_recent"] == settings.n_recent and plan.row()["top_k"] == 24
    assert all(step["vertices_without_estimate"] == 0 for step in plan.steps)


def test_a_history_takes_132_bytes_a_position() -> None:
    """Of 32 steps and their sum, in fours of positions on most tiles of a large IPU; of each layer."""
    shape: dict[str, Any] = dict(batch=1, n_heads=8, n_kv_heads=8, head_dim=64, seq_len=2048, top_k=64)

    def largest(**changes: Any) -> int:
        plan = planning.plan(**shape, kernel="window-streaming", n_tiles=512, baseline=False, **changes)
        return int(plan.memory["variables"])

    more = largest(n_recent=32) - largest(n_recent=16)
    assert more == 16 * 4 * 4
    assert largest(n_recent=32, n_layers=9) - largest(n_recent=16, n_layers=9) == 9 * more


def test_a_history_counts_as_the_program_holds_it() -> None:
    """Of each layer the shares of 32 steps, their sum and a row's number; and the sums of the layer that a
    step works on. With those of another layer it is above 70 % of a tile, and tasks take turns."""
    plan, other = (
        planning.plan(
            1, 2, 2, 8, 2048, kernel="window-streaming", n_tiles=2, n_layers=n, n_recent=32, baseline=False
        )
        for n in (3, 4)
    )
    names = ("cache/history_rows", "cache/history_sums", "cache/history_step", "recent_sums")
    held = sum(n for name, n in plan.memory["largest"] if name in names)
    length, limit = 2048 // 2, plan.memory["limit"]
    assert 0 <= held - (3 * (33 * length * 4 + 4) + length * 4) < 8  # but for alignment
    assert held < 0.7 * limit < held + 32 * length * 4
    assert (plan.mapping["rounds"], other.mapping["rounds"]) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(n_recent=1024), "n_recent must be in [0, 1023] for n_heads=32, got 1024"),
        (dict(n_local=257), "n_local must be in [0, top_k=256], got 257"),
        (dict(row_bits=8), "row_bits must be 16 unless memory is 'tiered', got 8"),
        (dict(kernel="window-tiered", hot_rows=5), "hot_rows must be 0 or at least top_k=256, got 5"),
    ],
)
def test_refusals(arguments: dict[str, Any], words: str) -> None:
    assert refusal(planning.plan, **{"kernel": "window-streaming", **arguments}) == f"plan: {words}"
    if "n_ipus" in arguments:
        with pytest.raises(ValueError, match="split must be 'layers' where heads of one history"):
            planning.plan_pod(1, 4, seq_len=64, kernel="window-streaming", n_ipus=2, split="heads")
