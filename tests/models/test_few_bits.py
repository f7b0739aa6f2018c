# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits: what they are, what is multiplied, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gguf_files import a_gguf  # noqa: E402
from tiny_models import greedy, save_checkpoint, step_logits, tiny_model, tokens_of  # noqa: E402

import sparq_ipu.transformers  # noqa: E402
from sparq_ipu.transformers import quantise_weights  # noqa: E402
from sparq_ipu.transformers.decoder import few_bits, gguf_groups  # noqa: E402
from sparq_ipu.transformers.decoder.few_bits import (  # noqa: E402
    GROUP,
    FewBitsLinear,
    Int4Linear,
    Int8Linear,
    round_to_groups,
)
from sparq_ipu.transformers.decoder.weights import weights_of  # noqa: E402
from sparq_reference import few_bits as reference  # noqa: E402

BF16 = torch.bfloat16
CLASSES = {"int8": Int8Linear, "int4": Int4Linear}


def a_linear(n: int = 48, m: int = 96, bias: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(m, n, bias=bias, dtype=BF16).requires_grad_(False)


def exact_weight(layer: Any) -> np.ndarray:
    """In float64, in plain loops, from the codes."""
    n, m = layer.out_features, layer.in_features
    weight = np.zeros((n, m))
    for row in range(n):
        for column in range(m):
            if isinstance(layer, Int8Linear):
                weight[row, column] = float(layer.scale[row]) * int(layer.codes[row, column])
                continue
            group, at = divmod(column, GROUP)
            bytes_of = layer.packed[row // 16, group]
            byte = int(bytes_of[at % 16 // 4 * 64 + row % 16 * 4 + at % 4])
            scale, zero = bytes_of[256 + row % 16 * 4 :][:4].view(BF16).double().tolist()
            weight[row, column] = ((byte >> 4 if at >= 16 else byte & 15) - 8) * scale + zero
    return weight


def multiplied(rows: Any, bits: int) -> np.ndarray:
    """The integers that a product takes for rows (contract E15), times their steps."""
    whole, step = reference.integers(rows.float().numpy(), bits)
    product: np.ndarray = whole * step.astype(np.float64)[:, :, None]
    return product.reshape(rows.shape)


@pytest.mark.parametrize("weights", CLASSES)
@pytest.mark.parametrize("n_rows", [1, 2, 33, 129])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_codes(weights: str, n_rows: int, bias: bool) -> None:
    linear = a_linear(bias=bias)
    layer = CLASSES[weights](linear)
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


@pytest.mark.parametrize("weights", CLASSES)
def test_a_row_has_the_same_bits_in_any_company(weights: str) -> None:
    layer = CLASSES[weights](a_linear(n=112, m=224))
    rows = torch.randn(70, 224).to(BF16)
    together = layer(rows)
    for first, n in ((0, 1), (3, 1), (69, 1), (5, 7), (1, 33), (10, 60)):
        assert torch.equal(layer(rows[first : first + n]), together[first : first + n])


def test_weights_made_bfloat16_are_those_of_the_codes() -> None:
    for cls in CLASSES.values():
        layer = cls(a_linear())
        weight = exact_weight(layer)
        assert layer.weight.dtype is BF16
        largest = np.abs(weight).max() * 2  # of a term: code times scale
        assert np.abs(layer.weight.double().numpy() - weight).max() <= largest * 2.0**-8


def test_codes_are_rounded_to_nearest() -> None:
    weight = a_linear().weight
    int8 = Int8Linear(a_linear())
    steps = weight.double() / int8.scale.double()[:, None]
    assert torch.equal(int8.codes.double(), steps.float().round().clamp(-127, 127).double())
    assert int8.codes.abs().amax(dim=1).min() >= 126  # the range is used
    codes, scale, zero = round_to_groups(weight)
    grouped = weight.double().view(48, 3, GROUP)
    error = (codes.view(48, 3, GROUP).double() - 8) * scale.double()[:, :, None] + zero.double()[:, :, None]
    error = (error - grouped).abs()
    # half a step, and what scale and zero of 8 bits lose at the ends
    limit = scale.double() / 2 + 8 * scale.double() * 2.0**-8 + zero.double().abs() * 2.0**-8
    assert (error.amax(dim=2) <= limit).all()
    assert set(codes.flatten().tolist()) == set(range(16))


def test_weights_that_are_all_alike() -> None:
    linear = a_linear(n=16, m=32, bias=False)
    for value in (0.0, 0.5):
        linear.weight.fill_(value)
        for cls in CLASSES.values():
            assert torch.equal(cls(linear).weight, linear.weight)


def test_packing_loses_nothing() -> None:
    """A row that is 1 at one place reads a column of the codes, exactly."""
    codes = torch.randint(0, 16, (80, 64), dtype=torch.uint8)
    linear = a_linear(n=80, m=64, bias=False)
    pairs = few_bits.paired(codes)
    layer = Int4Linear(linear, lambda part: (pairs[part], torch.ones(80, 2)[part], torch.zeros(80, 2)[part]))
    assert torch.equal(layer(torch.eye(64, dtype=BF16)).T, codes.to(BF16) - 8)
    assert torch.equal(layer.weight, codes.to(BF16) - 8)
    assert layer.weight_bytes == 80 * 64 // 2 + 80 * 2 * 2 * 2


# --- models


def bf16_model(**changes: Any) -> Any:
    return tiny_model(vocab_size=112, **changes).to(BF16)


@pytest.mark.parametrize("weights", CLASSES)
def test_a_model_keeps_what_it_says(weights: str) -> None:
    """Its linear layers have few bits; logits are those of a model that has these weights in bfloat16."""
    model, other = bf16_model(), bf16_model()
    done = quantise_weights(model, weights)
    n_linear = sum(type(module) is torch.nn.Linear for module in other.modules())
    few = {"int8": n_linear, "int4": 0} if weights == "int8" else {"int8": 1, "int4": n_linear - 1}
    assert done.layers == {**few, "as in the file": 0, "left": 0}
    assert type(model.lm_head) is Int8Linear  # also with int4
    assert weights_of(model) == weights and weights_of(other) is None
    for name, module in model.named_modules():
        if isinstance(module, FewBitsLinear):
            other.get_submodule(name).weight.copy_(module.weight)
    ours, theirs = (m(tokens_of(3)).logits.float() for m in (model, other))
    # not to the bit: bfloat16 weights are rounded once more
    assert not torch.equal(ours, theirs)
    assert (ours - theirs).norm() < 0.05 * theirs.norm()


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
    with pytest.raises(
        ValueError, match=r"enable: model must have weights of 16 bits, got one of int4 and int8"
    ):
        sparq_ipu.transformers.enable(model, weights="int8")
    other = bf16_model()
    sparq_ipu.transformers.enable_dense(other, weights="int8")
    assert weights_of(other) == "int8"


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
    with pytest.raises(
        ValueError, match=r"few_bits: input must be bfloat16, as the model was, got torch.float32"
    ):
        Int4Linear(a_linear())(torch.ones(1, 96))
    assert weights_of(model) is None


def test_layers_that_do_not_fit_keep_16_bits() -> None:
    model = bf16_model(intermediate_size=80)
    done = quantise_weights(model, "int4")
    assert done.layers == {"int8": 1, "int4": 18, "as in the file": 0, "left": 3}
    assert "3 left" in str(done)
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    assert model(tokens_of(3)).logits.isfinite().all()


# --- files


def test_checkpoints_are_read_with_few_bits(tmp_path: Path) -> None:
    from sparq_ipu.models import load_model

    folder = save_checkpoint(tmp_path)
    model, _ = load_model(folder, weights="int4")
    assert model.dtype is BF16 and weights_of(model) == "int4"
    with pytest.raises(
        ValueError, match=r"load_model: dtype must be bfloat16 with weights of int4, .*'float32'"
    ):
        load_model(folder, "float32", weights="int4")


KINDS = ("Q4_0", "Q4_1", "Q4_K")


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_a_file_are_exact(kind: str) -> None:
    """In float32 they are what the package gguf makes of them, bit by bit, but for the rounding of a sum."""
    gguf = pytest.importorskip("gguf")
    generator = np.random.default_rng(0)
    n, m = 6, 512
    rows = generator.integers(
        0, 256, (n, m // 256 * 144 if kind == "Q4_K" else m // 32 * (18 + 2 * (kind == "Q4_1")))
    )
    data = rows.astype(np.uint8)
    starts = {"Q4_0": (18, (0,)), "Q4_1": (20, (0, 2)), "Q4_K": (144, (0, 2))}[kind]
    for at in starts[1]:  # float16 numbers of usual size
        numbers = generator.normal(size=(n, data.shape[1] // starts[0])).astype(np.float16)
        data.reshape(n, -1, starts[0])[:, :, at : at + 2] = numbers.view(np.uint8).reshape(n, -1, 2)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    groups = gguf_groups.groups_of(gguf.GGMLQuantizationType[kind], data)
    pairs, scale, zero = (part.numpy() for part in groups)
    pairs = pairs.reshape(n, -1, 1, 16)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(n, m)
    assert codes.dtype == np.uint8 and codes.max() == 15
    made = (codes.reshape(n, -1, 32).astype(np.float64) - 8) * scale[:, :, None] + zero[:, :, None]
    limit = 2.0**-23 * (np.abs(scale) * 16 + np.abs(zero))[:, :, None]
    assert np.all(np.abs(made - expected.reshape(made.shape)) <= limit)
    if kind == "Q4_0":
        assert np.array_equal(made.reshape(n, m).astype(np.float32), expected)


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
    # o, gate and up (of 8 bits) are rounded anew
    assert checkpoint.few_bits.layers == {"int8": 1, "int4": 21, "as in the file": 12, "left": 0}
    for name, kind in (("q_proj", 1), ("k_proj", 0), ("v_proj", 1)):
        layer, stored = (m.model.layers[1].self_attn.get_submodule(name) for m in (model, plain))
        difference = np.abs(exact_weight(layer) - stored.weight.double().numpy())
        groups = np.abs(stored.weight.double().numpy()).reshape(len(difference), -1, GROUP)
        limit = groups.max(axis=2, keepdims=True) * 2.0**-8 * (3 if kind else 1)  # scale and zero of 8 bits
        assert np.all(difference.reshape(groups.shape) <= limit), name


def test_other_kinds_are_rounded_as_if_in_memory(tmp_path: Path) -> None:
    """Row by row from the file, of Q5_0 too, whose numbers are made here."""
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    kinds = {"q_proj": "Q5_0", "down_proj": "Q5_0", "up_proj": "Q8_0"}
    file = a_gguf(tmp_path, tiny_model(vocab_size=112), kinds)
    shares: list[float] = []
    made = Checkpoint(file).model(weights="int4", progress=shares.append)
    assert shares == sorted(shares) and abs(shares[-1] - 1) < 1e-9
    plain = Checkpoint(file).model("bfloat16")
    quantise_weights(plain, "int4")
    for name, buffer in plain.named_buffers():
        assert torch.equal(made.get_buffer(name), buffer), name


def test_no_product_of_a_file_is_looked_for(file: Path, monkeypatch: Any) -> None:
    """Since transformers 5.24, which has such products on a hub, and keeps weights packed for them."""
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    quantizer = pytest.importorskip("transformers.quantizers.quantizer_gguf")
    monkeypatch.setattr(quantizer, "get_gguf_kernel", lambda: pytest.fail("it was asked for"))
    assert type(Checkpoint(file).model("float32").model.layers[0].self_attn.q_proj) is torch.nn.Linear


@pytest.mark.parametrize("weights", CLASSES)
@pytest.mark.parametrize("n_rows", [3, 200])
def test_the_cpu_kernels_multiply(weights: str, n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where they are not built, or can not, weights made bfloat16."""
    cpu = pytest.importorskip("sparq_ipu._cpu")
    layer, rows = CLASSES[weights](a_linear(n=4096, m=224)), torch.randn(n_rows, 224).to(BF16)
    calls: list[int] = []
    few_bits_product = cpu.few_bits_product

    def counted(*args: int, **options: Any) -> None:
        calls.append(options["n_threads"])
        few_bits_product(*args, **options)

    monkeypatch.setattr(cpu, "few_bits_product", counted)
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


def test_addresses_are_of_bfloat16_on_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was converted or moved since goes to PyTorch, which looks at it; the CPU kernels can not."""
    cpu = pytest.importorskip("sparq_ipu._cpu")
    monkeypatch.setattr(cpu, "few_bits_product", lambda *a, **o: pytest.fail("it was called"))
    layer, rows = Int8Linear(a_linear()), torch.randn(3, 96).to(BF16)
    layer.scale = layer.scale.float()
    with pytest.raises(RuntimeError):
        layer(rows)
    moved = Int8Linear(a_linear(bias=False)).to("meta")
    assert moved(rows.to("meta")).shape == (3, 48)


def test_large_codes_move_to_large_pages_as_they_are() -> None:
    codes = torch.randint(-127, 128, (2100, 2016), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    moved = few_bits._in_huge_pages([codes])
    assert torch.equal(moved, codes) and moved.shape == codes.shape and moved.data_ptr() % few_bits._PAGE == 0
    assert torch.equal(copy.deepcopy(moved), codes)
    small = codes[:8]
    assert few_bits._in_huge_pages([small]) is small


def test_small_codes_share_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_bits, "_shared", None)
    monkeypatch.setattr(few_bits, "_SHARED", 2000)
    codes = torch.randint(-127, 128, (6, 300), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    first, second = (few_bits._in_shared_pages([part]) for part in (codes[:4], codes[4:]))
    assert torch.equal(torch.cat((first, second)), codes)
    assert second.data_ptr() == first.data_ptr() + 1216  # 1200 in whole lines
    assert first.data_ptr() % few_bits._PAGE == 0
    first.zero_()
    assert first._version > 0 and second._version == 1  # as it was made: each counts for itself
    assert torch.equal(second, codes[4:])
    third = few_bits._in_shared_pages([codes[4:5], codes[5:]])
    assert torch.equal(third, second) and not 0 <= third.data_ptr() - first.data_ptr() < 2000
    del first, second, third
    assert few_bits._shared is not None and few_bits._shared[0]() is None
