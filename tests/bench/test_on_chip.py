# SPDX-License-Identifier: Apache-2.0
"""bench/calibrate.py --on-chip: what others measured, beside the rules."""

from __future__ import annotations

import copy
import re
from typing import Any

import calibrate
import pytest
from lib import on_chip
from lib.common import ROOT

from sparq_ipu.planning.device_model import FACTORS

CONTENT = on_chip.measured_file()


def of(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (record,) = (r for r in records if r["name"] == name)
    return record


def test_every_measurement_has_an_address() -> None:
    used = set()
    for kind in ("loops", "compiled", "exchanges", "constants", "estimators"):
        names = [r["name"] for r in CONTENT[kind]]
        assert len(set(names)) == len(names)
        for r in CONTENT[kind]:
            used |= {r["source"], r.get("code", r["source"])}
            assert r["what"] and (kind in ("compiled", "estimators") or r["chip"] in CONTENT["chips"])
    assert used == set(CONTENT["sources"])
    for source in CONTENT["sources"].values():
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", source["repository"]) and source["path"]
        assert source["commit"] is None or re.fullmatch("[0-9a-f]{40}", source["commit"])


def test_the_rules_are_those_of_the_codelets() -> None:
    header = (ROOT / "poplar_ops/codelets/cycles.hpp").read_text()
    for text in (
        f"nWorkers = {on_chip.WORKERS};",
        f"callSlots = {on_chip.CALL_SLOTS};",
        *(f"constexpr double {name} = {slots};" for name, slots in on_chip.LOOP_SLOTS.items()),
        "return arithmetic + main + loop;",
        f"return arithmetic + main - std::min(arithmetic, main) * {on_chip.TOGETHER['floats']} + loop;",
        "nWorkers * (callSlots + slots)",
    ):
        assert header.count(text) == 1, text


def test_by_hand() -> None:
    """48 passes of a worker: an addition, three loads and stores, five of the loop."""
    add = of(CONTENT["loops"], "add, 576")
    assert on_chip.predicted_cycles(add) == 165 + 6 * (20 + 10 + 48 * 9)
    moments = of(CONTENT["loops"], "layer norm: moments, 1152")
    slots = (20 + 1 + 96 * 3) + (20 + 14 + 96 * 5) + (20 + 22)
    assert on_chip.predicted_cycles(moments) == 165 + 6 * slots
    series = of(CONTENT["loops"], "series for pi")
    assert on_chip.measured_cycles(series, {}) == 90
    assert on_chip.predicted_cycles(series) == 6 * (11 + 3)
    heat = of(CONTENT["compiled"], "heat in 3D, floats")
    assert on_chip.compiled_slots(heat) == 8 + 11 - 4
    assert on_chip.pass_slots(heat) == 8 + 8 - 4 + 5
    triad = of(CONTENT["loops"], "triad, 7500 a worker")
    assert round(on_chip.measured_cycles(triad, CONTENT["clock_hz"])) == 22711
    scores = of(CONTENT["exchanges"], "scores to rows of softmax")
    assert on_chip.exchange_cycles(scores) == 250 + 8 * 729 * 2 / 4 + 3 * 8 * 46
    moved = of(CONTENT["exchanges"], "the same, rearranged on the tile")
    assert on_chip.exchange_cycles(moved) == pytest.approx(8 * 729 * (21.4 + 2 / 8))


def test_no_measured_loop_is_slower_than_its_prediction_says() -> None:
    assert on_chip.slower(on_chip.compared_loops(CONTENT)) == []


def test_what_the_compiler_wrote_is_mostly_no_slower() -> None:
    """Those that it made pairs of spill."""
    assert on_chip.slower(on_chip.compared_assembly(CONTENT)) == [
        "heat in 2D, pairs by the compiler",
        "heat in 3D, pairs by the compiler",
    ]


def test_the_range_of_a_time_is_the_spread_of_what_was_measured() -> None:
    spread = on_chip.spread(CONTENT)
    assert set(spread) == set(FACTORS)
    for name, (least, most) in spread.items():
        low, high = FACTORS[name]
        assert low == pytest.approx(least, abs=0.006) and high == pytest.approx(most, abs=0.006), name


def test_a_slower_loop_is_seen() -> None:
    """What the comparison is for: another measurement, or another count, is outside."""
    for change in ({"measured": {"cycles": 2940 * 1.2}}, {"launches": []}):
        altered = copy.deepcopy(CONTENT)
        of(altered["loops"], "add, 576").update(change)
        assert on_chip.slower(on_chip.compared_loops(altered)) == ["add, 576"]
        assert on_chip.report(altered) != on_chip.report(CONTENT)


def test_the_document_has_what_is_printed(capsys: pytest.CaptureFixture) -> None:
    assert calibrate.main(["--on-chip"]) == 0
    printed = capsys.readouterr().out
    text = calibrate.RULES_DOCUMENT.read_text()
    block = text.partition("<!-- begin measured")[2].partition("-->\n")[2].partition("<!-- end measured")[0]
    assert block == printed
