# SPDX-License-Identifier: Apache-2.0
"""Runner, result files and report, on a tiny random model."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import TinyTokenizer, tiny_model

from sparq_study.accuracy import plots, report
from sparq_study.accuracy.engine import Evaluator
from sparq_study.accuracy.methods import SparQ, parse_method
from sparq_study.accuracy.plan import DEFAULT_METHODS, Plan
from sparq_study.accuracy.runner import Results, Runner, calibration_tokens, header, read_lines
from sparq_study.accuracy.tasks import TASKS, Metric
from sparq_study.accuracy.text import excerpts

PLAN = {
    "lm": {"items": 2, "length": 200, "span": 8},
    "needle": {"items": 2, "lengths": [200]},
    "common": {"items": 1, "common": 2, "common_count": 4, "rare": 5, "rare_count": 1},
}
TOKENIZER = TinyTokenizer()  # one: it gives out ids as words appear
METHODS = ["sparq:r=4,k=24", "h2o@sparq:r=4,k=24"]


@pytest.fixture(scope="module")
def evaluator():
    return Evaluator(tiny_model())


def run(evaluator, path, plan=None, **parts):
    plan = plan or Plan(PLAN, METHODS)
    results = Results.create(path, header(plan, "tiny", {"git": "x"}))
    runner = Runner(evaluator, TOKENIZER, plan, results)
    runner.run(**parts)
    return runner


@pytest.fixture(scope="module")
def lines(evaluator, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "lines.jsonl"
    runner = run(evaluator, path)
    runner.check_decode(TASKS["lm"].build(runner.tokenizer, 0, 0, length=100, span=1), 4)
    return read_lines(path)


def strip(line):
    return {key: value for key, value in line.items() if key != "seconds"}


def test_runner_writes_one_line_per_task_item_question_and_method(lines):
    keys = [(x["task"], x["item"], x["question"], x["method"]) for x in lines if x["kind"] == "result"]
    methods = ["dense", *METHODS]
    expected = {("lm", i, "sparse", m) for i in range(2) for m in methods}
    expected |= {("needle", i, q, m) for i in range(2) for q in ("dense", "sparse") for m in methods}
    expected |= {("common", 0, q, m) for q in ("dense", "sparse") for m in methods}
    assert len(keys) == len(set(keys)) and set(keys) == expected
    for line in lines:
        if line["kind"] == "result" and line["method"] == "dense":
            assert line["compression"] == 1 and line["sums"].get("kl", 0) == 0


def test_matched_methods_move_what_their_reference_moves(lines):
    by_key = {(x["task"], x["item"], x["question"], x["method"]): x for x in lines if x["kind"] == "result"}
    for (task, item, question, method), line in by_key.items():
        if "@" in method:
            reference = by_key[task, item, question, method.partition("@")[2]]
            assert 1 <= line["compression"] / reference["compression"] < 1.1


def test_questions_differ_for_sparse_methods_only(lines):
    """A dense prompt and a sparse one are the same for dense attention, and not for others."""
    results = [line for line in lines if line["kind"] == "result" and line["task"] == "common"]
    sums = {(line["question"], line["method"]): line["sums"] for line in results}
    assert sums["dense", "dense"] == sums["sparse", "dense"]
    assert sums["dense", METHODS[0]] != sums["sparse", METHODS[0]]


def test_what_is_calibrated_is_calibrated_on_other_texts(tmp_path):
    """On a piece of each genre of the set that the tasks do not have; once, and only where a method asks."""
    seen = []

    class Watched(Evaluator):
        def calibrate(self, tokens):
            seen.append(tokens)
            super().calibrate(tokens)

    evaluator = Watched(tiny_model())
    tasks = {"common": {**PLAN["common"], "items": 1}}
    run(evaluator, tmp_path / "none", Plan(tasks, METHODS))
    assert not seen
    plan = Plan(tasks, ["double_sparsity:r=4,k=24", "double_sparsity:r=4,k=20@sparq:r=4,k=24"])
    results = run(evaluator, tmp_path / "x", plan).results
    run(evaluator, tmp_path / "y", plan)
    (tokens,) = seen
    pieces = [text[:4096] for _, text in excerpts("held_out")[:3]]
    assert tokens == [id for p in pieces for id in TOKENIZER(p, add_special_tokens=False)["input_ids"]]
    assert {line["method"] for line in results.of_kind("result")} == {"dense", *plan.methods}
    both = Plan({"lm": {"texts": "held_out"}, "needle": {}}, ["double_sparsity"])
    with pytest.raises(ValueError, match="texts must leave one of study, held_out to calibrate on"):
        calibration_tokens(TOKENIZER, both)


def test_prompt_is_decoded_by_the_method_only_if_asked(evaluator, tmp_path):
    """Tokens given to the method: the whole prompt, or its last one."""
    seen = []
    plan = Plan({"needle": PLAN["needle"]}, [])
    results = Results.create(tmp_path / "x", header(plan, "tiny", {}))
    runner = Runner(evaluator, TOKENIZER, plan, results)
    item = TASKS["needle"].build(runner.tokenizer, 0, 0, lengths=[200])
    prefix, probe = evaluator.prefill(item.context), item.probes[0]
    for question in ("dense", "sparse"):
        base, tokens = runner._start(prefix, probe, question)
        assert base.length + len(tokens) == len(item.context) + len(probe.prompt) + len(probe.target) - 1
        seen.append(len(tokens))
    assert seen == [len(probe.target), len(probe.prompt) + len(probe.target) - 1]


def test_probes_add_up_and_windows_are_named(evaluator, tmp_path):
    """A window holds a needle from one position more than there are behind it."""
    sizes = {"length": 200, "keys": 2}
    distance = TASKS["multikey"].build(TOKENIZER, 0, 0, **sizes).distance
    methods = [f"local:k={distance + more}" for more in (0, 1)]
    run(evaluator, tmp_path / "x", Plan({"multikey": {"items": 1, **sizes}}, methods))
    found = [line for line in read_lines(tmp_path / "x") if line["kind"] == "result"]
    assert {line["sums"]["probes"] for line in found} == {2}
    assert {line["method"] for line in found if line["in_window"]} == {methods[1]}


def test_decode_check_lines(lines):
    checks = [line for line in lines if line["kind"] == "decode_check"]
    assert [line["method"] for line in checks] == ["dense", *METHODS]
    assert all(line["max_abs_log_prob_error"] < 2e-3 and line["same_argmax"] == 4 for line in checks)


def test_a_broken_off_run_goes_on_to_the_same_results(evaluator, lines, tmp_path):
    path = tmp_path / "lines.jsonl"
    texts = [json.dumps(line) + "\n" for line in lines if line["kind"] != "decode_check"]
    path.write_text("".join(texts[:5]) + texts[5][:30], encoding="utf-8")  # the last line cut short
    run(evaluator, path)
    again = [strip(line) for line in read_lines(path)]
    assert sorted(map(json.dumps, again)) == sorted(
        json.dumps(strip(line)) for line in lines if line["kind"] != "decode_check"
    )


def test_parts_share_the_items(evaluator, lines, tmp_path):
    """Into files of their own, so that what one does the other does not find done; and then into one file."""
    parts = []
    for part in range(2):
        run(evaluator, tmp_path / f"{part}.jsonl", part=part, n_parts=2)
        done = [x for x in read_lines(tmp_path / f"{part}.jsonl") if x["kind"] == "result"]
        parts.append({(x["task"], x["item"]) for x in done})
        run(evaluator, tmp_path / "both.jsonl", part=part, n_parts=2)
    whole = [line for line in lines if line["kind"] != "decode_check"]
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == {(x["task"], x["item"]) for x in whole if x["kind"] == "result"}
    assert len(read_lines(tmp_path / "both.jsonl")) == len(whole)


def test_results_refuse_other_sizes_but_take_more_items_and_methods(evaluator, tmp_path):
    path = tmp_path / "lines.jsonl"
    run(evaluator, path, Plan({"needle": {"items": 1, "lengths": [200]}}, []))
    message = r"^accuracy: plan of .* must equal this run's to continue it \(or use --force\), got"
    for refused in (
        Plan({"needle": {"items": 1, "lengths": [201]}}, []),
        Plan({"needle": {"items": 1, "lengths": [200]}}, [], seed=1),
        Plan({"needle": {"items": 1, "lengths": [200]}}, [], prefill_bits=16),
        Plan({"needle": {"items": 1, "lengths": [200]}}, [], kernels=True),
    ):
        with pytest.raises(ValueError, match=message):
            run(evaluator, path, refused)
    with pytest.raises(ValueError, match=r"^accuracy: model of .* must equal this run's .*, got 'tiny'$"):
        Results.create(path, header(Plan({}, []), "other", {}))
    run(evaluator, path, Plan({"needle": {"items": 2, "lengths": [200]}}, ["flexgen"]))
    got = read_lines(path)
    assert got[0]["plan"]["tasks"]["needle"]["items"] == 2
    rows = [(line["item"], line["method"]) for line in got if line["kind"] == "result"]
    assert sorted(rows) == 2 * [(0, "dense")] + 2 * [(0, "flexgen")] + 2 * [(1, "dense")] + 2 * [
        (1, "flexgen")
    ]
    # the report shows the plan of the header only
    run(evaluator, path, Plan({"needle": {"items": 1, "lengths": [200]}}, []))
    shown = report.select(read_lines(path), "needle", "sparse")
    assert {method: sorted(items) for method, items in shown.items()} == {"dense": [0]}


def test_results_name_the_code_they_were_continued_with(tmp_path):
    path, plan = tmp_path / "lines.jsonl", Plan({"lm": {}}, [])
    for version in ("a", "a", "b"):
        Results.create(path, header(plan, "tiny", {"git": version}))
    assert [line["versions"]["git"] for line in read_lines(path)] == ["a", "b"]


def fake(method: str, item: int, hits: int, compression: float = 2.0) -> dict:
    return {
        "kind": "result",
        "task": "needle",
        "item": item,
        "question": "sparse",
        "method": method,
        "compression": compression,
        "in_window": False,
        "sums": {"n": 5, "hits": hits, "exact": float(hits == 5), "probes": 1},
    }


def fake_lines(hits: dict[str, list[int]]) -> list[dict]:
    plan = {"tasks": {"needle": {"items": 5}}, "methods": list(hits), "seed": 0}
    lines = [{"kind": "header", "model": "m", "plan": plan, "versions": {"git": "g"}}]
    return lines + [fake(method, i, n) for method, values in hits.items() for i, n in enumerate(values)]


def test_report_says_worse_only_where_the_interval_does():
    lines = fake_lines({"dense": [5, 5, 4, 5, 5], "bad": [1, 0, 1, 1, 1], "same": [5, 4, 5, 5, 5]})
    rows = {
        row.split("|")[1].strip(): row for row in report.task_table(lines, "needle", "sparse").splitlines()
    }
    assert "-0.800" in rows["`bad`"] and "worse" in rows["`bad`"]
    assert "+0.000" in rows["`same`"] and "worse" not in rows["`same`"]
    assert "0.960 [" in rows["`dense`"] and "0.800" in rows["`dense`"]  # digits, and exact answers
    better = report.difference(
        *[report.select(lines, "needle", "sparse")[m] for m in ("bad", "dense")],
        Metric("KL", "hits", "n", "low"),
    )
    assert better.high < 0


def test_only_items_that_both_methods_have_are_compared():
    lines = fake_lines({"dense": [5, 5, 4, 5], "bad": [1, 0, 1, 1, 5]})
    bad, dense = (report.select(lines, "needle", "sparse")[m] for m in ("bad", "dense"))
    metric = TASKS["needle"].metrics[0]
    shared = report.difference({i: bad[i] for i in dense}, dense, metric)
    assert len(bad) == 5 and shared.value < -0.5
    assert report.difference(bad, dense, metric) == shared
    assert report.difference(dense, bad, metric).value == -shared.value
    assert report.difference({9: bad[4]}, dense, metric) is None


def test_a_distance_from_dense_is_not_compared_with_dense():
    """KL cannot be below 0: calling it worse says nothing. Bits per character are compared."""
    plan = {"tasks": {"lm": {"items": 5}}, "methods": ["dense", "near", "far"], "seed": 0}
    lines = [{"kind": "header", "model": "m", "plan": plan, "versions": {"git": "g"}}]
    for method, kl, bits in (("dense", 0, 0), ("near", 1, 0), ("far", 2, 9)):
        for item in range(5):
            sums = {"n": 10, "kl": kl, "bits": 50 + bits + item * (method == "dense"), "chars": 50, "same": 9}
            lines.append({**fake(method, item, 0), "task": "lm", "sums": sums})
    head, _, *rows = report.task_table(lines, "lm", "sparse").splitlines()
    assert "BPC - dense" in head and "KL - dense" not in head
    assert "worse" not in rows[1] and "worse" in rows[2] and "+0.1400 [" in rows[2]


def test_pairs_of_methods():
    """Compared pairs and METHOD@REFERENCE, paired by item; bold where the interval leaves 0 out."""
    hits = {"dense": [5, 5, 5, 5, 4], "sparq": [5, 4, 5, 3, 4], "sparq:mean_from=1": [5, 5, 5, 4, 4]}
    hits["h2o@sparq"] = [0, 1, 0, 0, 1]
    rows = report.pairs_table(fake_lines(hits)).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "`sparq:mean_from=1` - `sparq`",
        "`h2o@sparq` - `sparq`",
    ]
    assert "+0.080 [-0.120, +0.280]" in rows[0] and "**" not in rows[0]
    assert "**-0.760 [" in rows[1]
    assert report.pairs_table(fake_lines({"dense": [5]})) == ""
    # a reference is the same method however it is written: k=128 is the default
    rows = report.pairs_table(fake_lines({"sparq:r=16": [5], "h2o@sparq:r=16,k=128": [0]})).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["`h2o@sparq:r=16,k=128` - `sparq:r=16`"]


def test_levels_table_has_a_column_per_transfer():
    hits = {"dense": [5] * 5, "sparq:r=16": [4] * 5, "sparq:k=256": [5] * 5, "sparq:r=8,k=64": [2] * 5}
    hits.update(
        {"h2o@sparq:r=16,k=128": [1] * 5, "h2o@sparq:k=256": [3] * 5, "sparq:r=16,mean_from=1": [4] * 5}
    )
    head, _, *rows = report.levels_table(fake_lines(hits), "needle").splitlines()
    assert head == "| needle: digits | prompt | 1x | 2.0x | 2.0x | 2.0x |"
    values = {
        row.split("|")[1].strip(): [cell.strip().split(" ")[0] for cell in row.split("|")[3:-1]]
        for row in rows
        if "| sparse |" in row
    }
    assert values == {
        "dense": ["1.000", "", "", ""],
        "SparQ as published": ["", "1.000", "0.800", "0.400"],
        "SparQ, no mean value in layer 0": ["", "", "0.800", ""],
        "`h2o`": ["", "0.600", "0.200", ""],
    }
    assert report.levels_table(fake_lines({"dense": [5]}), "needle") == ""


def test_report_leaves_out_items_beyond_the_plan():
    lines = fake_lines({"dense": [5, 5, 5, 5, 5, 0]})
    assert sorted(report.select(lines, "needle", "sparse")["dense"]) == [0, 1, 2, 3, 4]


def test_report_of_few_items_claims_little():
    for n, interval in ((1, False), (2, False), (3, True), (4, True)):
        text = report.task_table(fake_lines({"dense": n * [5], "bad": [0, 1, 0, 0][:n]}), "needle", "sparse")
        assert ("[" in text.split("\n", 2)[2]) == interval and "worse" not in text
    assert "(so far 2)" in report.page(fake_lines({"dense": [5, 5]}))


def test_compression_averages_elements_not_ratios():
    items = {0: fake("a", 0, 5, 2.0), 1: fake("a", 1, 5, 4.0)}
    assert report.compression(items) == pytest.approx(1 / ((1 / 2 + 1 / 4) / 2))


def test_page_and_plots(lines, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib (extra `plot`)")
    page = report.page(lines)
    for task in PLAN:
        assert f"## {task}" in page
        assert all(report.task_table(lines, task, question) in page for question in TASKS[task].questions)
    assert "Check against true decoding" in page and "prompt decoded by the method" in page
    assert all(path.stat().st_size > 5000 for path in plots.draw(lines, tmp_path))


@pytest.mark.parametrize("label", DEFAULT_METHODS)
def test_every_default_method_has_a_family_of_its_own_name(label):
    name = plots.FAMILIES[plots.family(label)].label
    first = label.split(":")[0].split("@")[0].split("_")[0]
    aliases = {
        "sparq": "SparQ",
        "h2o": "H2O",
        "alisa": "ALISA",
        "lm": "LM-Infinite",
        "flexgen": "FlexGen",
        "low": "random low-rank",
    }
    assert name.startswith(aliases.get(first, first))


def test_coverage_at_full_rank_is_the_true_mass(evaluator, tmp_path):
    """With r = d the approximate scores are exact, so alpha is the mass, whatever the text."""
    found = []
    tokens = list(range(400))
    prefix = evaluator.prefill(tokens[:390])
    spans = []

    class Keep(type(parse_method("dense"))):
        def _attend(self, span):
            spans.append(span)
            return super()._attend(span)

    evaluator.span(prefix, tokens[390:], Keep())
    for span in spans:
        selected, s_hat = SparQ(rank=16, top_k=20).select(span)
        true = torch.softmax(span.scores(), -1)
        found.append(((s_hat - true) * selected[:, None]).abs().max().item())
        partial, s_part = SparQ(rank=4, top_k=20).select(span)
        assert ((s_part - true) * partial[:, None]).abs().max() > 1e-3
    assert max(found) < 1e-5
