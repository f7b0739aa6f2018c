# SPDX-License-Identifier: Apache-2.0
"""Each family of docs/models.md: whether its steps are fast, the server takes it, and its GGUF files load."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any, Callable

import pytest
from families import FAMILIES, WINDOW
from gguf_files import a_gguf
from lean_steps import (
    FAST,
    SETTINGS,
    a_model,
    a_wide_model,
    assert_same_bits,
    counted,
    enabled,
    of_family,
    uneven,
)
from tiny_models import greedy, tiny_model, tokens_of, torch

import sparq_ipu.transformers
from sparq_ipu.models import load_model
from sparq_ipu.serve.places import Places
from sparq_ipu.transformers.decoder import families
from sparq_ipu.transformers.integration import steps_of
from sparq_ipu.transformers.supported import LayerKinds

pytest.importorskip("sparq_ipu._cpu")

OTHER_BITS = "its own forward pass has other bits in a trial"


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", FAST)
def test_fast_steps_have_the_bits_of_the_model(
    name: str, weights: str, monkeypatch: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "sparq_ipu")
    model = of_family(name, weights)
    assert_same_bits(model, monkeypatch)
    how = "one call of the CPU kernels"
    if weights == "bfloat16":
        how = f"few PyTorch operations, not {how} (linear layers have weights of 16 bits"
    assert steps_of(model).startswith(f"fast: {how}")
    assert caplog.records[-1].getMessage() == f"enable: steps are {steps_of(model)}"


@pytest.mark.parametrize("name", [name for name in FAST if FAMILIES[name].layers != "all"])
def test_steps_within_a_window(name: str, monkeypatch: Any) -> None:
    model = of_family(name, "int4")
    said = []
    for lean in (False, True):
        sparq_ipu.transformers.enable(model, lean=lean, **SETTINGS)
        said.append(greedy(model, tokens_of(18), 10))
    assert steps_of(model) == "fast: one call of the CPU kernels"
    assert torch.equal(*said)


#: what is left out of a description, and the test sees it
MISSING = {
    "Qwen 3": dict(head_norms=()),
    "SmolLM 3": dict(is_rotary=None),
    "Granite": dict(residual_multiplier=None),
    "OLMo 2": dict(norm_rounds_twice=True),
    "Gemma": dict(norm_offset=0.0),
    "Gemma 2 without soft-capping": dict(norms=families.FAMILIES["Llama"].norms),
    "Gemma 3": dict(head_norms=()),
}


@pytest.mark.parametrize("weights", ["bfloat16", "int4"])
@pytest.mark.parametrize("name", MISSING)
def test_a_description_that_is_wrong_is_not_used(name: str, weights: str, monkeypatch: Any) -> None:
    kind = FAMILIES[name].kind
    wrong = dataclasses.replace(families.FAMILIES[kind], **MISSING[name])
    monkeypatch.setitem(families.FAMILIES, kind, wrong)
    model = of_family(name, weights)
    assert_same_bits(model, monkeypatch, n_lean=0)
    assert steps_of(model).endswith(OTHER_BITS)


@pytest.mark.parametrize("weights", ["bfloat16", "int4"])
def test_what_somebody_looks_at_is_tried_too(weights: str, monkeypatch: Any) -> None:
    wrong = dataclasses.replace(families.FAMILIES["Qwen3"], **MISSING["Qwen 3"])
    monkeypatch.setitem(families.FAMILIES, "Qwen3", wrong)
    model = of_family("Qwen 3", weights)
    model.config.output_hidden_states = True
    sparq_ipu.transformers.enable(model, **SETTINGS)
    assert steps_of(model).endswith(OTHER_BITS)


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda layer: setattr(layer.self_attn, "scaling", 2 * layer.self_attn.scaling), OTHER_BITS),
        (lambda layer: layer.mlp.register_forward_hook(lambda *given: None), "a hook is in mlp"),
        (
            lambda layer: setattr(layer, "input_layernorm", torch.nn.LayerNorm(96)),
            "input_layernorm is a LayerNorm that was put there",
        ),
        (lambda layer: layer.self_attn.v_proj.weight.fill_(1e5), "a trial ended with: "),
    ],
)
def test_a_model_that_was_changed_keeps_its_own_pass(change: Callable[[Any], Any], why: str) -> None:
    model = a_model()
    change(model.model.layers[1])
    sparq_ipu.transformers.enable(model, **SETTINGS)
    assert steps_of(model).startswith(f"the model's own forward pass, slower for small models: {why}")
    assert "forward" not in vars(model.model)


def test_another_family_is_named() -> None:
    model = enabled(tiny_model("GPTNeoX"))
    assert "GPTNeoXModel is not among Llama, Mistral, " in steps_of(model)
    sparq_ipu.transformers.enable(model, lean=False, **SETTINGS)
    assert steps_of(model).endswith(": lean=False")


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("weights", ["bfloat16", "int4"])
def test_steps_of_some_places(name: str, weights: str) -> None:
    """Texts that come and go one by one, as the server has them."""
    model, said = of_family(name, weights), []
    for lean in (False, True):
        sparq_ipu.transformers.enable(model, lean=lean, **SETTINGS)
        windows = LayerKinds.of(model.config).windows
        places = Places([None] * 3, 3, 64, dict(device="cpu", n_threads=1), windows=windows)
        with torch.no_grad():
            for place, n in ((0, 40), (2, 11), (1, 2)):
                piece = places.tokens([place], [(0, n)])
                model(tokens_of(n, seed=place), cache=piece, position_ids=torch.arange(n)[None])
            positions = torch.tensor([[11], [40]])
            passed = dict(cache=places.tokens([2, 0]))
            said.append(model(tokens_of(1, batch=2), **passed, position_ids=positions).logits)
            if weights == "bfloat16":  # whose products round differently for other numbers of rows
                continue
            # three tokens of a text and one of another, beside the same one by one
            of, ahead = [0, 2, 0, 0], torch.tensor([[41], [12], [42], [43]])
            steps = list(zip(of, tokens_of(1, batch=4, seed=7), ahead))
            if lean:
                passed = dict(cache=places.tokens(of))
                said.append(model(tokens_of(1, batch=4, seed=7), **passed, position_ids=ahead).logits)
            else:
                alone = [
                    model(token[None], cache=places.tokens([place]), position_ids=at[None]).logits
                    for place, token, at in steps
                ]
                said.append(torch.cat(alone))
    half = len(said) // 2
    assert all(map(torch.equal, said[:half], said[half:]))


@pytest.mark.parametrize("settings", [SETTINGS, dict(SETTINGS, min_seq_len=47), None])
@pytest.mark.parametrize("name", FAST)
def test_several_tokens_of_a_text(name: str, settings: Any, monkeypatch: Any) -> None:
    """In one pass of the kernels they have the bits that they have one by one."""
    model, said = of_family(name, "int4"), []
    tokens = tokens_of(50)
    for at_once in (1, 5):
        if settings is None:
            sparq_ipu.transformers.enable_dense(model, tokens_per_step=8)
        else:
            sparq_ipu.transformers.enable(model, tokens_per_step=8, **settings)
        cache = sparq_ipu.transformers.SparqCache(model)
        with torch.no_grad(), counted(monkeypatch) as steps:
            model(tokens[:, :40], cache=cache)
            steps.clear()
            parts = tokens[:, 40:].split(at_once, 1)
            said.append(torch.cat([model(part, cache=cache).logits for part in parts], 1))
            cache.crop(-3)
            said.append(model(tokens[:, :at_once], cache=cache).logits[:, :1])
        assert len(steps) == len(parts) + 1
    assert torch.equal(said[0], said[2])
    assert torch.equal(said[1], said[3])


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_server_takes(name: str) -> None:
    from tiny_server import Asked, running_engine

    family = FAMILIES[name]
    model = tiny_model(family.kind, **family.changes)
    sparq_ipu.transformers.enable(model, rank=8, top_k=16, min_seq_len=40)
    prompt = tokens_of(50)
    expected = greedy(model, prompt, 8)[0].tolist()
    with running_engine(model) as engine:
        assert Asked(engine, prompt, 8).tokens == expected


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf])
def test_a_gguf_file_of_it(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    # scalings have tests of their own, and a part of a head is refused: transformers does not read it
    changes = {name: value for name, value in family.changes.items() if not name.startswith(("rope", "part"))}
    if family.gguf == "gemma3":  # files do not say which layers have windows, nor the scale of the scores
        changes = dict(num_hidden_layers=7, sliding_window=WINDOW, query_pre_attn_scalar=16)
    model = uneven(tiny_model(family.kind, vocab_size=112, **changes))

    def more(writer: Any) -> None:
        writer.add_pad_token_id(4)
        if family.gguf == "gemma3":
            writer.add_sliding_window(WINDOW)
            writer.add_rope_freq_base(1e6)

    path = a_gguf(tmp_path, model, {}, architecture=family.gguf, more=more)
    loaded, _ = load_model(path)
    with torch.no_grad():
        tokens = tokens_of(2 * WINDOW if family.gguf == "gemma3" else 20)
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-3, atol=1e-3)
    sparq_ipu.transformers.enable(loaded, **SETTINGS)
    assert steps_of(loaded).startswith("fast")


def test_long_rope(monkeypatch: Any) -> None:
    """Phi-4-mini: the factors of the rotary embedding are those of the longest text in the pass."""
    from sparq_ipu.serve.contexts import Contexts

    rope = dict(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[4.0, 5.0, 6.0, 7.0])
    rope.update(original_max_position_embeddings=37, partial_rotary_factor=0.5)
    changes = dict(sliding_window=None, original_max_position_embeddings=37, max_position_embeddings=128)
    model = a_wide_model("int4", "Phi3", rope_parameters=rope, **changes)
    assert_same_bits(model, monkeypatch)  # some steps are beyond that length
    assert steps_of(model) == "fast: one call of the CPU kernels"
    with pytest.raises(ValueError, match=r"^serve: context must be .*37.*, got 38"):
        Contexts(model, 1, 38)
    Contexts(model, 1, 37).close()


def test_the_table_of_the_docs() -> None:
    """In its order; no other family is said to work."""
    text = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (yes|no) \| (yes|no) \|$", text, re.MULTILINE)
    layers = {family.layers for family in FAMILIES.values()}
    said = [(name, of, *(value == "yes" for value in values)) for name, of, *values in rows if of in layers]
    expected = [(n, f.layers, f.is_fast, f.gguf is not None) for n, f in FAMILIES.items()]
    assert said == expected
