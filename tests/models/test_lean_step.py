# SPDX-License-Identifier: Apache-2.0
"""Steps of one token in fewer operations: the bits are those of the model's own forward pass."""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest
from families import FAMILIES
from lean_steps import (
    SETTINGS,
    a_model,
    a_wide_model,
    assert_same_bits,
    both,
    counted,
    enabled,
    logits,
    logits_of_own,
    skip_trials,
)
from tiny_models import tiny_model, tokens_of, torch
from transformers.models.llama import modeling_llama

import sparq_ipu.transformers
from sparq_ipu.transformers import SparqCache
from sparq_ipu.transformers.decoder import lean_step
from sparq_ipu.transformers.decoder.families import Family, family_of
from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear, JoinedLinear
from sparq_ipu.transformers.decoder.rotary import Rotary

LEAN = ("Llama 2", "Llama 3", "Qwen 2")


@pytest.fixture(autouse=True)
def _no_trials(monkeypatch: Any) -> None:
    skip_trials(monkeypatch)


@pytest.mark.parametrize("family", LEAN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_bits_are_those_of_the_model(family: str, dtype: str, monkeypatch: Any) -> None:
    assert_same_bits(a_model(family, getattr(torch, dtype)), monkeypatch)


@pytest.mark.parametrize("how, n_calls", [("sparq", 6), ("dense", 6)])
def test_a_layer_is_one_call(how: str, n_calls: int, monkeypatch: Any) -> None:
    """From its products to attention, where the kernels of the CPU can."""
    done, own = [], Rotary.attend
    monkeypatch.setattr(Rotary, "attend", lambda *given: (done.append(own(*given)), done[-1])[1])
    model = a_model()
    if how == "dense":
        sparq_ipu.transformers.enable_dense(model)
    else:
        sparq_ipu.transformers.enable(model, **SETTINGS)
    logits(model)
    assert len(done) == 6 * model.config.num_hidden_layers
    assert sum(one is not None for one in done) == n_calls * model.config.num_hidden_layers


def test_rows_with_padding(monkeypatch: Any) -> None:
    mask = torch.ones(3, 34, dtype=torch.int64)
    mask[1, :9] = mask[2, 20:] = 0
    assert_same_bits(a_model(), monkeypatch, mask=mask)


@pytest.mark.parametrize(
    "of, name, wrong",
    [
        (lean_step, "_signed", lambda sin: sin),
        (
            Family,
            "norm",
            lambda _, norm, hidden: torch.nn.functional.rms_norm(
                hidden, hidden.shape[-1:], norm.weight, 1e-3
            ),
        ),
    ],
)
def test_the_comparison_sees_another_step(
    of: Any, name: str, wrong: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(of, name, wrong)
    own, lean, _ = both(a_model(), monkeypatch)
    assert not torch.equal(own, lean)


def test_text_is_that_of_generate(monkeypatch: Any) -> None:
    model, prompt = a_model(dtype=torch.bfloat16), tokens_of(30)
    said = []
    for lean in (False, True):
        sparq_ipu.transformers.enable(model, lean=lean, **SETTINGS)
        with counted(monkeypatch) as steps:
            mask = torch.ones_like(prompt)
            said.append(model.generate(prompt, attention_mask=mask, max_new_tokens=12, do_sample=False))
        assert len(steps) == 11 * lean
    assert torch.equal(*said)


def test_dense_attention(monkeypatch: Any) -> None:
    model = a_model()
    sparq_ipu.transformers.enable_dense(model, lean=False)
    own = logits(model)
    sparq_ipu.transformers.enable_dense(model)
    with counted(monkeypatch) as steps:
        assert torch.equal(own, logits(model))
    assert len(steps) == 6


class OtherMLP(modeling_llama.LlamaMLP):
    """A class that is not the one written out."""


def _doubled(module: Any, args: Any, output: Any) -> Any:
    return output * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.model.layers[1].mlp.register_forward_hook(_doubled),
        lambda model: model.model.norm.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        lambda model: setattr(model.model.layers[2].mlp, "__class__", OtherMLP),
        lambda model: setattr(model.model.layers[0].input_layernorm, "forward", lambda hidden: hidden * 2),
        lambda model: setattr(model.model.config, "output_hidden_states", True),
    ],
    ids=["hook", "pre-hook", "other class", "own forward", "captured"],
)
def test_a_part_that_is_changed_is_heard(change: Callable[[Any], Any], monkeypatch: Any) -> None:
    """Before and after the model is enabled."""
    changed = a_model()
    change(changed)
    own = assert_same_bits(changed, monkeypatch, n_lean=0)
    later = enabled(a_model())
    change(later)
    with counted(monkeypatch) as steps:
        assert torch.equal(own, logits(later))
    assert not steps


def test_a_linear_layer_may_be_any_module(monkeypatch: Any) -> None:
    """Adapters replace them, and hooks look at them: they are called as modules."""
    model, seen = a_model(), []
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *given: seen.append(1))
    model.model.layers[1].self_attn.q_proj = torch.nn.Sequential(model.model.layers[1].self_attn.q_proj)
    assert_same_bits(model, monkeypatch)
    assert len(seen) == 2 * (6 + 1)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_an_activation_may_be_any_module(activation: str, monkeypatch: Any) -> None:
    seen: list[int] = []
    model = tiny_model("Llama", hidden_act=activation)
    own = assert_same_bits(model, monkeypatch)
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda *given: seen.append(1))
    assert torch.equal(own, logits(model))
    assert len(seen) == 6 + 1


def test_arguments_that_ask_for_more(monkeypatch: Any) -> None:
    model, looked_at = a_model(), a_model()
    sparq_ipu.transformers.enable(model, **SETTINGS)
    sparq_ipu.transformers.enable(looked_at, **SETTINGS)
    with counted(monkeypatch) as steps:
        logits(looked_at, output_hidden_states=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits(model)
        cache = SparqCache(model)
        model(tokens_of(1), cache=cache)  # with gradients
        with torch.no_grad():
            model(tokens_of(2), cache=cache)
            assert not steps
            model(tokens_of(1), cache=cache)
        assert len(steps) == 1


@pytest.mark.parametrize("weights", [None, "int8"])
def test_hidden_states_that_were_asked_for_once(weights: str | None, monkeypatch: Any) -> None:
    """transformers leaves its hooks in the model, which do nothing afterwards."""
    model = enabled(a_model() if weights is None else a_wide_model(weights))
    with counted(monkeypatch) as steps:
        expected, before = logits(model), len(steps)
        states = model(tokens_of(3), output_hidden_states=True).hidden_states
        assert len(states) == 1 + model.config.num_hidden_layers
        assert torch.equal(logits(model), expected)
    assert len(steps) == 2 * before > 0
    assert (model.model.forward.find_few_bits() is None) == (weights is None)


@pytest.mark.parametrize("family", [name for name in FAMILIES if not FAMILIES[name].is_fast])
def test_other_families_keep_their_own(family: str) -> None:
    model = enabled(tiny_model(FAMILIES[family].kind, **FAMILIES[family].changes))
    assert "forward" not in vars(sparq_ipu.transformers.integration.decoder_of(model))


def test_functions_that_somebody_put_there(monkeypatch: Any) -> None:
    assert isinstance(family_of(a_model().model), Family)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda *given: None)
    assert family_of(a_model().model) == f"functions of {modeling_llama.__name__} were replaced"
    monkeypatch.undo()
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", lambda self, hidden: hidden)
    assert family_of(a_model().model) == f"functions of {modeling_llama.__name__} were replaced"


def test_a_copy_is_a_model_of_its_own(monkeypatch: Any) -> None:
    model = enabled(a_model())
    twin = copy.deepcopy(model)
    expected = logits(model)
    torch.nn.init.zeros_(model.model.norm.weight)
    with counted(monkeypatch) as steps:
        assert torch.equal(logits(twin), expected)
    assert len(steps) == 6
    sparq_ipu.transformers.disable(twin)
    assert "forward" not in vars(twin.model)
    assert "forward" in vars(model.model)


@pytest.mark.parametrize("part", ["mlp", "input_layernorm"])
def test_a_copy_that_is_changed_is_heard(part: str, monkeypatch: Any) -> None:
    model = enabled(a_model())
    twin = copy.deepcopy(model)
    setattr(twin.model.layers[1], part, torch.nn.Identity())
    with counted(monkeypatch) as steps:
        lean = logits(twin)
    assert not steps
    assert torch.equal(lean, logits_of_own(twin))


@pytest.mark.parametrize("name", ["enable", "enable_dense"])
def test_lean_is_true_or_false(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: lean must be True or False, got 2"):
        getattr(sparq_ipu.transformers, name)(a_model(), lean=2)


def test_codes_of_joined_layers_are_in_memory_once() -> None:
    model = enabled(a_wide_model("int4"))
    mlp = model.model.layers[0].mlp
    gate, up = (layer.packed for layer in (mlp.gate_proj, mlp.up_proj))
    assert gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.mlp.up_proj.packed[:, :, -64:].view(torch.float16).mul_(2),
        lambda layer: layer.mlp.up_proj.packed.bitwise_xor_(3),
        lambda layer: layer.self_attn.k_proj.bias.add_(1),
        lambda layer: setattr(layer.mlp, "up_proj", torch.nn.Sequential(layer.mlp.gate_proj)),
        lambda layer: layer.self_attn.v_proj.register_forward_hook(_doubled),
    ],
    ids=["scales", "codes", "bias", "another layer", "hook"],
)
def test_a_joined_layer_that_is_changed_is_heard(change: Callable[[Any], Any]) -> None:
    model = enabled(a_wide_model("int4"))
    before = logits(model)
    change(model.model.layers[1])
    lean = logits(model)
    assert torch.equal(lean, logits_of_own(model))
    assert not torch.equal(lean, before)


def test_layers_that_are_not_joined() -> None:
    def linear(n: int, bias: bool = False, bits: int = 8) -> Any:
        return FewBitsLinear(torch.nn.Linear(64, n, bias=bias, dtype=torch.bfloat16), bits)

    assert JoinedLinear.fit([linear(64), linear(128)])
    assert not JoinedLinear.fit([linear(64), linear(96)])  # no whole blocks
    assert not JoinedLinear.fit([linear(64), linear(64, bias=True)])
    assert JoinedLinear.fit([linear(64), linear(64, bits=4)])
    assert not JoinedLinear.fit([linear(64), torch.nn.Linear(64, 64)])
    modules = {str(n): linear(64 * n, bits=bits) for n, bits in enumerate((4, 4, 8, 4), 1)}
    assert [(bits, n) for _, bits, n in JoinedLinear(modules, list(modules)).addresses[0]] == [
        (4, 192),
        (8, 192),
        (4, 256),
    ]
