# SPDX-License-Identifier: Apache-2.0
"""Cycle estimates by hand: what the steps of programs make of them. test_counted_cycles.py compares each with
its codelet.

The numbers follow from the rules of cycles.hpp. A worker starts for 20 slots, a pass of a loop costs 0 to 5
beside its work, and six workers share a tile: its vertex takes 6 * (20 + slots) cycles."""

from __future__ import annotations

from typing import Any

import pytest


def tile(slots: float) -> int:
    return int(6 * (20 + slots))


#: steps of a query with 2 KV heads of 2 heads each, on 16 tiles a KV head: 256 positions of the wave on each
#: part, and 64 of the tail on eight of them, so 320 on the busiest; and what a worker gets of that
STEPS = {
    "sparq-streaming": {
        "approx_scores": tile(2 * 11 * (8 * (12 + 6 - 3 + 3) + 7)),
        "tail_scores": tile(2 * 3 * (8 * (12 + 10 - 5 + 3) + 7)),
        "partial_max": tile(27 * 7 + 6),  # three pieces of a head, each a worker's
        "softmax_weights": tile(2 * 12 + 27 * (2 * 42 + 3)),
        "block_sums": tile(2 * (8 * (8 + 2) + 10)),  # 2 * 320 / 64 blocks
        "fold_sums": tile(18 * 6 + 8),  # 72 blocks, a head to a worker
        "group_keys": tile(72 + 14 * (2 * 17 + 41)),
        "sum_rows": tile(4 * (2 * 12 + 8)),  # four pairs of digits of twelve parts
        "sum_counts": tile(2 * 12 + 11),  # of two groups
        "key_histogram": tile(72 + (86 + 99) + 7 * (17 + 12 / 64 * 56)),
        "mark_keys": tile((86 + 99) + 8 * (17 + 12 / 64 * 28) + 36),  # a block to a worker
        "rank_keys": tile(15 + 5 * 7 + 20 + 2 * 19 + 16 * 13) + tile(2 * 19),  # nine sixteens; the largest
        "take_keys": tile(42 + 20),
    },
    "sparq-tiered": {  # with codes of 8 bits: 64 words, 11 to a worker, an address and a load more
        "approx_scores": tile(11 * (10 + 2 * (16 * (4 + 14) + 4 * 5)))
    },
    "dense-streaming": {
        "dense_scores": tile(43 * 2 * (8 * (20 + 3 + 8) + 12)),
        "weighted_values": tile(11 * (64 * (31 / 2 + 4) + 16)),  # 4 blocks, 2 heads, 8 eights of components
        "fold_blocks": tile(64 * (8 + 2) + 17),
        "combine": tile(5 + 9 + 2 + 55),
    },
}


@pytest.mark.parametrize("kernel", STEPS)
def test_steps_of_a_query(kernel: str) -> None:
    """That the builders hand the formulas what they mean."""
    planning: Any = pytest.importorskip("sparq_ipu.planning")
    pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
    shape = dict(batch=1, n_heads=4, n_kv_heads=2, head_dim=64, seq_len=4096, n_tiles=32)
    options = dict(index_bits=8 if kernel == "sparq-tiered" else 16)
    steps = planning.plan(**shape, **options, kernel=kernel, rank=16, top_k=64, baseline=False).steps
    cycles = {step["name"].split("/")[-1]: step["tile_cycles"] for step in steps}
    assert {name: cycles[name] for name in STEPS[kernel]} == STEPS[kernel]
