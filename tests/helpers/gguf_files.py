# SPDX-License-Identifier: Apache-2.0
"""GGUF files of tiny models, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterable

import numpy as np
import pytest


def a_gguf(
    folder: Path,
    model: Any,
    kinds: dict[str, str],
    *,
    more: Callable[[Any], None] = lambda writer: None,
    without: Iterable[str] = (),
    architecture: str = "llama",
    name: str = "model.gguf",
) -> Path:
    """A file with the weights of a tiny model.

    Args:
        kinds: of quantised tensors, by a part of their name in transformers; all others are float32.
        more: adds fields and tensors, or overwrites fields.
        without: names of tensors that are left out.
        architecture: in the words of llama.cpp; the model's weights have names of that.
    """
    gguf = pytest.importorskip("gguf")
    config = model.config
    path = folder / name
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["w", "0", *(f"w{i}" for i in range(config.vocab_size - 2))])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["w 0", "w1 0"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    more(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for of_model, value in model.state_dict().items():
        tensor_name = names.get_name(of_model, (".weight", ".bias"))
        if tensor_name in without:
            continue
        array = value.float().numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if architecture == "llama" and part in of_model:
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        if architecture == "gemma3" and "norm" in of_model:
            array = array + 1  # as llama.cpp multiplies by it
        kind = gguf.GGMLQuantizationType[next((k for w, k in kinds.items() if w in of_model), "F32")]
        if kind.name == "F32":
            writer.add_tensor(tensor_name, np.ascontiguousarray(array))
            continue
        if kind.name == "Q6_K":  # zeros: the package gguf does not write it
            size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
            packed = np.zeros((len(array), array.shape[1] // size * n_bytes), np.uint8)
        else:
            packed = gguf.quants.quantize(np.ascontiguousarray(array), kind)
        writer.add_tensor(tensor_name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
