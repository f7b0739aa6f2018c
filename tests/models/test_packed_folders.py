# SPDX-License-Identifier: Apache-2.0
"""Folders with weights of 4 bits as AutoAWQ and GPTQ write them, made here by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import save_checkpoint, tokens_of, torch

from sparq_ipu.models import load_model
from sparq_ipu.transformers.loading.checkpoints import Checkpoint

safetensors = pytest.importorskip("safetensors.torch")

#: of eight outputs, the one that is in nibble 0, 1, ... (AutoAWQ, GEMM)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words_of(numbers: np.ndarray) -> np.ndarray:
    """(n, m) in [0, 15] -> (n, m / 8): the first is in the lowest bits."""
    words = np.zeros((len(numbers), numbers.shape[1] // 8), np.uint32)
    for i in range(8):
        words |= numbers[:, i::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def a_folder(folder: Path, method: str, group: int = 32, **said: Any) -> dict[str, np.ndarray]:
    """Returns the weights of its layers in float64, (outputs, inputs)."""
    torch.manual_seed(0)
    save_checkpoint(folder, hidden_size=64, intermediate_size=128, num_attention_heads=4)
    config = json.loads((folder / "config.json").read_text())
    fields = {"quant_method": method, "bits": 4, "group_size": group, **said}
    if method == "gptq":
        fields = {"desc_act": False, **fields}
    config["quantization_config"] = fields
    (folder / "config.json").write_text(json.dumps(config))
    (file,) = folder.glob("*.safetensors")
    state, made, weights = safetensors.load_file(file), {}, {}
    generator = np.random.default_rng(0)
    for name, tensor in state.items():
        if "_proj" not in name:
            made[name] = tensor
            continue
        n_out, n_in = tensor.shape
        layer, n_groups = name[: -len(".weight")], 1 if group == -1 else n_in // group
        codes = generator.integers(0, 16, (n_in, n_out))
        zeros = generator.integers(0, 16, (n_groups, n_out))
        scales = generator.uniform(0.005, 0.02, (n_groups, n_out)).astype(np.float16)
        each = np.repeat(np.arange(n_groups), n_in // n_groups)
        weights[layer] = (scales.astype(np.float64)[each] * (codes - zeros[each])).T
        if method == "awq":
            order = np.arange(n_out).reshape(-1, 8)[:, AWQ_ORDER].reshape(-1)
            parts = {"qweight": words_of(codes[:, order]), "qzeros": words_of(zeros[:, order])}
        else:
            # whole words, with borrows, as GPTQModel writes them
            less = 0 if said.get("checkpoint_format") == "gptq_v2" else 0x11111111
            parts = {"qweight": words_of(codes.T).T, "qzeros": words_of(zeros) - np.int32(less)}
            parts["g_idx"] = each.astype(np.int32)
        parts["scales"] = scales
        made.update({f"{layer}.{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in parts.items()})
    safetensors.save_file(made, file, {"format": "pt"})
    return weights


FORMS = {
    "awq": dict(method="awq", version="gemm", zero_point=True),
    "awq 64": dict(method="awq", group=64),
    "gptq": dict(method="gptq", sym=True),
    "gptq_v2": dict(method="gptq", checkpoint_format="gptq_v2"),
    "gptq, one group": dict(method="gptq", group=-1),
}


@pytest.mark.parametrize("method, turns", [("awq", None), ("gptq", None), ("other", "10000")])
def test_threads_wait_as_for_weights_of_few_bits(
    tmp_path: Path, monkeypatch: Any, method: str, turns: str | None
) -> None:
    a_folder(tmp_path, method)
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    Checkpoint(tmp_path).set_waiting(None, None)
    assert os.environ.get("GOMP_SPINCOUNT") == turns


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_of_the_files(tmp_path: Path, form: str) -> None:
    weights = a_folder(tmp_path, **FORMS[form])
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.types(None, None) == ("bfloat16", "int4")
    model = checkpoint.model()
    n = len(weights)
    of_file = {"int8": 0, "int4": n, "as in the file": n, "rounded anew": 0, "left": 1}
    assert checkpoint.few_bits.layers == of_file
    for name, expected in weights.items():
        codes, scales = model.get_submodule(name).groups
        steps = codes.double().view(len(codes), -1, 32) - 8
        scale, zero = scales.double()[..., None].unbind(dim=2)
        made = (steps * scale + zero).flatten(1).numpy()
        # scales are those of the file; a zero is rounded to 11 bits
        assert np.all(np.abs(made - expected) <= 8 * 0.02 * 2.0**-11), name
    assert model(tokens_of(20)).logits.isfinite().all()
    rounded, _ = load_model(tmp_path, weights="int8")  # no more than 8
    assert rounded.get_submodule(name).bits == 4


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (dict(method="gptq", desc_act=True), r"desc_act .*must be False, got True"),
        (dict(method="gptq", bits=8), r"bits of .*must be 4, got 8"),
        (dict(method="gptq", checkpoint_format="marlin"), r"checkpoint_format .*'gptq_v2', got 'marlin'"),
        (dict(method="awq", version="gemv"), r"version of .*must be 'gemm' or 'GEMM', got 'gemv'"),
    ],
)
def test_other_forms_are_refused_by_name(tmp_path: Path, said: Any, rule: str) -> None:
    a_folder(tmp_path, **said)
    with pytest.raises(ValueError, match=r"load_model: quantization_config\." + rule):
        load_model(tmp_path)


def test_refused_groups_orders_and_types(tmp_path: Path) -> None:
    a_folder(tmp_path, "gptq")
    message = r"load_model: dtype must be None with weights of gptq, got 'float32'"
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path, "float32")
    (file,) = tmp_path.glob("*.safetensors")
    state = safetensors.load_file(file)
    name = "model.layers.0.mlp.up_proj.g_idx"
    state[name] = state[name].flip(0).contiguous()
    safetensors.save_file(state, file, {"format": "pt"})
    with pytest.raises(ValueError, match=rf"load_model: {name[:-6]}.g_idx must be that of inputs in order"):
        load_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["group_size"] = 48
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"group_size of .*must be -1 or a multiple of 32, got 48"):
        load_model(tmp_path)


UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("method", ["awq", "gptq"])
@pytest.mark.parametrize(
    ("part", "change", "rule"),
    [
        ("qzeros", lambda t: t[:1], r"have the shape \(2, 16\), got \(1, 16\)"),
        ("scales", lambda t: t[:1], r"have the shape \(2, 128\), got \(1, 128\)"),
        ("scales", lambda t: t.repeat(1, 2), r"have the shape \(2, 128\), got \(2, 256\)"),
        ("qweight", lambda t: t[1:], r"have the shape \(\d+, \d+\), got "),
        ("qweight", lambda t: t.repeat(1, 2), r"have the shape \(\d+, \d+\), got "),
        ("qweight", lambda t: t.float(), "be I32, got F32"),
        ("qzeros", lambda t: t.to(torch.int64), "be I32, got I64"),
        ("scales", lambda t: t.to(torch.int64), "be F16 or BF16 or F32, got I64"),
        ("scales", lambda t: t * float("nan"), "be finite, at most 8188, got nan"),
        ("scales", lambda t: t * 0 + 8192, "be finite, at most 8188, got 8192.0"),
        ("qweight", None, "be in .*, got no such tensor"),
        ("qzeros", None, "be in .*, got no such tensor"),
        ("scales", None, "be in .*, got no such tensor"),
    ],
)
def test_tensors_that_are_not_the_layer_s_are_refused(
    tmp_path: Path, method: str, part: str, change: Any, rule: str
) -> None:
    a_folder(tmp_path, method)
    (file,) = tmp_path.glob("*.safetensors")
    state = safetensors.load_file(file)
    tensor = state.pop(f"{UP}.{part}")
    if change is not None:
        state[f"{UP}.{part}"] = change(tensor).contiguous()
    safetensors.save_file(state, file, {"format": "pt"})
    with pytest.raises(ValueError, match=rf"^load_model: {UP}\.{part} must {rule}"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("group", "rule"),
    [
        (64, r"model\.layers.*\.qzeros must have the shape \(2, 8\), got \(4, 8\)"),
        (96, r"model\.layers.* must have a multiple of 96 inputs, the group_size, got "),
    ],
)
def test_a_group_size_of_another_file_is_refused(tmp_path: Path, group: int, rule: str) -> None:
    a_folder(tmp_path, "awq")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["group_size"] = group
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="load_model: " + rule):
        load_model(tmp_path)
