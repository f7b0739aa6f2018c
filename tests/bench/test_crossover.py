# SPDX-License-Identifier: Apache-2.0
"""bench/plans.py crossover: where SparQ is faster than the best dense plan."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from lib.plans import crossover
from pictures_shown import digest_in

from sparq_ipu.commands import pictures
from sparq_ipu.planning import plan_model, plan_pod
from sparq_ipu.planning.model_shape import MODELS, ModelShape
from sparq_reference import DoesNotFit

ROWS: list[dict[str, Any]] = json.loads(crossover.RESULTS.read_text())


def test_the_rows_are_of_all_points() -> None:
    points = [(row["model"], row["batch"], row["seq_len"]) for row in ROWS[:: len(crossover.IPUS)]]
    assert tuple(points) == crossover.POINTS and [row["n_ipus"] for row in ROWS[:3]] == list(crossover.IPUS)
    for row in ROWS:
        for name in (*crossover.PLANS, "sparq_none_hot"):
            if row[name] is not None:
                assert row[name]["n_ipus"] <= row["n_ipus"] and row[name]["seconds"] == sorted(
                    row[name]["seconds"]
                )
        if row["sparq"] is None:  # no cache of the size fits
            assert row["sparq_none_hot"] is None and row["n_ipus"] == 1
        else:
            assert row["sparq"]["seconds"][1] <= row["sparq_none_hot"]["seconds"][1]
    assert len({row["git"] for row in ROWS}) == 1  # of one run
    for i in range(0, len(ROWS), len(crossover.IPUS)):  # more IPUs are never slower: fewer are among them
        for name in crossover.PLANS:
            of_point = [row[name] for row in ROWS[i : i + len(crossover.IPUS)]]
            times = [of["seconds"][1] if of else math.inf for of in of_point]
            assert times == sorted(times, reverse=True)


def test_the_documents_show_the_rows() -> None:
    for document, name, made in (
        (crossover.DOCUMENT, "crossover", crossover.table(ROWS)),
        (crossover.DOCUMENT, "where", crossover.where(ROWS)),
        (crossover.README, "ipu", crossover.sentence(ROWS)),
    ):
        text = document.read_text().partition(f"<!-- begin {name}:")[2]
        assert text.partition("-->\n")[2].partition("<!-- end")[0] == made + "\n"


def test_the_picture_is_not_older_than_its_rows(tmp_path: Path) -> None:
    """If this fails: python bench/plans.py crossover --write."""
    assert digest_in(crossover.PLOT) == pictures.digest(crossover.lines(ROWS))
    pytest.importorskip("matplotlib")
    other = [{**row, "sparq": row["dense"]} for row in ROWS]
    path = crossover.draw(other, tmp_path / "other.png")
    assert digest_in(path) != digest_in(crossover.PLOT)


def test_where_sparq_pays_is_after_the_last_length_where_it_does_not() -> None:
    rows = [dict(row) for row in ROWS if (row["model"], row["batch"]) == ("Llama-3-8B", 1)]
    mine = [row for row in rows if row["n_ipus"] == 4]
    for row, faster in zip(mine, (2, 0.5, 2, None, 2, 2)):  # None: it does not fit
        seconds = [faster or 1] * 3
        row.update(dense=faster and {"seconds": seconds}, sparq={"seconds": [1.0, 1.0, 1.0]})
    cells = crossover.where(
        [*rows, *(row for row in ROWS if row["model"] != "Llama-3-8B" or row["batch"] != 1)]
    )
    assert cells.splitlines()[2].split(" | ")[4] == "from 16,384"
    for row in mine:
        row["sparq"] = {"seconds": [3.0, 3.0, 3.0]}
    assert " | not up to 131,072 | " in crossover.where([*rows, *ROWS[len(rows) :]]).splitlines()[2]


def test_the_page_says_by_how_much() -> None:
    gains = [crossover.factors(row)[1] for row in ROWS if crossover.verdict(row) == "SparQ"]
    losses = [1 / crossover.factors(row)[1] for row in ROWS if crossover.verdict(row) == "dense"]
    text = " ".join(crossover.DOCUMENT.read_text().split())
    assert f"then {min(gains):.0f} to {max(gains):.0f} times as fast as the best dense plan" in text
    assert f"dense attention is {min(losses):.1f} to {max(losses):.1f} times as fast as SparQ" in text


def test_a_split_of_both_is_groups_one_after_another() -> None:
    model = MODELS["Qwen2.5-0.5B"]
    cell = crossover.cells_of(model.name, 1, 1024, 4, 2)["dense"]
    half = dataclasses.replace(model, n_layers=model.n_layers // 2)
    plan = plan_model(half, seq_len=1024, n_ipus=2, split="heads", weights="none", attention="dense")
    assert cell["seconds"][1] == 2 * plan.seconds_per_step
    assert (cell["n_ipus"], cell["split"]) == (4, "both")


@pytest.mark.slow
def test_a_row_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "small", ModelShape("small", 16, 4, 2, 32, 128, 256, 1000))
    rows = crossover.rows_of("small", 1, 1024)
    planned = plan_model("small", seq_len=1024, weights="none", attention="dense")
    assert rows[0]["dense"]["seconds"][1] == planned.seconds_per_step
    assert [row["n_ipus"] for row in rows] == list(crossover.IPUS)
    assert rows[0]["sparq_none_hot"]["seconds"][1] >= rows[0]["sparq"]["seconds"][1]


@pytest.mark.slow
def test_why_heads_split_saves_no_more() -> None:
    """The bounds of the page, in ms of 32 layers."""
    settings = dict(kernel="sparq-tiered", hit_rate=0.9, rank=32, top_k=128, n_local=0, index_bits=2)

    def planned(seq_len: int, n_ipus: int, split: str, **how: Any) -> dict[str, float]:
        of: Any = dict(
            n_ipus=n_ipus, split=split, append=True, **(how if "kernel" in how else {**settings, **how})
        )
        plan = plan_pod(1, 32, 8, 128, seq_len, **of)
        return {name: 1e3 * seconds for name, seconds in plan.seconds_by_category.items()}

    text = " ".join(crossover.DOCUMENT.read_text().partition("## Why more IPUs")[2].split())
    layers = {n: planned(n, 4, "layers")["total"] for n in (16384, 65536)}
    assert f"SparQ with layers split takes {layers[16384]:.2f} and {layers[65536]:.2f} ms" in text
    heads = {(n, ipus): planned(n, ipus, "heads") for n in layers for ipus in (4, 8)}
    for n, ipus in ((16384, 4), (65536, 4), (65536, 8)):
        of = heads[n, ipus]
        names = ("compute", "exchange", "sync", "streaming", "links", "total")
        cells = [
            f"{n:,}",
            str(ipus),
            *(f"{of[name]:.2f}" for name in names),
            f"{of['total'] / layers[n]:.2f}",
        ]
        assert f"| {' | '.join(cells)} |" in text
    short = heads[16384, 4]
    saved = [f"{1 - heads[n, 4]['total'] / layers[n]:.0%}".replace("%", " %") for n in layers]
    assert f"{saved[0]} of its time at 16,384 positions and {saved[1]} at 65,536" in text
    assert f"{short['sync'] / 32 * 1.85e6 / 150:.0f} a layer of 150 cycles, {short['sync']:.2f} ms" in text
    least = short["compute"] + short["sync"]
    assert 0.6 * layers[16384] < least
    assert f"0.6 is {0.6 * layers[16384]:.2f} ms. Compute and syncs alone take {least:.2f} ms" in text
    assert f"0.6 is {0.6 * layers[65536]:.2f} ms" in text
    for ipus in (4, 8):
        exchange = heads[16384, ipus]["exchange"]
        rest = heads[65536, ipus]["total"] - heads[65536, ipus]["exchange"]
        assert 0.6 * layers[65536] < rest + exchange
        for ms in (rest, exchange, rest + exchange):
            assert f"{ms:.2f}" in text
        for n in layers:
            at_once, of = 4 if ipus == 4 else 16, heads[n, ipus]
            cold = planned(n, ipus, "heads", hit_rate=0.0)["total"]
            bound = rest + exchange if n == 65536 else of["compute"] + of["sync"]
            dense = "does not fit"
            if (n, ipus) != (65536, 4):
                n_layers = 32 if n == 16384 else 16  # those of a group
                alone = planned(n, ipus, "heads", kernel="dense-sram", n_layers=n_layers)["total"]
                dense = f"{alone * 32 / n_layers:.2f}"
                assert float(dense) < 0.6 * layers[n] < bound
            numbers = (f"{ms:.2f}" for ms in (0.6 * layers[n], of["total"], cold, bound))
            assert f"| {n:,} | {at_once} | {' | '.join(numbers)} | {dense} |" in text
    with pytest.raises(DoesNotFit):
        planned(65536, 4, "heads", kernel="dense-sram")


@pytest.mark.slow
def test_a_model_plan_adds_hidden_states_to_the_attention_of_a_pod_plan() -> None:
    """And the page says how much."""
    text = " ".join(crossover.DOCUMENT.read_text().split())
    for n_ipus in (4, 8):
        shape = dict(n_ipus=n_ipus, split="heads")
        of: Any = dict(shape, seq_len=16384, weights="none", attention="dense")
        ms = plan_model("Llama-3-8B", **of).milliseconds
        pod: Any = dict(shape, kernel="dense-sram", append=True)
        assert ms["attention"] == pytest.approx(1e3 * plan_pod(1, 32, 8, 128, 16384, **pod).seconds_per_token)
        assert f"{ms['links']:.2f} ms on {n_ipus}" in text


@pytest.mark.slow
def test_tokens_with_weights_that_stream() -> None:
    """In the README and on the page: weights, attention and the layers on chip."""
    readme, page = (" ".join(p.read_text().split()) for p in (crossover.README, crossover.DOCUMENT))
    shape: Any = dict(seq_len=65536, n_ipus=4)
    dense = plan_model("Llama-3-8B", **shape, attention="dense")
    sparq = plan_model("Llama-3-8B", **shape, attention="best", hit_rate=0.9)
    a, b = (round(1e3 * plan.seconds_per_step) for plan in (dense, sparq))
    assert f"takes {a} ms with the best dense plan and {b} ms with SparQ: {a / b:.1f} times as fast" in readme
    assert f"takes {a} ms with dense attention and {b} ms with SparQ" in page
    weights = round(dense.milliseconds["weights from streaming memory"])
    assert f"stream in {weights} ms" in readme and f"Weights take {weights} ms of both" in page
    assert (dense.layers_on_chip, sparq.layers_on_chip) == ((4, 32), (0, 32))
    assert "room for 4 of 32 dense layers, and for no layer in three tiers" in page
