# SPDX-License-Identifier: Apache-2.0
"""Stages of attention, by which pages add up times: of the steps that programs have, each in one stage."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from sparq_ipu import planning

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

PLANS = (
    dict(kernel="dense-streaming", seq_len=1024),
    dict(kernel="sparq-streaming", seq_len=4096, index_bits=16),
    dict(kernel="sparq-streaming", seq_len=4096, index_bits=4),
    dict(kernel="sparq-tiered", seq_len=2048, index_bits=4),
)


def test_every_name_is_of_a_step_and_in_one_stage() -> None:
    stages = _core.stages()
    assert {label: n for label, n in Counter(itertools.chain(*stages.values())).items() if n != 1} == {}
    steps: set[str] = set()
    shape = dict(n_heads=8, n_kv_heads=2, head_dim=64, n_tiles=128, rank=16, top_k=64, baseline=False)
    for arguments in PLANS:
        plan = planning.plan(**{**shape, **arguments})  # type: ignore[arg-type]
        steps |= {stage.name.split("/")[-1] for stage in plan.stages}
    named = set(itertools.chain(*stages.values()))
    assert named - steps == set()
    # work that every kind of attention has, and no page shows by itself
    assert {"combine", "row_scores", "weighted_values"} & named == set()
