# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu plan --device cpu`: bytes, verdicts, and what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from sparq_ipu.planning import cpu_plan, plan_command
from sparq_ipu.planning.cpu_plan import BEYOND_WINDOW, CpuPlan
from sparq_ipu.planning.model_shape import MODELS, ModelShape, shape_of
from sparq_ipu.transformers.settings.layers import complete

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Timed:
    """A probe whose steps take `fixed` ms and, for each 1,000 positions, `dense` or `sparq` ms."""

    fixed: float
    dense: float
    sparq: float
    n_layers: int = 2
    break_even: Any = 1234
    spread: float = 1.2

    def step_seconds(self, method: str, seq_len: int) -> float:
        return (self.fixed + getattr(self, method) * seq_len / 1000) / 1e3

    def first_token_seconds(self, seq_len: int) -> float:
        return seq_len / 1e3


def plan_of(model: Any, seq_len: int, timed: Any = None, **changes: Any) -> CpuPlan:
    shape = model if isinstance(model, ModelShape) else MODELS[model]
    settings = complete("plan", shape.head_dim, {"top_k": 256})
    windows = (None,) * shape.n_layers
    plan = CpuPlan(shape, "int4", seq_len, 1, 2, settings, windows, timed or Timed(100, 1, 0.5))
    return dataclasses.replace(plan, **changes)


def test_the_verdict() -> None:
    of_7b = dataclasses.replace(MODELS["Mistral-7B-v0.3"], n_kv_heads=4)
    assert plan_of(of_7b, 8192).verdict.startswith("SparQ gains 4% in tokens/s at 8,192 positions.")
    assert "faster from about 1,200 positions on" in plan_of(of_7b, 8192).verdict
    assert plan_of(of_7b, 2048).verdict.startswith("SparQ gains nothing at 2,048 positions.")
    assert plan_of(of_7b, 100).verdict == ("SparQ gains nothing at 100 positions: it is used from 1,024 on.")
    busy = plan_of(of_7b, 8192, Timed(100, 1, 0.5, spread=1.4)).verdict
    assert busy.startswith("Other programs were running, so repeat this on an idle machine. SparQ gains 4%")
    fast = plan_of(of_7b, 8192, Timed(1, 1, 0.1, break_even=None)).verdict
    assert fast.startswith("SparQ decodes 5.1 times as many tokens/s") and "not faster at any" in fast


def test_a_short_text_is_decoded_densely_by_both() -> None:
    short = plan_of("SmolLM2-135M", 200)
    assert short.step_seconds("sparq") == short.step_seconds("dense")
    assert short.cache_bytes_read(2) == short.cache_bytes_read(None)


def test_layers_with_a_window_keep_little_more_and_read_no_more_than_it() -> None:
    plan = plan_of("SmolLM2-135M", 8192, windows=(512, None) * 15)
    dense = plan_of("SmolLM2-135M", 8192)
    held = 512 + BEYOND_WINDOW
    assert plan.cache_bytes(None) == pytest.approx(dense.cache_bytes(None) * (held + 8192) / 2 / 8192)
    read, all_read = plan.cache_bytes_read(None), dense.cache_bytes_read(None)
    assert read == pytest.approx(all_read * (512 + 8192) / 2 / 8192, rel=1e-3)
    assert plan.cache_bytes(2) - plan.cache_bytes(None) == pytest.approx(
        (dense.cache_bytes(2) - dense.cache_bytes(None)) / 2
    )


def test_the_shape_of_a_gguf_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from gguf_files import a_gguf

    config = transformers.LlamaConfig(
        **dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=16),
        **dict(num_attention_heads=4, num_key_value_heads=2),
    )
    path = a_gguf(tmp_path, transformers.LlamaForCausalLM(config), {})
    shape = shape_of("plan", str(path))
    assert (shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.vocab_size) == (3, 4, 2, 97)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sparq_ipu._cpu")
    config = transformers.LlamaConfig(
        **dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=16),
        **dict(num_attention_heads=4, num_key_value_heads=2, dtype="bfloat16"),
    )
    config.save_pretrained(tmp_path)
    file = tmp_path / "rows.jsonl"
    for model, more in ((tmp_path, []), (tmp_path / "config.json", ["--k", "32", "--weights", "int8"])):
        words = [str(model), "--device", "cpu", "--S", "1200", "--quiet", "--json", str(file), *more]
        assert plan_command.main(words) == 0
    out = capsys.readouterr().out
    assert "SparQ " in out.splitlines()[0] and "| dense | " in out and "3 of 3 layers" in out
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert (first["weights"], second["weights"]) == ("bfloat16", "int8")
    assert 0 < second["cache_bytes_read"] < first["cache_bytes_read"] < first["cache_bytes_read_dense"]
    assert all(row[name] > 0 for row in (first, second) for name in row if name.endswith("seconds"))


@pytest.mark.parametrize(
    "stored, asked, planned",
    [
        ("int4", None, "int4"),
        ("int4", "int8", "int4"),
        ("int8", "int4", "int4"),
        ("int4", "bfloat16", "bfloat16"),
        ("float32", "int8", "int8"),
    ],
)
def test_a_layer_is_planned_with_the_bits_that_generate_leaves_it(
    stored: str, asked: str | None, planned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sparq_ipu._cpu")
    config = transformers.LlamaConfig(head_dim=16, hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    monkeypatch.setattr(cpu_plan, "_config", lambda op, model: (config, "one", stored, None))
    probe = "sparq_ipu.transformers.generation.probe.probe"
    monkeypatch.setattr(probe, lambda config, weights, *rest: Timed(len(weights), 1, 0.5))
    plan = cpu_plan.plan_cpu("one", seq_len=2048, weights=asked)
    assert plan.weights == planned and plan.step_seconds("dense") == (len(planned) + 2.048) / 1e3


@pytest.mark.parametrize("asked", [None, "int8", "int4"])
def test_bytes_are_those_of_the_model_that_generate_loads(
    asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of several kinds: most of 4 bits, some of 6 or 8, and an output layer of 8."""
    pytest.importorskip("transformers")
    pytest.importorskip("sparq_ipu._cpu")
    from gguf_files import a_gguf
    from tiny_models import tiny_model

    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    sizes = dict(hidden_size=192, intermediate_size=512, vocab_size=512)
    kinds = {"down_proj": "Q6_K", "v_proj": "Q5_0", "lm_head": "Q8_0", "_proj": "Q4_0", "embed": "Q8_0"}
    path = a_gguf(tmp_path, tiny_model(**sizes), kinds)
    monkeypatch.setattr("sparq_ipu.transformers.generation.probe.probe", lambda *_: Timed(1, 1, 0.5))
    planned = cpu_plan.plan_cpu(str(path), seq_len=2048, weights=asked)
    checkpoint = Checkpoint(path)
    checkpoint.model(None, asked)
    norms = 2 * 192 * planned.shape.n_layers * planned.bits[0] / 8  # which are counted as matrices are
    assert planned.weight_bytes_read == pytest.approx(checkpoint.few_bits.bytes_after + norms, abs=1)
    assert planned.bits[0] == 5.0 if asked == "int4" else 5.0 < planned.bits[0] < 9.0


@pytest.mark.parametrize(
    "words, message",
    [
        ("x --device cpu", "model must be one of SmolLM2-135M"),
        ("SmolLM2-135M --device cpu --ipus 2", "--ipus must be left out with --device cpu, got 2"),
        ("SmolLM2-135M --device cpu --weights fp16", "weights must be one of int4, int8, bfloat16"),
        ("SmolLM2-135M --threads 2", "--threads must be left out without --device cpu, got 2"),
        ("SmolLM2-135M --device cpu --S 0", "seq_len must be in [1, "),
    ],
)
def test_what_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(cpu_plan, "CpuPlan", None)  # nothing is planned
    with pytest.raises(SystemExit) as stopped:
        plan_command.main(words.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def rows_of_smollm2() -> dict[tuple[str, str, int], dict[str, Any]]:
    """Rows by method, weights and length."""
    rows = [json.loads(line) for line in (ROOT / "bench/results/peers.jsonl").read_text().splitlines()]
    ours = [row for row in rows if row["method"] in ("dense", "recommended")]
    return {(row["method"], row["dtype"], row["seq_len"]): row for row in ours if row["error"] is None}


@pytest.mark.parametrize("weights", ["int4", "bfloat16"])
def test_two_lengths_predict_a_third_within_15_percent(weights: str) -> None:
    """The form of the predictions, held to measured rows: 512 and 8,192 positions predict 2,048."""
    pytest.importorskip("transformers")
    pytest.importorskip("sparq_ipu._cpu")
    from sparq_ipu.transformers.generation.probe import Probe

    rows, low, high = rows_of_smollm2(), 512, 8192
    steps = {
        name: tuple(rows[method, weights, n]["seconds_per_step"] for n in (low, high))
        for name, method in (("dense", "dense"), ("sparq", "recommended"))
    }
    # Densely: with SparQ the prompt of 8,192 skips blocks.
    first = {n: rows["dense", weights, n]["first_token_seconds"] for n in (low, 2048, high)}
    short, long = first[low], first[high]
    pairs = [n * (n + 1) / 2 for n in (low, high)]
    of_pair = (long - short * high / low) / (pairs[1] - pairs[0] * high / low)
    of_token = (short - of_pair * pairs[0]) / low
    probe = Probe((low, high), steps, 0, of_token, of_pair, 30)
    for name, method in (("dense", "dense"), ("sparq", "recommended")):
        measured = rows[method, weights, 2048]["seconds_per_step"]
        assert probe.step_seconds(name, 2048) == pytest.approx(measured, rel=0.15)
    if weights == "int4":  # prompts in bfloat16 do not grow evenly: docs/benchmarks.md
        assert probe.first_token_seconds(2048) == pytest.approx(first[2048], rel=0.15)
    assert probe.step_seconds("dense", high) == steps["dense"][1] and of_pair > 0


def test_committed_predictions_are_within_15_percent() -> None:
    """Medians of all committed runs, each measured and predicted in one process."""
    rows = [json.loads(line) for line in (ROOT / "bench/results/predictions.jsonl").read_text().splitlines()]
    cases: dict[tuple[int, str, str], list[dict]] = {}
    for row in rows:
        cases.setdefault((row["seq_len"], row["dtype"], row["method"]), []).append(row)
    weights = ("int4", "int8", "bfloat16")
    every = set(itertools.product((512, 2048, 8192), weights, ("dense", "recommended")))
    assert set(cases) == {case for case in every if case[0] > 512 or case[2] == "dense"}  # dense at 512
    for case, runs in cases.items():
        assert len(runs) >= 2
        for name in ("seconds_per_step", "first_token_seconds"):
            of_runs = [row for row in runs if row[name] is not None]
            measured, predicted = (
                statistics.median(row[f"{of}{name}"] for row in of_runs) for of in ("", "predicted_")
            )
            assert predicted == pytest.approx(measured, rel=0.15), (case, name)


def test_break_even_is_where_the_lines_cross() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("sparq_ipu._cpu")
    from sparq_ipu.transformers.generation.probe import Probe

    steps = {"dense": (0.010, 0.018), "sparq": (0.012, 0.016)}
    probe = Probe((1000, 9000), steps, 0.0, 0.0, 0.0, 2)
    assert probe.break_even == 5000
    assert probe.step_seconds("dense", 5000) == pytest.approx(probe.step_seconds("sparq", 5000))
    assert Probe((1000, 9000), {**steps, "sparq": (0.009, 0.016)}, 0.0, 0.0, 0.0, 2).break_even == 1000
    assert Probe((1000, 9000), {**steps, "sparq": (0.012, 0.020)}, 0.0, 0.0, 0.0, 2).break_even is None
