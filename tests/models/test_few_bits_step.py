# SPDX-License-Identifier: Apache-2.0
"""A step through layers of few bits is one call: the bits are those of the model's own forward pass."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any, Callable

import numpy as np
import pytest
from calls import noted
from lean_steps import (
    SETTINGS,
    a_wide_model,
    assert_same_bits,
    both,
    enabled,
    logits,
    logits_of_own,
    skip_trials,
)
from tiny_models import tokens_of, torch

import sparq_ipu.transformers
from sparq_ipu import _cpu
from sparq_ipu.transformers import SparqCache
from sparq_ipu.transformers.cache.layer import SparqLayer
from sparq_ipu.transformers.decoder import few_bits_step
from sparq_ipu.transformers.decoder.few_bits_step import FewBitsStep
from sparq_reference import CacheSpec


@pytest.fixture(autouse=True)
def _no_trials(monkeypatch: Any) -> None:
    skip_trials(monkeypatch)


@pytest.fixture
def calls(monkeypatch: Any) -> list[bool]:
    """Of each step, whether the kernels did it."""

    def is_done(normed: Any, step: Any, embedded: Any, *given: Any) -> bool | None:
        return None if embedded.shape[1] > 1 else normed is not None

    return noted(monkeypatch, FewBitsStep, "__call__", is_done)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_bits_are_those_of_the_model(
    weights: str, kind: str, batch: int, calls: list[bool], monkeypatch: Any
) -> None:
    mask = None
    if batch > 1:
        mask = torch.ones(batch, 34, dtype=torch.int64)
        mask[1, :9] = mask[2, 20:] = 0
    assert_same_bits(a_wide_model(weights, kind), monkeypatch, mask=mask)
    assert calls == [True] * 6


class Spy:
    """`_cpu.DecoderStep` with the calls of steps: of `run` from which layer to which, of `next` which."""

    def __init__(self, own: Any):
        self.calls: list[tuple[int, ...]] = []
        self._own = own
        self._is_prompt = False
        self.begin = own.begin

    def turn(self, *given: Any) -> None:
        self._own.turn(*given)
        self._is_prompt = True

    def run(self, layer: int, *given: Any) -> Any:
        done = self._own.run(layer, *given)
        self.calls.append((layer, done))
        return done

    def next(self, layer: int, *given: Any) -> None:
        self._own.next(layer, *given)
        if not self._is_prompt:
            self.calls.append((layer,))
        self._is_prompt = False


@pytest.fixture
def spy(monkeypatch: Any) -> list[Spy]:
    """Of each model that is stepped through."""
    made: list[Spy] = []
    own = FewBitsStep.__init__

    def watched(self: Any, *given: Any) -> None:
        own(self, *given)
        self.kernels = Spy(self.kernels)
        made.append(self.kernels)

    monkeypatch.setattr(FewBitsStep, "__init__", watched)
    return made


def test_a_step_is_one_call(spy: list[Spy], monkeypatch: Any) -> None:
    assert_same_bits(a_wide_model("int4"), monkeypatch)
    assert [one.calls for one in spy] == [[(0, 3)] * 6]


#: layers whose attention the caller computes, and the calls of a step
APART: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = [
    ((0,), [(0, 0), (0,), (1, 3)]),
    ((1,), [(0, 1), (1,), (2, 3)]),
    ((2,), [(0, 2), (2,), (3, 3)]),
    ((0, 1, 2), [(0, 0), (0,), (1, 1), (1,), (2, 2), (2,), (3, 3)]),
]


@pytest.mark.parametrize("apart, expected", APART)
def test_some_layers_attend_elsewhere(
    apart: tuple[int, ...], expected: list[tuple[int, ...]], spy: list[Spy], monkeypatch: Any
) -> None:
    own_waves = SparqLayer.waves
    monkeypatch.setattr(
        SparqLayer, "waves", lambda layer, n: None if layer.index in apart else own_waves(layer, n)
    )
    assert_same_bits(a_wide_model("int4"), monkeypatch)
    assert [one.calls for one in spy] == [expected * 6]


def test_rows_of_which_some_are_dense(spy: list[Spy], monkeypatch: Any) -> None:
    """They are waves of their own, in the same call."""
    model, mask = a_wide_model("int4"), torch.ones(2, 34, dtype=torch.int64)
    mask[1, :9] = 0
    monkeypatch.setitem(SETTINGS, "min_seq_len", 33)
    assert_same_bits(model, monkeypatch, mask=mask)
    # 35 to 40 columns: the padded row has up to 31 positions
    assert [one.calls for one in spy] == [[(0, 3)] * 6]


def test_positions_of_another_type(spy: list[Spy], monkeypatch: Any) -> None:
    """The kernels would read cosines of float32 as bfloat16."""
    model = a_wide_model("int4")
    own = model.model.rotary_emb.forward

    def forward(hidden: Any, position_ids: Any) -> Any:
        found = own(hidden, position_ids)
        return found if hidden.shape[1] > 1 else [x.float() for x in found]

    monkeypatch.setattr(model.model.rotary_emb, "forward", forward)
    sparq_ipu.transformers.enable(model, **SETTINGS)
    assert logits(model).isfinite().all()
    assert [one.calls for one in spy] == [APART[3][1] * 6]


@torch.no_grad()
def test_a_number_that_float16_does_not_have(spy: list[Spy]) -> None:
    """Layers before that one have the token, as in the model's own forward pass."""
    model, said = a_wide_model("int4"), []
    model.model.layers[1].self_attn.v_proj.bias.fill_(1e5)
    for lean in (False, True):
        sparq_ipu.transformers.enable(model, lean=lean, **SETTINGS)
        cache = SparqCache(model, index_bits=2)
        for index, layer in enumerate(cache.layers):
            layer.arm(None, None)
            cache.update(*torch.ones(2, 1, 4, 20, 16), index)
        with pytest.raises(ValueError, match="layer 1; the cache is float16") as caught:
            model(tokens_of(1), cache=cache)
        said.append((str(caught.value), [layer.cache.lengths.tolist() for layer in cache.layers]))
        said[-1][1].append([layer.get_seq_length() for layer in cache.layers])
    assert said[0] == said[1]
    assert said[1][1] == [[21], [20], [20], [21, 20, 20]]
    assert [one.calls for one in spy] == [[(0, 1)]]


@torch.no_grad()
def test_no_room_in_a_layer() -> None:
    """The layers before have the token, and know it."""
    model = enabled(a_wide_model("int4"))
    cache = SparqCache(model, capacity=20)
    model(tokens_of(20), cache=cache)
    other = SparqCache(model, capacity=21)
    model(tokens_of(20), cache=other)
    other.layers[1] = cache.layers[1]
    with pytest.raises(ValueError, match="capacity=20"):
        model(tokens_of(1), cache=other)
    assert [layer.get_seq_length() for layer in other.layers] == [21, 20, 20]
    assert [layer.cache.lengths.tolist() for layer in other.layers] == [[21], [20], [20]]


def test_threads_change_no_bit(calls: list[bool]) -> None:
    model, before = a_wide_model("int4"), torch.get_num_threads()
    sparq_ipu.transformers.enable(model, **SETTINGS)
    said = []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            said.append(logits(model, mask=torch.ones(3, 34, dtype=torch.int64)))
    finally:
        torch.set_num_threads(before)
    assert all(calls)
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


def _other_table(activation: Any) -> Any:
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def test_the_comparison_sees_another_step(calls: list[bool], monkeypatch: Any) -> None:
    monkeypatch.setattr(few_bits_step, "_activation_table", _other_table)
    own, lean, _ = both(a_wide_model("int4"), monkeypatch)
    assert calls == [True] * 6
    assert not torch.equal(own, lean)


def _norm_elsewhere(model: Any) -> None:
    norm = model.model.layers[1].post_attention_layernorm
    norm.weight.data = norm.weight.data * 2


def _norm_replaced(model: Any) -> None:
    norm = model.model.layers[1].post_attention_layernorm
    norm.weight = torch.nn.Parameter(norm.weight * 2)


class OtherActivation(few_bits_step.SILU):  # type: ignore[misc, valid-type]
    """A class that is not the usual one."""

    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


def _layers_exchanged(model: Any) -> None:
    layers = model.model.layers
    layers[0].mlp, layers[1].mlp = layers[1].mlp, layers[0].mlp


def _other_layers(model: Any) -> None:
    layers = list(model.model.layers)
    layers[1] = copy.deepcopy(layers[1])
    layers[1].input_layernorm.weight.mul_(2)
    model.model.layers = torch.nn.ModuleList(layers)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "other layers": _other_layers,
    "biases": lambda model: model.model.layers[1].self_attn.k_proj.bias.add_(1),
    # not counted by torch, and read where it is
    "norm written": lambda model: model.model.layers[1].input_layernorm.weight.data.mul_(2),
    "norm counted": lambda model: model.model.norm.weight.mul_(2),
    "norm elsewhere": _norm_elsewhere,
    "norm replaced": _norm_replaced,
    "epsilon": lambda model: setattr(model.model.layers[2].post_attention_layernorm, "variance_epsilon", 1.0),
    "hook on activation": lambda model: model.model.layers[1].mlp.act_fn.register_forward_hook(
        lambda module, args, output: output * 2
    ),
    "own forward": lambda model: setattr(model.model.layers[0].mlp, "forward", lambda hidden: hidden),
    "hook on last norm": lambda model: model.model.norm.register_forward_pre_hook(
        lambda module, args: (args[0] + 1,)
    ),
    "other class": lambda model: setattr(model.model.layers[1].mlp.act_fn, "__class__", OtherActivation),
    "layers exchanged": _layers_exchanged,
}


@pytest.mark.parametrize("change", ["biases", "layers exchanged"])
@torch.no_grad()
def test_a_change_before_the_first_step_is_heard(change: str) -> None:
    model = enabled(a_wide_model("int4"))
    CHANGES[change](model)
    assert torch.equal(logits(model), logits_of_own(model))


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_part_that_is_changed_is_heard(change: str, calls: list[bool]) -> None:
    model = enabled(a_wide_model("int4"))
    before = logits(model)
    assert calls == [True] * 6
    CHANGES[change](model)
    lean = logits(model)
    assert torch.equal(lean, logits_of_own(model))
    assert not torch.equal(lean, before)


def test_what_is_left_to_pytorch(calls: list[bool], monkeypatch: Any) -> None:
    for model in (a_wide_model("int4", hidden_act="relu"), a_wide_model("int8", hidden_size=96)):
        assert_same_bits(model, monkeypatch)
    other = a_wide_model("int4")
    other.model.layers[1].input_layernorm.variance_epsilon = 1e-2
    assert_same_bits(other, monkeypatch)
    monkeypatch.setattr(few_bits_step, "_LANES", ())  # a PyTorch that adds up otherwise
    assert_same_bits(a_wide_model("int4"), monkeypatch)
    assert not calls


def test_copies_have_their_own(calls: list[bool]) -> None:
    model = enabled(a_wide_model("int4"))
    expected = logits(model)
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(model.model.norm.weight)
    calls.clear()
    assert torch.equal(logits(twin), expected)
    assert calls == [True] * 6
    torch.nn.init.zeros_(twin.model.norm.weight)
    assert not logits(twin).any()


def squares_by_hand(row: Any, lanes: int) -> float:
    """The mean as PyTorch adds it up, a number at a time."""
    x = row.float().numpy()
    squares, side = x * x, 4 * lanes
    n_wide = len(x) // side
    sums = np.zeros((4, side), np.float32)
    for i in range(1, n_wide + 1):
        sums[0] += squares[(i - 1) * side : i * side]
        for level in range(1, 4):
            if i % 16**level:
                break
            sums[level] += sums[level - 1]
            sums[level - 1] = 0
    for level in range(1, 4):
        sums[0] += sums[level]
    vectors = sums[0].reshape(4, lanes)
    for at in range(n_wide * side, len(x) // lanes * lanes, lanes):
        vectors[0] += squares[at : at + lanes]
    for vector in vectors[1:]:
        vectors[0] += vector
    total = np.float32(0)
    for square in squares[len(x) // lanes * lanes :]:
        total += square
    for one in vectors[0]:
        total += one
    return float(total / np.float32(len(x)))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", [1, 7, 64, 100, 576, 1030, 4096, 17 * 16 * 64 + 37])
def test_sums_are_in_this_order(lanes: int, n: int) -> None:
    rows = torch.randn(8, n, generator=torch.Generator().manual_seed(n)).to(torch.bfloat16)
    means = [_cpu.mean_of_squares(n, lanes, row.data_ptr()) for row in rows]
    assert means == [squares_by_hand(row, lanes) for row in rows]
    if n > 4000:  # the order shows
        assert means != [squares_by_hand(row, lanes * 2) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_any_vectors_of_pytorch(capability: str) -> None:
    """Some order is that of PyTorch, whatever its vectors are. ("avx512" it takes on any processor.)"""
    code = (
        "import torch, transformers; from sparq_ipu.transformers.decoder.few_bits_step import _lanes\n"
        "from transformers.models.llama.modeling_llama import LlamaRMSNorm\n"
        "norms = [LlamaRMSNorm(n).to(torch.bfloat16) for n in (96, 576, 896, 1536, 4096)]\n"
        "from sparq_ipu.transformers.decoder.families import FAMILIES\n"
        "print([_lanes(norm, FAMILIES['Llama']) for norm in norms])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, ATEN_CPU_CAPABILITY=capability),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "None" not in said.stdout


def test_shapes_that_do_not_fit_together() -> None:
    linear, gates = ([(0, 8, 64)], 0, 64), ([(0, 8, 96), (0, 4, 32)], 0, 64)

    def step_of(layers: Any, hidden: int = 64, lanes: int = 8, heads: Any = (0, 0, 0, 0)) -> Any:
        of_layers = [([0] * 6, linears, 0) for linears in layers]
        return _cpu.DecoderStep(of_layers, 0, (1e-5, lanes, 0.0, True), heads, hidden, 1.0, 0)

    layer = [linear, linear, gates, linear]
    with pytest.raises(ValueError, match=r"^decoder_step: lanes must be 4, 8 or 16, got 5"):
        step_of([layer], lanes=5)
    with pytest.raises(ValueError, match=r"^decoder_step: layer 1 must have gates of twice the inputs"):
        step_of([layer, [linear] * 4])
    with pytest.raises(ValueError, match=r"^decoder_step: layer 0 must have attention between hidden and"):
        step_of([layer], hidden=32)
    with pytest.raises(ValueError, match=r"^decoder_step: layer 0 must have gates from hidden, and down to"):
        step_of([[linear, linear, gates, ([(0, 8, 32)], 0, 64)]])
    with pytest.raises(ValueError, match=r"^decoder_step: layer 0 must have queries and keys of the width"):
        step_of([layer], heads=(2, 16, 2, 17))
    step = step_of([layer], heads=(2, 16, 2, 16))
    rows, heads = "a cache of as many rows", "the heads of its cache"
    for n_rows, n_heads, n_kv_heads, rule in ((2, 2, 1, rows), (1, 4, 2, heads), (1, 2, 1, heads)):
        attention = [[(_cpu.KVCache(CacheSpec(1, n_kv_heads, 16, 8)), None, 0, 1)]]
        with pytest.raises(ValueError, match=f"^decoder_step: layer 0 must have {rule}"):
            step.run(0, attention, [("bfloat16", 0, 0, 1, 16, n_heads, 1.0)], n_rows, 0, 0, 1, [])
    with pytest.raises(ValueError, match=r"^decoder_step: layers must be at least one, got 0"):
        step_of([])
    for call in (lambda: step.begin(1, 0, 0, -1), lambda: step.next(0, 1, 0, 0, 0, -1)):
        with pytest.raises(ValueError, match=r"^decoder_step: n_threads must be in"):
            call()
    odd = step_of([[([(0, 5, 64)], 0, 64), linear, gates, linear]])
    for n_rows in (4, 400):  # for all threads together, and for each by itself
        hidden, products = (torch.zeros(n_rows, 64, dtype=torch.bfloat16) for _ in range(2))
        with pytest.raises(ValueError, match=r"^few_bits_product: bits must be 4, 6 or 8, got 5$"):
            odd.begin(n_rows, hidden.data_ptr(), products.data_ptr(), 2)
