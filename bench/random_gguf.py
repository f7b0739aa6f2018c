# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of random weights in the shape of a model: large ones are timed without a download.

    python bench/random_gguf.py llama-3-8b /tmp/llama.gguf
    python bench/decode.py --model /tmp/llama.gguf --dtypes int4 --methods dense recommended --S 8192

Layers are Q4_K, the embedding and the output layer Q6_K, as most of a Q4_K_M file; where inputs are no
multiple of 256, Q4_0 and Q8_0. Every layer has the same weights. Tokens are the bytes, pairs of bytes, and
words that no text gives.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from lib.common import Parser, guarded

from sparq_ipu.commands.command_line import output_path, positive_integer
from sparq_ipu.planning.model_shape import MODELS, ModelShape

_QWEN = ModelShape("Qwen3-4B", 36, 32, 8, 128, 2560, 9728, 151936, True, True)
_QWEN2_HALF = ModelShape("Qwen2.5-0.5B", 24, 14, 2, 64, 896, 4864, 151936, True, True)
_QWEN2 = ModelShape("Qwen2.5-1.5B", 28, 12, 2, 128, 1536, 8960, 151936, True, True)
_TINY = ModelShape("tiny", 2, 4, 2, 64, 256, 512, 512, True, False)
#: architecture, shape, base of the rotary embedding
SHAPES: dict[str, tuple[str, ModelShape, float]] = {
    "qwen2.5-0.5b": ("qwen2", _QWEN2_HALF, 1e6),
    "qwen2.5-1.5b": ("qwen2", _QWEN2, 1e6),
    "llama-3.2-3b": ("llama", MODELS["Llama-3.2-3B"], 5e5),
    "qwen3-4b": ("qwen3", _QWEN, 1e6),
    "llama-3-8b": ("llama", MODELS["Llama-3-8B"], 5e5),
    "tiny": ("llama", _TINY, 1e4),
}
_KINDS = gguf.GGMLQuantizationType
#: where inputs are a multiple of 256, and where they are not
_OF_LAYERS, _OF_VOCABULARY = (_KINDS.Q4_K, _KINDS.Q4_0), (_KINDS.Q6_K, _KINDS.Q8_0)
#: where the scales of a block are, and the largest integer that they multiply
_SCALES: dict[Any, tuple[tuple[int, ...], int]] = {
    _KINDS.Q4_K: ((0, 2), 63 * 15),
    _KINDS.Q4_0: ((0,), 8),
    _KINDS.Q6_K: ((208,), 127 * 32),
    _KINDS.Q8_0: ((0,), 127),
}


def blocks(kind: Any, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """A matrix whose weights are about 1 / sqrt(inputs)."""
    size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    made = generator.integers(0, 256, (shape[0] * shape[1] // size, n_bytes), np.uint8)
    halves, most = _SCALES[kind]
    for at, share in zip(halves, (1, 7.5)):  # a minimum in the middle of the codes
        half = np.float16(share * 2 * shape[1] ** -0.5 / most)
        made[:, at : at + 2] = np.frombuffer(half.tobytes(), np.uint8)
    return made.reshape(shape[0], -1)


def write(name: str, path: Path, n_layers: int | None = None, seed: int = 0) -> None:
    architecture, shape, base = SHAPES[name]
    n_layers = n_layers or shape.n_layers
    width = shape.hidden_size
    inner = shape.intermediate_size
    dim = shape.head_dim
    vocabulary = shape.vocab_size
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=False)
    writer.add_block_count(n_layers)
    writer.add_context_length(1 << 17)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_freq_base(base)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if architecture == "llama" else "qwen2")
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324))]  # GPT-2's bytes
    words = [letters[i // 256] + letters[i % 256] for i in range(1 << 16)]
    names = [*letters, *words, *(f"word{i}" for i in range(vocabulary))][: vocabulary - 2]
    writer.add_token_list([*names, "<|begin|>", "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(names) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges([" ".join(word) for word in names[256:] if len(word) == 2])
    writer.add_bos_token_id(vocabulary - 2)
    writer.add_eos_token_id(vocabulary - 1)

    def add(tensor: str, *sizes: int, kinds: tuple[Any, Any] = _OF_LAYERS) -> Any:
        if len(sizes) == 1:
            return lambda prefix: writer.add_tensor(f"{prefix}{tensor}.weight", np.ones(sizes, np.float32))
        kind = kinds[sizes[1] % 256 != 0]
        data = blocks(kind, sizes, generator)  # type: ignore[arg-type]
        return lambda prefix: writer.add_tensor(f"{prefix}{tensor}.weight", data, raw_dtype=kind)

    def bias(part: str, size: int) -> Any:
        return lambda prefix: writer.add_tensor(f"{prefix}{part}.bias", np.zeros(size, np.float32))

    add("token_embd", vocabulary, width, kinds=_OF_VOCABULARY)("")
    add("output_norm", width)("")
    if not shape.tied:
        add("output", vocabulary, width, kinds=_OF_VOCABULARY)("")
    of_layer = [add("attn_norm", width), add("ffn_norm", width), add("ffn_down", width, inner)]
    of_layer += [add("attn_q", shape.n_heads * dim, width), add("attn_output", width, shape.n_heads * dim)]
    of_layer += [add(part, shape.n_kv_heads * dim, width) for part in ("attn_k", "attn_v")]
    of_layer += [add(part, inner, width) for part in ("ffn_gate", "ffn_up")]
    if architecture == "qwen2":
        of_layer += [bias(part, shape.n_kv_heads * dim) for part in ("attn_k", "attn_v")]
        of_layer.append(bias("attn_q", shape.n_heads * dim))
    if architecture == "qwen3":
        of_layer += [add("attn_q_norm", dim), add("attn_k_norm", dim)]
    for layer in range(n_layers):
        for tensor in of_layer:
            tensor(f"blk.{layer}.")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(words: list[str] | None = None) -> int:
    parser = Parser(
        prog="bench/random_gguf.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=output_path, help="the file")
    parser.add_argument("--layers", type=positive_integer, help="(default those of the model)")
    arguments = parser.parse_args(words)
    write(arguments.shape, arguments.path, arguments.layers)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
