# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits: what they are, what is multiplied, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import noted
from gguf_files import a_gguf
from tiny_models import greedy, save_checkpoint, step_logits, tiny_model, tokens_of, torch

import sparq_ipu.transformers
from sparq_ipu.transformers import quantise_weights
from sparq_ipu.transformers.decoder import few_bits, gguf_groups
from sparq_ipu.transformers.decoder.few_bits import (
    GROUP,
    FewBitsLinear,
    round_to_groups,
)
from sparq_ipu.transformers.decoder.weights import weights_of
from sparq_ipu.transformers.loading.gguf_file import KEPT_BITS
from sparq_reference import few_bits as reference

BF16 = torch.bfloat16
BITS = {"int8": 8, "int4": 4}


def a_linear(n: int = 48, m: int = 96, bias: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(m, n, bias=bias, dtype=BF16).requires_grad_(False)


def exact_weight(layer: Any) -> np.ndarray:
    """In float64, in plain loops, from the codes."""
    n, m = layer.out_features, layer.in_features
    weight = np.zeros((n, m))
    for row in range(n):
        for column in range(m):
            group, at = divmod(column, GROUP)
            bytes_of = layer.packed[row // 16, group]
            if layer.bits == 4:
                byte = int(bytes_of[at % 16 // 4 * 64 + row % 16 * 4 + at % 4])
                code = (byte >> 4 if at >= 16 else byte & 15) - 8
            else:
                code = int(bytes_of[at // 4 * 64 + row % 16 * 4 + at % 4]) - 128
            first, second = bytes_of[-64:].view(torch.float16)[row % 16 :: 16].double().tolist()
            if layer.bits == 6:
                weight[row, column] = code * (second if at >= 16 else first)
            else:
                weight[row, column] = code * first + second
    return weight


def multiplied(rows: Any, bits: int) -> np.ndarray:
    """The integers that a product takes for rows (contract E15), times their steps."""
    whole, step = reference.integers(rows.float().numpy(), bits)
    product: np.ndarray = whole * step.astype(np.float64)[:, :, None]
    return product.reshape(rows.shape)


@pytest.mark.parametrize("weights", BITS)
@pytest.mark.parametrize("n_rows", [1, 2, 33, 129])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_codes(weights: str, n_rows: int, bias: bool) -> None:
    linear = a_linear(bias=bias)
    layer = FewBitsLinear(linear, BITS[weights])
    weight = exact_weight(layer)
    rows = torch.randn(n_rows, 96, generator=torch.Generator().manual_seed(1)).to(BF16)
    expected = multiplied(rows, int(weights[3:])) @ weight.T
    size = np.abs(rows.double().numpy()) @ np.abs(weight).T
    # float32 sums of 3 groups, and a result of 8 bits
    error = np.abs(expected) * 2.0**-8 + size * 96 * 2.0**-24
    if bias:
        expected = expected + linear.bias.double().numpy()
        error += (np.abs(expected) + error) * 2.0**-8
    output = layer(rows)
    assert output.dtype is BF16 and output.shape == (n_rows, 48)
    assert np.all(np.abs(output.double().numpy() - expected) <= error)
    assert torch.equal(layer(rows.view(1, n_rows, 96)), output[None])


@pytest.mark.parametrize("weights", BITS)
def test_a_row_has_the_same_bits_in_any_company(weights: str) -> None:
    layer = FewBitsLinear(a_linear(n=112, m=224), BITS[weights])
    rows = torch.randn(70, 224).to(BF16)
    together = layer(rows)
    for first, n in ((0, 1), (3, 1), (69, 1), (5, 7), (1, 33), (10, 60)):
        assert torch.equal(layer(rows[first : first + n]), together[first : first + n])


def test_weights_made_bfloat16_are_those_of_the_codes() -> None:
    for bits in BITS.values():
        layer = FewBitsLinear(a_linear(), bits)
        weight = exact_weight(layer)
        assert layer.weight.dtype is BF16
        largest = np.abs(weight).max() * 2  # of a term: code times scale
        assert np.abs(layer.weight.double().numpy() - weight).max() <= largest * 2.0**-8


def test_codes_are_rounded_to_nearest() -> None:
    weight = a_linear().weight
    for bits, offset in ((8, 128), (4, 8)):
        codes, scales = round_to_groups(weight, bits)
        scale, zero = scales.double()[..., None].unbind(dim=2)
        grouped = weight.double().view(48, 3, GROUP)
        error = ((codes.view(48, 3, GROUP).double() - offset) * scale + zero - grouped).abs()
        # half a step, and what scale and zero of 11 bits lose at the ends
        limit = scale / 2 + offset * scale * 2.0**-11 + zero.abs() * 2.0**-11
        assert (error <= limit).all()
        if bits == 4:
            assert set(codes.flatten().tolist()) == set(range(16))
        else:  # the range is used, of one sign or the other
            assert ((codes.view(48, 3, GROUP).int() - 128).abs().amax(dim=2) == 127).all() and not zero.any()


def test_weights_that_are_all_alike() -> None:
    linear = a_linear(n=16, m=32, bias=False)
    for value in (0.0, 0.5):
        linear.weight.fill_(value)
        for bits in BITS.values():
            assert torch.equal(FewBitsLinear(linear, bits).weight, linear.weight)


def test_packing_loses_nothing() -> None:
    """A row that is 1 at one place reads a column of the codes, exactly."""
    linear = a_linear(n=80, m=64, bias=False)
    for bits, offset in ((4, 8), (6, 128), (8, 128)):
        codes = torch.randint(0, 2 * offset, (80, 64), dtype=torch.uint8)
        stored = few_bits.paired(codes) if bits == 4 else codes
        scales = torch.tensor([1.0, 1.0 if bits == 6 else 0.0]).expand(80, 2, 2)
        layer = FewBitsLinear(linear, bits, lambda part, of=stored, by=scales: (of[part], by[part]))
        assert torch.equal(layer(torch.eye(64, dtype=BF16)).T, codes.to(BF16) - offset)
        assert torch.equal(layer.weight, codes.to(BF16) - offset)
        assert all(map(torch.equal, layer.groups, (codes, scales.half())))
        assert layer.weight_bytes == stored.numel() + 80 * 2 * 2 * 2


# --- models


def bf16_model(**changes: Any) -> Any:
    return tiny_model(vocab_size=112, **changes).to(BF16)


@pytest.mark.parametrize("weights", BITS)
def test_a_model_keeps_what_it_says(weights: str) -> None:
    """Its linear layers have few bits; outputs are those of layers with these weights in bfloat16."""
    model, other = bf16_model(), bf16_model()
    done = quantise_weights(model, weights)
    n_linear = sum(type(module) is torch.nn.Linear for module in other.modules())
    few = {"int8": n_linear, "int4": 0} if weights == "int8" else {"int8": 1, "int4": n_linear - 1}
    assert done.layers == {**few, "as in the file": 0, "rounded anew": n_linear, "left": 0}
    assert model.lm_head.bits == 8  # also with int4
    assert weights_of(model) == weights and weights_of(other) is None
    errors: list[float] = []

    def compare(module: Any, given: Any, ours: Any) -> None:
        theirs = torch.nn.functional.linear(given[0], module.weight, module.bias)
        errors.append(float((ours - theirs).float().norm() / theirs.float().norm()))

    for module in model.modules():
        if isinstance(module, FewBitsLinear):
            module.register_forward_hook(compare)
    model(tokens_of(3))
    assert len(errors) == n_linear and 0 < min(errors) and max(errors) < 0.02, errors


def test_enable_rounds_and_says_once() -> None:
    model = bf16_model()
    sparq_ipu.transformers.enable(model, rank=4, top_k=8, min_seq_len=0, weights="int4")
    logits = step_logits(model, tokens_of(40), 3)
    sparq_ipu.transformers.enable(model, rank=4, top_k=8, min_seq_len=0, weights="int4")  # they are already
    assert torch.equal(torch.as_tensor(step_logits(model, tokens_of(40), 3)), torch.as_tensor(logits))
    twin = copy.deepcopy(model)
    assert greedy(twin, tokens_of(40), 5).tolist() == greedy(model, tokens_of(40), 5).tolist()
    sparq_ipu.transformers.disable(model)
    assert weights_of(model) == "int4"  # for good
    sparq_ipu.transformers.enable_dense(model, weights="int4")
    sparq_ipu.transformers.enable(model, weights="int8")  # no more than 8
    assert weights_of(model) == "int4"
    other = bf16_model()
    sparq_ipu.transformers.enable_dense(other, weights="int8")
    assert weights_of(other) == "int8"
    with pytest.raises(ValueError, match=r"enable: model must have weights of 16 bits, got one of int8"):
        sparq_ipu.transformers.enable(other, weights="int4")


def test_what_is_refused() -> None:
    model = bf16_model()
    for weights, words in ((4, "got 4"), ("int5", "got 'int5'")):
        with pytest.raises(ValueError, match=rf"weights must be one of int8, int4, or None, {words}"):
            quantise_weights(model, weights)
    with pytest.raises(ValueError, match=r"model must have bfloat16 weights, got float32"):
        quantise_weights(tiny_model(), "int4")
    with pytest.raises(ValueError, match=r"quantise_weights: model must be a transformers PreTrainedModel"):
        quantise_weights(torch.nn.Linear(32, 16), "int4")
    with pytest.raises(ValueError, match=r"have linear layers of a multiple of 32 inputs and of 16 outputs"):
        odd = dict(hidden_size=56, intermediate_size=40)
        quantise_weights(bf16_model(num_attention_heads=1, num_key_value_heads=1, **odd), "int8")
    message = r"few_bits: input must be bfloat16, as the model was, got torch.float32"
    with pytest.raises(ValueError, match=message):
        FewBitsLinear(a_linear(), 4)(torch.ones(1, 96))
    assert weights_of(model) is None


@pytest.mark.parametrize(("weights", "value"), [("int8", 1e7), ("int4", 1e7), ("int8", np.nan)])
def test_scales_that_float16_does_not_hold_are_refused(weights: str, value: float) -> None:
    model = bf16_model()
    layer = model.model.layers[1].mlp.up_proj
    with torch.no_grad():
        layer.weight[3, 5] = value
    rule = r"model\.layers\.1\.mlp\.up_proj must have finite scales and zeros in float16, got infinity or NaN"
    with pytest.raises(ValueError, match=f"quantise_weights: {rule}"):
        quantise_weights(model, weights)
    assert weights_of(model) is None and model.model.layers[1].mlp.up_proj is layer


def test_layers_that_do_not_fit_keep_16_bits() -> None:
    model = bf16_model(intermediate_size=80)
    done = quantise_weights(model, "int4")
    assert done.layers == {"int8": 1, "int4": 18, "as in the file": 0, "rounded anew": 19, "left": 3}
    assert "3 left" in str(done)
    linear = [m for m in model.modules() if type(m) is torch.nn.Linear or isinstance(m, FewBitsLinear)]
    assert done.bytes_before == sum(2 * m.in_features * m.out_features for m in linear)
    left = sum(m.weight.nbytes for m in linear if type(m) is torch.nn.Linear)
    few = sum(m.weight_bytes for m in linear if isinstance(m, FewBitsLinear))
    assert done.bytes_after == left + few
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    assert model(tokens_of(3)).logits.isfinite().all()


# --- files


def test_checkpoints_are_read_with_few_bits(tmp_path: Path) -> None:
    from sparq_ipu.models import load_model

    folder = save_checkpoint(tmp_path)
    model, _ = load_model(folder, weights="int4")
    assert model.dtype is BF16 and weights_of(model) == "int4"
    message = r"load_model: dtype must be bfloat16 with weights of int4, .*'float32'"
    with pytest.raises(ValueError, match=message):
        load_model(folder, "float32", weights="int4")


#: where the float16 numbers of a block are
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
#: kinds with a product of scales, or a sum, that float16 rounds
ROUNDED = ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


@pytest.mark.parametrize("kind", gguf_groups.KINDS)
def test_groups_of_a_file_are_exact(kind: str) -> None:
    """They are what the package gguf makes of them: bit by bit, or with scales and zeros of 11 bits."""
    gguf = pytest.importorskip("gguf")
    generator = np.random.default_rng(0)
    n, m, of = 16, 512, gguf.GGMLQuantizationType[kind]
    size, n_bytes = gguf.GGML_QUANT_SIZES[of]
    blocks = generator.integers(0, 256, (n * m // size, n_bytes)).astype(np.uint8)
    for at in HALVES.get(kind, (0,)):
        numbers = generator.normal(size=len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    data = blocks.reshape(n, -1)
    expected = gguf.quants.dequantize(data, of).astype(np.float64)
    bits = KEPT_BITS[kind]
    layer = FewBitsLinear(
        a_linear(n=n, m=m, bias=False), bits, lambda part: gguf_groups.groups_of(of, data[part])
    )
    made = exact_weight(layer)
    if kind not in ROUNDED:
        assert np.array_equal(made, expected)
    scale, zero = layer.groups[1].double().abs().unbind(dim=2)
    limit = (
        torch.maximum(scale, zero) * 32 if bits == 6 else scale * 16 * (1 + 7 * (bits == 8)) + zero
    ).numpy()
    error = np.abs(made - expected).reshape(n, -1, GROUP)
    assert np.all(error <= limit[:, :, None] * 2.0**-11 + 2.0**-23)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = tiny_model(vocab_size=112, num_key_value_heads=3)
    kinds = {"q_proj": "Q4_1", "k_proj": "Q4_0", "v_proj": "Q4_1", "down_proj": "Q4_0", "up_proj": "Q8_0"}
    return a_gguf(tmp_path, model, kinds)


def test_weights_of_a_file_stay_as_they_are(file: Path) -> None:
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    plain = Checkpoint(file).model("float32")
    checkpoint = Checkpoint(file)
    model = checkpoint.model(weights="int4")
    # o, gate and the output layer (float32), and up (of 8 bits) are rounded anew
    of_file = {"int8": 1, "int4": 21, "as in the file": 12, "rounded anew": 10, "left": 0}
    assert checkpoint.few_bits.layers == of_file and "10 rounded anew" in str(checkpoint.few_bits)
    assert_as_stored(model, plain, ("q_proj", "k_proj", "v_proj"))

    checkpoint = Checkpoint(file)
    assert checkpoint.model(weights="int8").model.layers[1].self_attn.q_proj.bits == 4  # no more than 8
    of_file = {"int8": 10, "int4": 12, "as in the file": 15, "rounded anew": 7, "left": 0}
    assert checkpoint.few_bits.layers == of_file


def test_nothing_of_a_file_is_rounded_by_default(tmp_path: Path) -> None:
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    kinds = {"up_proj": "Q8_0", "o_proj": "F32", "proj": "Q4_0"}
    checkpoint = Checkpoint(a_gguf(tmp_path, tiny_model(vocab_size=112), kinds))
    model, plain = checkpoint.model(), checkpoint.model("float32")
    of_file = {"int8": 3, "int4": 15, "as in the file": 18, "rounded anew": 0, "left": 4}
    assert checkpoint.few_bits.layers == of_file and str(checkpoint.few_bits).startswith("as in the file (")
    assert_as_stored(model, plain, ("q_proj", "k_proj", "v_proj", "up_proj"))
    for name in ("lm_head", "model.layers.1.self_attn.o_proj"):
        assert torch.equal(model.get_submodule(name).weight, plain.get_submodule(name).weight.to(BF16))


def assert_as_stored(model: Any, plain: Any, names: tuple[str, ...]) -> None:
    """plain: the model in float32."""
    for name in names:
        part = "mlp" if name == "up_proj" else "self_attn"
        layer, stored = (m.model.layers[1].get_submodule(f"{part}.{name}") for m in (model, plain))
        weight = stored.weight.double().numpy()
        difference = np.abs(exact_weight(layer) - weight).reshape(len(weight), -1, GROUP)
        groups = np.abs(weight).reshape(difference.shape)
        assert np.all(difference <= groups.max(axis=2, keepdims=True) * 2.0**-11 * 3), name


def test_a_tied_output_layer_has_the_codes_of_the_embedding(tmp_path: Path) -> None:
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    file = a_gguf(
        tmp_path, tiny_model(vocab_size=112), {"proj": "Q4_0", "embed": "Q8_0"}, without=["output.weight"]
    )
    plain, model = Checkpoint(file).model("float32"), Checkpoint(file).model()
    assert model.lm_head.bits == 8
    assert np.array_equal(exact_weight(model.lm_head), plain.lm_head.weight.double().numpy())
    assert torch.equal(model.model.embed_tokens.weight, plain.lm_head.weight.to(BF16))


def test_what_is_rounded_anew_is_rounded_once(tmp_path: Path) -> None:
    """Row by row from the file, from float32."""
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    kinds = {"q_proj": "Q5_0", "down_proj": "Q5_0", "up_proj": "Q8_0"}
    file = a_gguf(tmp_path, tiny_model(vocab_size=112), kinds)
    shares: list[float] = []
    made = Checkpoint(file).model(weights="int4", progress=shares.append)
    assert shares == sorted(shares) and abs(shares[-1] - 1) < 1e-9
    plain = Checkpoint(file).model("float32")
    for name in ("self_attn.q_proj", "mlp.up_proj", "mlp.gate_proj"):
        layer, weight = (m.model.layers[2].get_submodule(name) for m in (made, plain))
        assert all(map(torch.equal, layer.groups, round_to_groups(weight.weight, 4))), name


def test_no_product_of_a_file_is_looked_for(file: Path, monkeypatch: Any) -> None:
    """transformers has such products on a hub, and keeps weights packed for them."""
    from transformers.quantizers import quantizer_gguf

    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    monkeypatch.setattr(quantizer_gguf, "get_gguf_kernel", lambda: pytest.fail("it was asked for"))
    assert type(Checkpoint(file).model("float32").model.layers[0].self_attn.q_proj) is torch.nn.Linear


@pytest.mark.parametrize("weights", BITS)
@pytest.mark.parametrize("n_rows", [3, 200])
def test_the_cpu_kernels_multiply(weights: str, n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where they are not built, or can not, weights made bfloat16."""
    cpu = pytest.importorskip("sparq_ipu._cpu")
    layer, rows = FewBitsLinear(a_linear(n=4096, m=224), BITS[weights]), torch.randn(n_rows, 224).to(BF16)
    calls = noted(monkeypatch, cpu, "few_bits_product", lambda *_, **options: options["n_threads"])
    ours = layer(rows)
    assert calls == [torch.get_num_threads()]
    theirs = layer(rows.clone().requires_grad_())
    theirs.sum().backward()
    moved = copy.deepcopy(layer).to("meta")
    assert moved(rows.to("meta")).shape == (n_rows, 4096)
    monkeypatch.setattr(few_bits, "_cpu", None)
    assert torch.equal(layer(rows), theirs)
    assert len(calls) == 1
    expected = rows.double() @ layer.weight.double().T + layer.bias.double()
    for output in (ours, theirs):  # weights of 8 bits, twice rounded
        assert (output.double() - expected).norm() < 2.0**-7 * expected.norm()


def test_addresses_are_on_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was moved since goes to PyTorch, which looks at it; the CPU kernels can not."""
    cpu = pytest.importorskip("sparq_ipu._cpu")
    monkeypatch.setattr(cpu, "few_bits_product", lambda *a, **o: pytest.fail("it was called"))
    rows = torch.randn(3, 96).to(BF16)
    moved = FewBitsLinear(a_linear(bias=False), 8).to("meta")
    assert moved(rows.to("meta")).shape == (3, 48)
