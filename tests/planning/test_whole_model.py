# SPDX-License-Identifier: Apache-2.0
"""A whole model on IPUs: everything that is there at once counts, and what is said to fit does."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
from published_plans import plan, plan_model

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from sparq_ipu.planning import ModelPlan, plan_command, whole_model
from sparq_ipu.planning.device_model import device_model
from sparq_ipu.planning.links import link_seconds
from sparq_ipu.planning.model_shape import MODELS, ModelShape, from_config, shape_of

#: a small model, and settings that go with it
TINY = ModelShape("tiny", 6, 4, 2, 32, 128, 256, 1000)
SMALL: dict[str, Any] = dict(seq_len=1024, rank=8, top_k=16)


def planned(**changes: Any) -> ModelPlan:
    return plan_model(changes.pop("model", TINY), **{**SMALL, "split": "layers", **changes})


#: billions, as their authors publish them; Qwen's with biases, which are not counted here
PUBLISHED = {
    **{
        "Llama-3.2-1B": 1.236,
        "Llama-3.2-3B": 3.213,
        "SmolLM2-135M": 0.1345,
        "Qwen2.5-0.5B": 0.494,
        "Qwen2.5-1.5B": 1.5437,
        "Llama-2-7B": 6.738,
    },
    **{"Mistral-7B-v0.3": 7.248, "Llama-3-8B": 8.03, "Llama-2-13B": 13.016, "Llama-3-70B": 70.55},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_as_many_weights_as_published(name: str) -> None:
    assert MODELS[name].parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=1e-3)


def test_a_config_file_gives_the_shape(tmp_path: Path) -> None:
    config = {
        **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
        **{"intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False},
        "model_type": "llama",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of("op", "llama-3-8b") is MODELS["Llama-3-8B"]
    for path in (tmp_path, tmp_path / "config.json"):
        shape = shape_of("op", str(path))
        assert shape.parameters == MODELS["Llama-3-8B"].parameters
        assert (shape.head_dim, shape.n_kv_heads, shape.gated, shape.tied) == (128, 8, True, False)
    assert from_config("op", {"text_config": config}, "x").n_layers == 32
    assert not from_config("op", {**config, "model_type": "gpt2"}, "x").gated
    assert TINY.gated and not TINY.tied  # where nothing is said
    assert from_config("op", {**config, "num_key_value_heads": None}, "x").n_kv_heads == 32


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_hidden_layers": None}, "num_hidden_layers must be in the model's config (x), got none"),
        ({"vocab_size": 0}, "vocab_size must be in [1, "),
        ({"num_key_value_heads": 3}, "n_heads must be a multiple of n_kv_heads=3, got 4"),
        ({"num_experts": 8}, "model must have no experts"),
    ],
)
def test_a_config_that_says_too_little(change: dict[str, Any], message: str) -> None:
    config = {
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64},
        **{"intermediate_size": 128, "vocab_size": 100, **change},
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        from_config("op", config, "x")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": "no-such-model"}, "plan_model: model must be one of SmolLM2-135M, "),
        ({"split": "rows"}, "split must be one of auto, layers, heads, got 'rows'"),
        ({"attention": "x"}, "attention must be one of dense, dense-streaming, published, best, got 'x'"),
        ({"weights": "int3"}, "weights must be one of fp16, int8, int4, none, got 'int3'"),
        ({"weights_in": "x"}, "weights_in must be one of auto, sram, streaming, got 'x'"),
        ({"n_ipus": 7, "split": "layers"}, "n_ipus must be in [1, n_layers=6] to split layers, got 7"),
        (
            {"n_ipus": 3, "split": "heads"},
            "n_ipus must be a power of two up to 64 that splits n_kv_heads=2, ",
        ),
        ({"in_flight": 0}, "in_flight must be in [1, "),
        ({"hit_rate": 1.5}, "hit_rate must be in [0, 1], got 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        planned(**arguments)


def test_caches_of_all_batches_in_flight_are_there_at_once() -> None:
    one, three = (planned(attention="published", in_flight=n, n_ipus=2) for n in (1, 3))
    layers = dict(n_heads=4, n_kv_heads=2, head_dim=32, kernel="sparq-streaming", append=True, baseline=False)
    for result, n_layers in ((one, 3), (three, 9)):
        alone = plan(**layers, **SMALL, n_layers=n_layers)
        for ipu in result.ipus:
            assert ipu.cache_streaming == alone.streaming_memory_bytes
            assert ipu.attention_tile == alone.max_tile_bytes
    assert three.ipus[0].cache_streaming > 2.9 * one.ipus[0].cache_streaming
    # two IPUs work at once as soon as there are two batches, and no more than two do
    busiest = max(ipu.seconds for ipu in three.ipus)
    in_turn = sum(ipu.seconds for ipu in one.ipus) + one.seconds_links
    assert one.seconds_per_step == pytest.approx(in_turn) and one.seconds_links > 0
    assert one.tokens_per_second == pytest.approx(1 / one.seconds_per_step)
    assert three.tokens_per_second == pytest.approx(1 / busiest)
    two = planned(attention="published", in_flight=2, n_ipus=2)
    assert one.tokens_per_second < two.tokens_per_second <= 2 * one.tokens_per_second


def test_every_layer_and_every_weight_is_somewhere() -> None:
    for n_ipus in (1, 2, 4):
        result = planned(n_ipus=n_ipus, weights="int8")
        assert sum(ipu.n_layers for ipu in result.ipus) == TINY.n_layers
        assert result.weights_in == "sram" and all(ipu.weights_tile > 0 for ipu in result.ipus)
        in_sram = sum(ipu.weights_read for ipu in result.ipus)
        in_streaming = sum(ipu.weights_streaming for ipu in result.ipus)  # the input's embedding
        norms = 2 * TINY.hidden_size
        assert (in_sram + in_streaming) * 8 / 8.5 == pytest.approx(TINY.parameters - norms / 2, abs=8)
    heads = planned(n_ipus=2, split="heads")
    assert heads.layers_on_chip[1] == planned(n_ipus=2).layers_on_chip[1] == heads.request.shape.n_layers
    assert [ipu.n_layers for ipu in heads.ipus] == [6, 6]
    assert sum(ipu.weights_read for ipu in heads.ipus) == planned().ipus[0].weights_read
    model = device_model()
    there, back = (link_seconds(model, {way: 2 * 128}, 2) for way in ((1, 0), (0, 1)))
    on_chip = (model.exchange_fixed_cycles + 1 + model.sync_cycles) / model.clock_hz  # a byte of each tile
    # attention, and what follows it
    assert heads.seconds_links == pytest.approx(6 * 2 * (there + back + 2 * on_chip))


def test_an_embedding_that_is_tied_is_there_once() -> None:
    tied = ModelShape("tied", 6, 4, 2, 32, 128, 256, 1000, tied=True)
    streamed = [planned(model=m, weights_in="streaming").ipus[0].weights_streaming for m in (TINY, tied)]
    assert streamed[0] - streamed[1] == 2 * TINY.embedding_weights
    two = planned(
        model=tied, weights_in="streaming", n_ipus=2
    )  # the first has the input's, the last the output's
    assert sum(ipu.weights_streaming for ipu in two.ipus) == streamed[0]


def test_weights_in_streaming_memory_are_read_at_every_step() -> None:
    inside, outside = (planned(weights_in=place) for place in ("sram", "streaming"))
    model = device_model()
    read = outside.ipus[0].weights_read
    assert read == 2 * (6 * TINY.layer_weights + TINY.embedding_weights)
    assert outside.ipus[0].seconds_weights > read / model.streaming_bytes_per_second
    assert outside.seconds_per_step - inside.seconds_per_step == pytest.approx(
        outside.ipus[0].seconds_weights
    )
    assert inside.ipus[0].weights_tile == -(-read // model.tiles)
    assert planned().weights_in == "sram"  # the faster of both


def test_where_three_tiers_pay_layers_are_in_them() -> None:
    """More layers with an index of fewer bits; SparQ as published has 16 bits, whatever is asked for."""
    wide = ModelShape("wide", 60, 4, 4, 64, 256, 512, 1000)
    few_tiles = dataclasses.replace(device_model(), tiles=92)  # which plans are quick for
    settings: dict[str, Any] = dict(seq_len=16384, rank=32, top_k=32, hit_rate=0.9, weights="none")
    settings["device"] = few_tiles
    best, published = (plan_model(wide, attention=a, **settings) for a in ("best", "published"))
    two, of_two = (plan_model(wide, attention=a, index_bits=2, **settings) for a in ("best", "published"))
    ipu = best.ipus[0]
    assert 0 < ipu.n_on_chip < two.ipus[0].n_on_chip
    tiered = two.ipus[0].on_chip
    assert tiered is not None and tiered.request.cache.index_bits == 2
    assert ipu.n_on_chip < 60
    assert ipu.on_chip is not None and ipu.others is not None
    assert ipu.attention_tile == ipu.on_chip.max_tile_bytes + ipu.others.max_tile_bytes
    assert ipu.tile <= best.request.model.tile_bytes
    assert best.seconds_per_step < published.seconds_per_step == of_two.seconds_per_step
    with pytest.raises(ValueError, match="plan_model: index_bits must be one of 16, 8, 4, 2, got 3"):
        plan_model(wide, index_bits=3)
    text = str(best)
    assert f"{ipu.n_on_chip} of 60 layers in three tiers" in text and "90% of the selected rows" in text


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    big = ModelShape("big", 8, 4, 2, 32, 3072, 6144, 40000)
    arguments = dict(**SMALL, weights_in="sram", attention="published")
    result = plan_model(big, **arguments)
    assert not result.fits and re.search(r"IPU 0: tile memory \(\d+ of 638976 bytes", result.missing[0])
    assert plan_model(big, **{**arguments, "weights_in": "streaming"}).fits
    row = result.row()
    assert row["fits"] is False and row["missing"] == list(result.missing)
    assert "does not fit" in str(result) and "tokens/s" not in str(result)
    monkeypatch.setattr(whole_model, "PRODUCTS_TILE_BYTES", 700 * 1024)
    assert not plan_model(big, **{**arguments, "weights_in": "streaming"}).fits


def test_a_pipeline_that_memory_cannot_hold_is_refused() -> None:
    """One batch fits, all that are in flight do not."""
    model = dataclasses.replace(device_model(), streaming_memory_bytes=12 * 10**6)
    arguments = dict(n_ipus=6, weights_in="streaming", attention="published", batch=4, device=model)
    assert planned(**arguments).fits
    result = planned(in_flight=6, **arguments)
    assert not result.fits and "IPUs 1 to 4: streaming memory" in "\n".join(result.missing)
    assert planned(in_flight=3, **arguments).fits


@pytest.mark.parametrize("words", [["Llama-3-8B"], ["--S", "1024"], ["--quiet"]])
def test_a_list_of_models_is_of_nothing_else(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        plan_command.main(["--models", *words])
    assert stop.value.code == 2
    flag = words[0] if words[0].startswith("--") else "MODEL"
    assert f"{flag} must be left out with --models, got {words[-1]}" in capsys.readouterr().err


def test_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MODELS, "Tiny", TINY)
    assert plan_command.main(["--models"]) == 0
    assert "| Llama-3-8B | 32 | 32 | 8 | 128 | 8.03 |" in capsys.readouterr().out
    rows = tmp_path / "rows.jsonl"
    assert plan_command.main(["tiny", "--S", "1024", "--r", "16", "--json", str(rows)]) == 0
    out, err = capsys.readouterr()
    assert "not included: products" in out and "planning: attention dense" in err
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["attention"] for row in written] == ["dense", "dense-streaming", "published", "best"]
    dense, streaming, _, best = written
    assert dense["n_on_chip_per_ipu"] == [6] and streaming["n_on_chip_per_ipu"] == [0]
    assert dense["seconds_per_step"] < streaming["seconds_per_step"]
    assert out.startswith(f"fastest attention: dense, {1e3 * dense['seconds_per_step']:.3f} ms a token\n")
    over = (of["seconds_per_step"] / best["seconds_per_step"] for of in (dense, streaming))
    assert " | ".join(f"{factor:.2f}x" for factor in over) in out.splitlines()[-1]
    assert all(row["model"] == "tiny" and row["fits"] for row in written)
    for words, message in (
        (["x"], "model must be one of"),
        ([], "MODEL must be given"),
        (["tiny", "--ipus", "7"], "n_ipus must be in [1, n_layers=6] to split layers, or a power"),
        (["tiny", "--json", "no/such/folder/rows"], "must be a file that can be written"),
    ):
        with pytest.raises(SystemExit) as stopped:
            plan_command.main(words)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_what_does_not_fit_is_a_status_and_the_fullest_ipu_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one = planned(attention="dense")
    full = dataclasses.replace(of_one.ipus[0], products_tile=900 * 1024, cache_streaming=7 * 10**9)
    ipus = (full, of_one.ipus[0])
    too_much = dataclasses.replace(of_one, ipus=ipus, missing=("IPU 0: tile memory",))
    monkeypatch.setattr(plan_command, "plan_model", lambda *_, **__: too_much)
    assert plan_command.main(["tiny", "--quiet"]) == 1
    kib, gigabytes = full.tile / 1024, full.streaming / 1e9
    assert f"| dense | no | SRAM | 12 of 12 | {kib:.0f} | {gigabytes:.2f} | - |" in capsys.readouterr().out


def test_the_range_of_a_plan_is_that_of_all_its_layers() -> None:
    """Layers of each kind by what theirs may be faster, and slower."""

    def of(likely: float, low: float, high: float) -> Any:
        return types.SimpleNamespace(seconds_per_query=likely, seconds_low=low, seconds_high=high)

    (ipu,) = planned().ipus
    both = dataclasses.replace(
        ipu, n_layers=5, n_on_chip=2, on_chip=of(10.0, 8.0, 15.0), others=of(3.0, 2.0, 7.0)
    )
    assert both.seconds_off == (2 * 2.0 + 3 * 1.0, 2 * 5.0 + 3 * 4.0)
    assert dataclasses.replace(both, n_on_chip=5, others=None).seconds_off == (5 * 2.0, 5 * 5.0)
    assert dataclasses.replace(both, n_on_chip=0, on_chip=None).seconds_off == (5 * 1.0, 5 * 4.0)


#: of `sparq-ipu plan`, one by one
FLAGS = (
    "--S 99; --batch 2; --in-flight 2; --ipus 2; --split heads; --weights int4; --weights-in sram; --rank 3; "
    "--k 9; --n-local 1; --index-bits 2; --index-components 64; --row-bits 8; --hot-rows 60; "
    "--hit-rate 0.5; --device gc200"
)


def test_every_flag_reaches_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing but flags of the output is left: a new flag needs a place above."""
    seen: list[dict[str, Any]] = []

    def refuses(model: str, **options: Any) -> None:
        seen.append(options)
        raise ValueError("plan_model: seen")

    monkeypatch.setattr(plan_command, "plan_model", refuses)
    for added in ("", *FLAGS.split("; ")):
        with pytest.raises(SystemExit):
            plan_command.main(f"Llama-3-8B {added}".split())
    plain, *others = seen
    changed = [[name for name in options if options[name] != plain.get(name)] for options in others]
    assert all(len(names) == 1 for names in changed)
    flags = {action.dest for action in plan_command._parser("")._actions}
    output = {"help", "model", "models", "threads", "json", "quiet"}
    assert {name for (name,) in changed} == flags - output
