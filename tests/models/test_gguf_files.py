# SPDX-License-Identifier: Apache-2.0
"""A GGUF file becomes the model that it was made of, or is refused in a line with the file and the field."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from gguf_files import a_gguf
from tiny_models import tiny_model, tokens_of, torch

from sparq_ipu.models import load_model
from sparq_ipu.transformers.decoder.weights import weights_of
from sparq_ipu.transformers.loading.checkpoints import Checkpoint
from sparq_ipu.transformers.loading.gguf_file import GgufFile

gguf = pytest.importorskip("gguf")

Edit = Callable[[Any], None]


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        load_model(path)
    text = str(caught.value)
    assert text.startswith("load_model: ") and str(path) in text and "\n" not in text
    return text


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(vocab_size=112)


# --- tensors


@pytest.mark.parametrize("name", ["blk.1.attn_k.weight", "output_norm.weight", "token_embd.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, model: Any, name: str) -> None:
    assert f"have all tensors of its model, got no {name}" in refusal(
        a_gguf(tmp_path, model, {}, without=[name])
    )


def test_all_layers_are_there(tmp_path: Path, model: Any) -> None:
    layers = [f"blk.{index}." for index in (1, 2)]
    names = [tensor.name for tensor in gguf.GGUFReader(a_gguf(tmp_path, model, {})).tensors]
    without = [name for name in names if name.startswith(tuple(layers))]
    path = a_gguf(tmp_path, model, {}, without=without, name="half.gguf")
    assert "have tensors of all 3 layers, got none of blk.1." in refusal(path)
    assert "got none of blk.0." in refusal(a_gguf(tmp_path, model, {}, without=names, name="no.gguf"))


def test_without_a_number_of_layers_there_is_one(tmp_path: Path, model: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_block_count", lambda writer, length: None)
    names = [tensor.name for tensor in gguf.GGUFReader(a_gguf(tmp_path, model, {})).tensors]
    of_layers = [name for name in names if name.startswith("blk.")]
    path = a_gguf(tmp_path, model, {}, without=of_layers, name="no.gguf")
    assert "have tensors of all 1 layers, got none of blk.0." in refusal(path)


def test_parts_are_not_a_model(tmp_path: Path, model: Any) -> None:
    def part(writer: Any) -> None:
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", 3)

    path = a_gguf(tmp_path, model, {}, more=part)
    assert "have all 3 parts in one file (llama-gguf-split --merge), got part 1 of 3" in refusal(path)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path, model: Any) -> None:
    bias = np.ones(96, np.float32)
    path = a_gguf(tmp_path, model, {}, more=lambda writer: writer.add_tensor("blk.0.attn_q.bias", bias))
    assert "blk.0.attn_q.bias" in refusal(path)


def test_shapes_are_those_of_the_numbers(tmp_path: Path, model: Any) -> None:
    path = a_gguf(tmp_path, model, {}, more=changed("llama.feed_forward_length", 96))
    assert "ffn_gate.weight" in refusal(path)


# --- rotary embedding


def logits(of: Any) -> Any:
    with torch.no_grad():
        return of(tokens_of(200)).logits


def of_rope(**scaling: Any) -> Any:
    return tiny_model(vocab_size=112, rope_scaling={k: v for k, v in scaling.items() if v is not None})


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def llama3_factors(model: Any) -> np.ndarray:
    """As llama.cpp's converter computes them."""
    factors = []
    for frequency in 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16):
        wavelength = 2 * np.pi / frequency
        if wavelength < 64 / 4:
            factors.append(1.0)
        elif wavelength > 64:
            factors.append(8.0)
        else:
            smooth = (64 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(factors, np.float32)


def test_factors_of_llama_3_are_applied(tmp_path: Path) -> None:
    model = of_rope(rope_type="llama3", **LLAMA3)
    factors = llama3_factors(model)
    assert len(set(factors.tolist())) > 2
    path = a_gguf(tmp_path, model, {}, more=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    loaded, _ = load_model(path)
    assert not torch.allclose(logits(tiny_model(vocab_size=112)), logits(model), atol=0.1)
    assert torch.allclose(logits(loaded), logits(model), atol=1e-3)
    wrong = a_gguf(
        tmp_path,
        model,
        {},
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors[:3]),
        name="w.gguf",
    )
    assert "rope_freqs.weight" in refusal(wrong)


def test_linear_and_yarn_scaling_are_applied(tmp_path: Path) -> None:
    def linear(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(256)

    plain = logits(tiny_model(vocab_size=112))
    for name, more, scaling in (
        ("linear", linear, dict(rope_type="linear", factor=4.0)),
        ("yarn", yarn, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=256)),
    ):
        model = of_rope(**scaling)
        loaded, _ = load_model(a_gguf(tmp_path, model, {}, more=more, name=f"{name}.gguf"))
        assert not torch.allclose(plain, logits(model), atol=0.1)
        assert torch.allclose(logits(loaded), logits(model), atol=1e-4), name


def test_other_scaling_is_refused_by_name(tmp_path: Path, model: Any) -> None:
    def scaling(kind: str) -> Edit:
        def more(writer: Any) -> None:
            writer.add_string("llama.rope.scaling.type", kind)
            writer.add_rope_scaling_factor(4.0)

        return more

    assert "llama.rope.scaling.type" in refusal(a_gguf(tmp_path, model, {}, more=scaling("longrope")))
    # yarn without the length that it was trained for
    assert "llama.rope.scaling.type" in refusal(
        a_gguf(tmp_path, model, {}, more=scaling("yarn"), name="y.gguf")
    )
    factors = np.ones(8, np.float32)
    path = a_gguf(
        tmp_path, model, {}, more=lambda w: w.add_tensor("rope_factors_long.weight", factors), name="l.gguf"
    )
    assert "rope_factors_long.weight" in refusal(path)
    part = a_gguf(tmp_path, model, {}, more=changed("llama.rope.dimension_count", 8), name="p.gguf")
    assert "llama.rope.dimension_count" in refusal(part)


# --- numbers of the header


def changed(name: str, value: Any) -> Edit:
    """Overwrites a field that was added before, with its type."""

    def more(writer: Any) -> None:
        for fields in writer.kv_data:
            if name in fields:
                fields[name].value = value
                if isinstance(value, list):
                    fields[name].type = gguf.GGUFValueType.ARRAY
                return
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))

    return more


@pytest.mark.parametrize(
    "name, value, named",
    [
        ("llama.block_count", 1 << 31, "num_hidden_layers"),
        ("llama.block_count", 0, "num_hidden_layers"),
        ("llama.block_count", [3, 3, 3], "llama.block_count"),
        ("llama.embedding_length", [96, 96], "llama.embedding_length"),
        ("llama.embedding_length", 0, "hidden_size"),
        ("llama.attention.head_count", 0, "num_attention_heads"),
        ("llama.attention.head_count", 5, "num_key_value_heads"),
        ("llama.attention.head_count_kv", 4, "num_key_value_heads"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "rms_norm_eps"),
        ("llama.rope.freq_base", -1.0, "rope_theta"),
        ("llama.context_length", 0, "max_position_embeddings"),
        ("llama.attention.key_length", 1 << 31, "head_dim"),
        ("tokenizer.ggml.bos_token_id", 112, "tokenizer.ggml.bos_token_id"),
        ("tokenizer.ggml.eos_token_id", 112, "tokenizer.ggml.eos_token_id"),
        ("general.alignment", 48, "general.alignment"),
        ("general.architecture", "\u00fcbermodel", ""),
    ],
)
def test_numbers_that_no_model_has(tmp_path: Path, model: Any, name: str, value: Any, named: str) -> None:
    """A number of the config has its name there."""
    assert named in refusal(a_gguf(tmp_path, model, {}, more=changed(name, value)))


@pytest.mark.parametrize("kind", ["Q8_0", "F32"])
@pytest.mark.parametrize("of_model, name", [("embed_tokens", "token_embd"), ("o_proj", "blk.0.attn_output")])
@pytest.mark.parametrize("weights", [None, "int8"])
def test_a_scale_that_is_not_a_number_is_refused_by_name(
    tmp_path: Path, model: Any, kind: str, of_model: str, name: str, weights: str | None
) -> None:
    """In an embedding, which keeps 16 bits, and in a layer with the codes of the file or rounded anew."""
    path = a_gguf(tmp_path, model, {of_model: kind, "_proj": "Q8_0"} if kind == "Q8_0" else {})
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == f"{name}.weight")
    data = bytearray(path.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 4] = b"\xff" * 4  # NaN of 16 and of 32 bits
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"load_model: .*({name}|layers.0.self_attn.{of_model}).* finite"):
        load_model(path, weights=weights)


def test_offsets_are_within_the_file(tmp_path: Path, model: Any) -> None:
    """Far away, negative, not aligned, of another tensor; and a file that is cut anywhere."""
    path = a_gguf(tmp_path, model, {})
    data = path.read_bytes()
    name = b"blk.1.attn_k.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8 + 4
    (offset,) = struct.unpack_from("<Q", data, at)
    bad = tmp_path / "bad.gguf"
    far = "end within"
    wrong = {1 << 40: far, (1 << 64) - 32: far, offset + 1: "begin at a multiple", 0: "behind"}
    for other, rule in wrong.items():
        bad.write_bytes(data[:at] + struct.pack("<Q", other) + data[at + 8 :])
        text = refusal(bad)
        assert rule in text and ("blk.1.attn_k.weight" in text or other == 0)
    bad.write_bytes(data[:at] + struct.pack("<Q", offset + 4096 * 32) + data[at + 8 :])
    refusal(bad)
    for cut in (0, 3, 20, 300, at, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:cut])
        refusal(bad)


def test_no_memory_is_taken_for_what_is_refused(tmp_path: Path, model: Any, monkeypatch: Any) -> None:
    import transformers

    path = a_gguf(tmp_path, model, {}, more=changed("llama.block_count", 1 << 20))
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_config", lambda *a, **o: pytest.fail("built")
    )
    refusal(path)


# --- as the file has it


@pytest.mark.parametrize(
    "kind, dtype, weights",
    [
        ("Q4_0", "bfloat16", "int4"),
        ("Q8_0", "bfloat16", "int8"),
        ("Q5_0", "bfloat16", "int8"),
        ("F16", "float32", None),
        ("BF16", "bfloat16", None),
        ("F32", "float32", None),
    ],
)
def test_types_are_those_of_the_file(
    tmp_path: Path, model: Any, kind: str, dtype: str, weights: str | None
) -> None:
    checkpoint = Checkpoint(a_gguf(tmp_path, model, {"proj": kind}))
    assert checkpoint.types(None, None) == (dtype, weights)
    for given in ("float32", "bfloat16"):
        assert checkpoint.types(given, None) == (given, None)
    assert checkpoint.types(None, "int8") == ("bfloat16", "int8")
    assert str(checkpoint.model().dtype) == f"torch.{dtype}"


@pytest.mark.parametrize(
    "kind, weights",
    [("Q4_K", "int4"), ("Q6_K", "int8"), ("IQ4_NL", "int8"), ("IQ4_XS", "int8"), ("Q3_K", None)],
)
def test_types_are_those_in_memory(tmp_path: Path, model: Any, kind: str, weights: str | None) -> None:
    """Of kinds that the package gguf does not write."""
    checkpoint = Checkpoint(a_gguf(tmp_path, model, {}))
    of = gguf.GGMLQuantizationType[kind]
    for name, tensor in checkpoint.file.tensors.items():
        checkpoint.file.tensors[name] = tensor._replace(kind=of)
    assert checkpoint.types(None, None) == ("bfloat16", weights)


def test_most_weights_decide(tmp_path: Path, model: Any) -> None:
    for kind, few, dtype in (("Q4_0", "BF16", "bfloat16"), ("Q8_0", "F32", "float32")):
        checkpoint = Checkpoint(a_gguf(tmp_path, model, {"k_proj": kind, "proj": few}))
        assert checkpoint.types(None, None) == (dtype, None)
        assert weights_of(checkpoint.model()) is None and checkpoint.few_bits is None


def test_the_file_is_parsed_once(tmp_path: Path, model: Any, monkeypatch: Any) -> None:
    from transformers.integrations.gguf import reader

    parses = []
    parse = GgufFile.__init__
    monkeypatch.setattr(gguf.GGUFReader, "__init__", lambda *a: pytest.fail("parsed by gguf"))
    monkeypatch.setattr(reader, "_mapped", lambda _: pytest.fail("parsed by transformers"))
    monkeypatch.setattr(GgufFile, "__init__", lambda self, path: (parses.append(path), parse(self, path))[1])
    load_model(a_gguf(tmp_path, model, {"proj": "Q4_0"}))
    assert len(parses) == 1


def test_a_vocabulary_that_contradicts_its_merges_is_refused(tmp_path: Path, model: Any) -> None:
    text = refusal(a_gguf(tmp_path, model, {}, more=changed("tokenizer.ggml.merges", ["w nothing", "w 0"])))
    assert re.search("tokenizer", text)
