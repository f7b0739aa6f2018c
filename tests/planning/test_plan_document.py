# SPDX-License-Identifier: Apache-2.0
"""docs/ipu_plans.md shows what `sparq-ipu plan` prints today."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

import sparq_ipu
from sparq_ipu.planning import plan_command, plan_model, planner

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/ipu_plans.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^    sparq-ipu plan (\S[^\n]*)\n\n```\n(.*?)```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_printed_example(capsys: pytest.CaptureFixture) -> None:
    ((words, printed),) = EXAMPLE.findall(TEXT)
    assert plan_command.main([*shlex.split(words), "--quiet"]) == 0
    assert capsys.readouterr().out == printed


def test_dense_attention_in_sram() -> None:
    """A layer of the best dense plan, of eight in one program."""
    layers = sparq_ipu.plan(kernel="dense-sram", n_kv_heads=8, n_layers=8, append=True)
    us = layers.seconds_per_query * 1e6
    assert f"{layers.max_tile_bytes:,} of 638,976 bytes of a tile, {us:.1f} us a layer" in TEXT


#: of a pass, with one head and with two: slots for two pairs of keys, and of values
SLOTS = {"fp32": {1: (5, 5.5), 2: (5, 11)}, "fp16": {1: (5.5, 7), 2: (5.5, 13)}}


@pytest.mark.slow
@pytest.mark.parametrize("held", SLOTS)
@pytest.mark.parametrize(
    ("n_kv_heads", "seq_len", "measured"), [(32, 4096, "47.6"), (32, 16384, "133.7"), (8, 16384, "-")]
)
def test_bounds_of_dense_attention_in_sram(n_kv_heads: int, seq_len: int, measured: str, held: str) -> None:
    """By the slots of a pass on the page; positions and components are shared out over six workers."""
    group, cycles_of_us = 32 // n_kv_heads, 1850
    plan = sparq_ipu.plan(kernel="dense-sram", n_kv_heads=n_kv_heads, seq_len=seq_len, baseline=False)
    assert plan.wide_rows
    if held == "fp16":
        plan = planner.planned(dataclasses.replace(plan.request, may_widen=False))
    us = plan.seconds_per_query * 1e6
    pairs = n_kv_heads * seq_len * 64 / 1472
    widening = 2 * (held == "fp16")
    arithmetic = pairs * (widening + math.ceil(group / 2) + 2 * group) / cycles_of_us
    parts = 1472 // n_kv_heads
    positions = math.ceil(seq_len / parts / 4) * 4 // 2  # pairs of them
    components = math.ceil(seq_len / parts)  # of 64 positions, pairs of them
    keys = math.ceil(positions / 6) * math.ceil(group / 2) * 64
    values = math.ceil(components * math.ceil(group / 2) / 6) * 32
    of_keys, of_values = SLOTS[held][min(group, 2)]
    loops = (keys * of_keys + values * of_values) * 6 / cycles_of_us
    cells = (n_kv_heads, f"{seq_len:,}", held, f"{us:.1f}", f"{loops:.1f}", f"{arithmetic:.1f}", measured)
    assert f"| {' | '.join(map(str, cells))} |" in TEXT
    if held == "fp16":
        return
    of_four = pairs * (math.ceil(group / 2) + 1.5 * group) / cycles_of_us
    (line,) = re.findall(r"In fp32 the bounds would be (.*) us\. popc", TEXT)
    assert f"{of_four:.1f}" in re.split(", | and ", line)
    assert arithmetic > 36 or seq_len == 4096 or (n_kv_heads == 8 and arithmetic > 30)
    if seq_len == 4096:
        steps = ("pair_scores", "unit_values")
        in_loops = [s["seconds"]["compute"] for s in plan.steps if s["name"].endswith(steps)]
        others = us - sum(in_loops) * 1e6
        text = TEXT.replace("\n", " ")
        assert f"makes {keys} passes of keys and {values} of values: {loops:.1f} us" in text
        assert f"All other steps take {others:.1f} us" in text
        assert f"without a slot around the loops the layer takes {loops + others:.1f} us" in text
        even = pairs / 2 / 6  # passes of each worker
        saved = ((keys - even) * of_keys + (values - even) * of_values) * 6 / cycles_of_us
        assert f"Equal shares, of {even:.0f} passes each, would save {saved:.1f} us" in text
        around = even / 64 * 16 * 6 / cycles_of_us  # 64 passes of a pair of positions
        least = loops - saved + around + others
        assert f"scale the score: {around:.1f} us. So with these" in text
        assert f"no division of the work takes less than {least:.1f} us" in text
        of = {s["name"].rpartition("/")[2]: s["seconds"]["total"] * 1e6 for s in plan.steps}
        rows = {
            "lengths and query to all tiles, the query in pairs": of["lengths"]
            + of["query"]
            + of["spread_query"],
            "largest score, of each tile, then of all": of["partial_max"] + of["reduce_max"],
            "softmax weights": of["softmax_weights"],
            "sums of weights by block": of["block_sums"],
            "sums of blocks to the output": of["output"],
        }
        rows["exchange and syncs of the two steps with loops"] = others - sum(rows.values())
        assert "\n".join(f"| {name} | {t:.1f} |" for name, t in rows.items()) + "\n\n" in TEXT


def test_heads_split() -> None:
    """Dense attention, beside SparQ with layers split."""
    page = (ROOT / "docs/ipu_crossover.md").read_text(encoding="utf-8").replace("\n", " ")
    sparq = re.search(r"with layers split takes ([\d.]+) and ([\d.]+) ms", page)
    dense = re.search(r"dense attention takes ([\d.]+) and ([\d.]+) ms there", page)
    assert sparq and dense
    rows = json.loads((ROOT / "bench/results/crossover.json").read_text(encoding="utf-8"))
    for i, (seq_len, n_ipus) in enumerate([(16384, 4), (65536, 16)], 1):
        shape = dict(model="Llama-3-8B", batch=1, seq_len=seq_len, n_ipus=n_ipus)
        (ms,) = (1e3 * r["dense"]["seconds"][1] for r in rows if shape.items() <= r.items())
        assert f"{ms:.2f}" == dense[i] and ms < 0.6 * float(sparq[i])


@pytest.mark.slow
def test_weights_outweigh_attention() -> None:
    four = plan_model("Llama-3-8B", n_ipus=4)
    weights = four.milliseconds["weights from streaming memory"]
    assert (
        f"on 4 IPUs takes {1e3 * four.seconds_per_step:,.0f} ms a token, of which {weights:,.0f} read" in TEXT
    )


@pytest.mark.slow
@pytest.mark.parametrize("seq_len", [16384, 65536])
def test_layers_in_three_tiers(seq_len: int) -> None:
    options = dict(seq_len=seq_len, weights="none", hit_rate=0.9, top_k=128, n_local=0)
    placed = plan_model("Llama-3-8B", **options)  # type: ignore[arg-type]
    times = (placed.seconds_per_step, placed.seconds_low, placed.seconds_high)
    cells = [f"{seq_len:,} positions", str(placed.ipus[0].n_on_chip), *(f"{1e3 * t:.2f}" for t in times)]
    assert f"| {' | '.join(cells)} |" in TEXT
