# SPDX-License-Identifier: Apache-2.0
"""study/capture.py: what it saves is what the model's attention receives."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import capture as bench  # noqa: E402
from tiny import TinyTokenizer  # noqa: E402
from tiny_models import save_checkpoint, tiny_model, tokens_of  # noqa: E402

from sparq_study import traces  # noqa: E402
from sparq_study.accuracy.tasks.retrieval import CITIES  # noqa: E402
from sparq_study.accuracy.trace_tokens import trace_tokens  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A directory with a random model and its tokenizer, and a file with a text of 60 words."""
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def model():
    """A tiny random Llama."""
    return tiny_model()


def test_arrays_are_the_attention_inputs(model):
    tokens = tokens_of(30)
    before = model.config._attn_implementation
    arrays = bench.capture(model, tokens, [0, 2], 5)
    assert model.config._attn_implementation == before
    assert sorted(arrays) == sorted(
        f"{name}_{layer}" for name in ("query", "key", "value") for layer in (0, 2)
    )
    assert arrays["query_0"].shape == (1, 6, 5, 16) and arrays["key_2"].shape == (1, 2, 30, 16)
    assert all(array.dtype == np.float16 for array in arrays.values())
    with torch.no_grad():
        cache = model(tokens, use_cache=True).cache
    for layer in (0, 2):
        assert np.array_equal(arrays[f"key_{layer}"], cache.layers[layer].keys.half().numpy())
        assert np.array_equal(arrays[f"value_{layer}"], cache.layers[layer].values.half().numpy())


def test_layers_of_the_model(model):
    with pytest.raises(ValueError, match=r"^capture: layers must be in \[0, n_layers=3\), got 3$"):
        bench.capture(model, tokens_of(10), [3], 1)


def test_queries_are_after_rotary_embedding(model):
    """Dense attention of the saved arrays is what goes into the layer's output projection."""
    tokens, seen = tokens_of(30), []
    hook = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    arrays = {name: array.astype(np.float64) for name, array in bench.capture(model, tokens, [0], 5).items()}
    hook.remove()
    for offset in range(5):
        n = 30 - 4 + offset
        for head in range(6):
            scores = arrays["key_0"][0, head // 3, :n] @ arrays["query_0"][0, head, offset] / 4
            weights = np.exp(scores - scores.max())
            expected = weights @ arrays["value_0"][0, head // 3, :n] / weights.sum()
            got = seen[0][0, n - 1, 16 * head : 16 * head + 16].numpy()
            np.testing.assert_allclose(got, expected, atol=2e-2 * np.abs(arrays["value_0"]).max())


def test_a_trace_is_the_same_inputs_step_by_step(model):
    """And step by step means: as a decode through a KV cache, one token after the other."""
    tokens = tokens_of(30)
    trace = bench.capture_trace(model, tokens, [2, 0], 4, text="t", kind="prose", model_name="m")
    assert trace.layer_numbers == [0, 2] and (trace.start, trace.n_steps, trace.n_positions) == (26, 4, 30)
    assert (trace.text, trace.kind, trace.model) == ("t", "prose", "m")
    arrays = bench.capture(model, tokens, [0, 2], 4)
    stepped = bench.capture(model, tokens[:, :27], [0, 2], 1)  # until the first step
    for number, layer in trace.layers.items():
        assert np.array_equal(layer.query, arrays[f"query_{number}"][0].swapaxes(0, 1))
        assert np.array_equal(layer.key, arrays[f"key_{number}"][0])
        np.testing.assert_allclose(layer.query[0], stepped[f"query_{number}"][0][:, 0], atol=2e-2)
        query, key, value = next(layer.steps(trace.start))
        assert np.array_equal(query, layer.query[0])
        np.testing.assert_allclose(key, stepped[f"key_{number}"][0][:, 26:], atol=2e-2)
        np.testing.assert_allclose(value, stepped[f"value_{number}"][0][:, 26:], atol=2e-2)
    with pytest.raises(ValueError, match=r"^capture: n_steps must be below n_tokens=30, got 30$"):
        bench.capture_trace(model, tokens, [0], 30, text="", kind="prose", model_name="")


def test_products_in_bfloat16_are_near(model):
    """Of both kinds of files; and the next one is in float32 again."""
    tokens = tokens_of(30)
    exact, short = (bench.capture(model, tokens, [0], 4, bits) for bits in (32, 16))
    for name, array in exact.items():
        difference = np.linalg.norm(array.astype(np.float64) - short[name])
        assert 1e-4 < difference / np.linalg.norm(array.astype(np.float64)) < 0.01, name
    about = dict(text="t", kind="prose", model_name="m")
    trace = bench.capture_trace(model, tokens, [0], 4, **about, prefill_bits=16)
    assert np.array_equal(trace.layers[0].key, short["key_0"][0])
    again = bench.capture_trace(model, tokens, [0], 4, **about)
    assert np.array_equal(again.layers[0].key, exact["key_0"][0])


def test_command_of_a_trace(checkpoint, tmp_path, capsys):
    output = tmp_path / "trace"
    words = [
        "--model",
        str(checkpoint),
        "--text-file",
        str(checkpoint / "prompt.txt"),
        "--output",
        str(output),
    ]
    sizes = ["--tokens", "50", "--steps", "6", "--layers", "2,1", "--kv-heads", "1"]
    assert bench.main([*words, *sizes, "--kind", "repetition"]) == 0
    assert "kind       repetition" in capsys.readouterr().out
    trace = traces.load(output)
    assert (trace.text, trace.kind, trace.model) == ("prompt", "repetition", checkpoint.name)
    assert (trace.start, trace.n_steps, trace.n_kv_heads, trace.layer_numbers) == (44, 6, 1, [1, 2])
    assert bench.main([*words, *sizes, "--kind", "repetition", "--prefill-bits", "16", "--force"]) == 0
    short, exact = traces.load(output).layers[1].key.astype(float), trace.layers[1].key.astype(float)
    assert 0 < np.abs(short - exact).max() < 0.1 * np.abs(exact).max()
    capsys.readouterr()
    for options, message in (
        (["--tokens", "50", "--steps", "50"], "--steps must be in [1, --tokens=50), got 50"),
        (["--tokens", "50", "--steps", "0"], "--steps must be in [1, --tokens=50), got 0"),
        (["--kind", "repetition"], "--kind and --kv-heads must come with --steps, got none"),
        (["--tokens", "61", "--steps", "1"], "capture: n_tokens must be at most the 60 of the text, got 61"),
        ([*sizes, "--kv-heads", "3"], "trace: n_kv_heads must be in [1, 2], got 3"),
        ([*sizes, "--kind", "retrieval"], "capture: n_tokens must leave room for what is asked, got "),
    ):
        with pytest.raises(SystemExit):
            bench.main([*words, "--force", "--layers", "1", *options])
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main(["--excerpt", "none", "--output", str(tmp_path / "x")])
    assert "--excerpt must be among play_as_you_like_it, " in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_is_decoded():
    tokenizer = TinyTokenizer()
    text = " ".join(f"word{i}" for i in range(1500))
    sizes = dict(n_tokens=1400, n_steps=40)

    def said(kind, seed=0, **changes):
        tokens = trace_tokens(tokenizer, text, kind, **{**sizes, **changes}, seed=seed)
        assert len(tokens) == {**sizes, **changes}["n_tokens"]
        return tokenizer.decode(tokens[:1360]), tokenizer.decode(tokens[1360:])

    before, after = said("prose")
    assert before + after == tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"][:1400])
    assert said("code") == (before, after)
    before, after = said("repetition")
    assert after.strip() and after.strip() in before[: len(before) // 2] and text.startswith(before)
    before, after = said("retrieval")
    facts = re.findall(r"The secret number of (\w+) is (\d{5})\.", after)
    assert facts and all(f"The secret number of {city} is {number}." in before for city, number in facts)
    assert said("retrieval", seed=1)[1] != after
    everything = tokenizer.decode(trace_tokens(tokenizer, text, "retrieval", n_tokens=1500, n_steps=500))
    asked = re.findall(r"\n\nThe secret number of (\w+) is", everything)
    assert sorted(asked[:30]) == sorted(CITIES) and len(asked) > 30 and asked[:30] != asked[30:60]


def test_command(checkpoint, tmp_path, capsys):
    output = tmp_path / "inputs.npz"
    common = [
        "--model",
        str(checkpoint),
        "--text-file",
        str(checkpoint / "prompt.txt"),
        "--output",
        str(output),
    ]
    assert bench.main([*common, "--tokens", "40", "--queries", "3", "--layers", "1"]) == 0
    with np.load(output) as saved:
        expected = bench.capture(tiny_model(), tokens_of(60)[:, :40], [1], 3)
        assert sorted(saved) == sorted(expected)
        assert all(np.array_equal(saved[name], expected[name]) for name in expected)
    short = ["--tokens", "40", "--queries", "3", "--layers", "1", "--prefill-bits", "16", "--force"]
    assert bench.main([*common, *short]) == 0
    with np.load(output) as saved:
        assert not np.array_equal(saved["key_1"], expected["key_1"])
    for options, message in (
        (["--tokens", "40", "--layers", "1"], "exists; --force overwrites it"),
        (["--output", str(tmp_path / "none" / "x.npz")], "--output must be a file that can be written, got"),
        (["--force", "--tokens", "61", "--queries", "3"], "--tokens: the text must have 61 tokens, got 60"),
        (
            ["--force", "--tokens", "40", "--queries", "3", "--layers", "3"],
            "--layers must be in [0, 3), the layers of the model, got 3",
        ),
        (["--force", "--model", "nowhere", "--layers", "1,-1"], "--layers must be at least 0, got -1"),
        (
            ["--force", "--tokens", "40", "--layers", "1", "--queries", "41"],
            "--queries must be in [1, --tokens=40], got 41",
        ),
        (["--force", "--tokens", "40", "--queries", "0"], "--queries must be in [1, --tokens=40], got 0"),
        (["--force", "--tokens", "-1"], "--tokens must be at least 1, got -1"),
        (["--force", "--layers", "1;2"], "--layers must be integers with commas between them, got '1;2'"),
        (["--force", "--model", "nowhere"], "load_model: path must exist, got nowhere"),
        (
            ["--force", "--model", "nowhere", "--text-file", "nowhere.txt"],
            "--text-file must be a file of UTF-8 text that can be read, got nowhere.txt (No such file or dir",
        ),
    ):
        with pytest.raises(SystemExit):
            bench.main([*common, *options])
        assert message in capsys.readouterr().err
    tiny_model().save_pretrained(tmp_path / "bare")
    with pytest.raises(SystemExit):
        bench.main([*common, "--force", "--model", str(tmp_path / "bare")])
    assert "--model must come with a tokenizer, got none in" in capsys.readouterr().err


def test_numbers_beyond_float16(model):
    model.model.layers[1].self_attn.v_proj.weight.mul_(1e6)
    message = "^" + re.escape("capture: value_1 must fit float16, got numbers beyond 65504")
    with pytest.raises(ValueError, match=message):
        bench.capture(model, tokens_of(10), [1], 2)
