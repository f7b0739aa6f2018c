# SPDX-License-Identifier: Apache-2.0
"""Settings where none are given: the recommended ones, in plans and in benchmarks."""

from __future__ import annotations

from typing import Any, Mapping

from sparq_ipu.transformers import RECOMMENDED

#: bits of a number of the key index
INDEX_BITS: int = RECOMMENDED["index_bits"]


def with_recommended(given: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """Settings of SparQ attention by name; those not given are the recommended ones: rank 32 (or half of a
    smaller head_dim), top_k 256 and n_local 64. With another top_k n_local is 0."""
    usual = {name: RECOMMENDED[name] for name in ("rank", "top_k", "n_local")}
    usual["rank"] = max(1, min(usual["rank"], head_dim // 2))
    if given.get("top_k", usual["top_k"]) != usual["top_k"]:
        usual["n_local"] = 0
    return {**usual, **given}
