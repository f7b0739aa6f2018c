# SPDX-License-Identifier: Apache-2.0
"""Plans with the settings of most published figures (rank 32, top_k 128, no local rows) where a test gives
none: a key index of 16 bits, in three tiers of 4."""

from __future__ import annotations

from typing import Any

from sparq_ipu import planning
from sparq_ipu.kernels import DEFAULT

SETTINGS: dict[str, Any] = dict(rank=32, top_k=128, n_local=0)


def _with_settings(options: dict[str, Any], index_bits: int) -> dict[str, Any]:
    kernel = str(options.get("kernel", DEFAULT.name))
    if not kernel.startswith("sparq"):
        return options
    return {**SETTINGS, "index_bits": 4 if kernel == "sparq-tiered" else index_bits, **options}


def plan(*shape: Any, **options: Any) -> planning.Plan:
    return planning.plan(*shape, **_with_settings(options, 16))


def plan_pod(*shape: Any, **options: Any) -> planning.PodPlan:
    return planning.plan_pod(*shape, **_with_settings(options, 16))


def plan_model(*model: Any, **options: Any) -> planning.ModelPlan:
    return planning.plan_model(*model, **_with_settings(options, 4))
