# SPDX-License-Identifier: Apache-2.0
"""docs/ipu_plans.md shows what `sparq-ipu plan` prints today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

import sparq_ipu
from sparq_ipu.planning import plan_command, plan_model

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/ipu_plans.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^    sparq-ipu plan (\S[^\n]*)\n\n```\n(.*?)```", re.MULTILINE | re.DOTALL)


def test_the_printed_example(capsys: pytest.CaptureFixture) -> None:
    ((words, printed),) = EXAMPLE.findall(TEXT)
    assert plan_command.main([*shlex.split(words), "--quiet"]) == 0
    assert capsys.readouterr().out == printed


def test_dense_attention_in_sram() -> None:
    """A layer of the best dense plan, of eight in one program."""
    layers = sparq_ipu.plan(kernel="dense-sram", n_kv_heads=8, n_layers=8, append=True)
    us = layers.seconds_per_query * 1e6
    assert f"{layers.max_tile_bytes:,} of 638,976 bytes of a tile, {us:.1f} us a layer" in TEXT


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
