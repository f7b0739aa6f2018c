# SPDX-License-Identifier: Apache-2.0
"""The shape of a decoder of the Llama type: by name, from its config.json or from a GGUF file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Mapping

from sparq_ipu.transformers.loading.checkpoints import Checkpoint
from sparq_reference import checks

#: bits of a stored weight, by name; weights of few bits share an fp16 scale in groups of 32
WEIGHT_BITS = {"fp16": 16.0, "int8": 8.5, "int4": 4.5, "none": 0.0}
#: of WEIGHT_BITS: attention alone, without weights and what their products need
NO_WEIGHTS = "none"


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """A decoder: attention with grouped heads, a feed-forward layer, no biases. gated: the feed-forward layer
    has three matrices (gate, up, down); else two. tied: input and output embedding are one matrix."""

    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    gated: bool = True
    tied: bool = False

    def __post_init__(self) -> None:
        op = f"model {self.name}"
        checks.check_integer(op, "n_layers", self.n_layers, 1, checks.MAX_LAYERS)
        for name in ("n_heads", "n_kv_heads", "head_dim", "hidden_size", "intermediate_size", "vocab_size"):
            checks.check_integer(op, name, getattr(self, name), 1, checks.MAX_CAPACITY)
        if self.n_heads % self.n_kv_heads != 0:
            checks.fail(op, "n_heads", f"be a multiple of n_kv_heads={self.n_kv_heads}", self.n_heads)

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of one layer."""
        attention = 2 * self.hidden_size * self.head_dim * (self.n_heads + self.n_kv_heads)
        feed_forward = (3 if self.gated else 2) * self.hidden_size * self.intermediate_size
        return attention + feed_forward + 2 * self.hidden_size

    @property
    def embedding_weights(self) -> int:
        """Numbers in an embedding. A token reads one row of the input's, and the output's whole."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All of them."""
        embeddings = (1 if self.tied else 2) * self.embedding_weights
        return self.n_layers * self.layer_weights + embeddings + self.hidden_size


#: models by name, from their published config.json: layers, heads, KV heads, head_dim, hidden, intermediate,
#: vocabulary; gated, tied
MODELS: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("SmolLM2-135M", 30, 9, 3, 64, 576, 1536, 49152, True, True),
        ModelShape("Qwen2.5-0.5B", 24, 14, 2, 64, 896, 4864, 151936, True, True),
        ModelShape("Qwen2.5-1.5B", 28, 12, 2, 128, 1536, 8960, 151936, True, True),
        ModelShape("Llama-2-7B", 32, 32, 32, 128, 4096, 11008, 32000, True, False),
        ModelShape("Llama-3.2-1B", 16, 32, 8, 64, 2048, 8192, 128256, True, True),
        ModelShape("Llama-3.2-3B", 28, 24, 8, 128, 3072, 8192, 128256, True, True),
        ModelShape("Mistral-7B-v0.3", 32, 32, 8, 128, 4096, 14336, 32768, True, False),
        ModelShape("Llama-3-8B", 32, 32, 8, 128, 4096, 14336, 128256, True, False),
        ModelShape("Llama-2-13B", 40, 40, 40, 128, 5120, 13824, 32000, True, False),
        ModelShape("Llama-3-70B", 80, 64, 8, 128, 8192, 28672, 128256, True, False),
    )
}


def shape_of(op: str, model: str) -> ModelShape:
    """The shape of a model by its name in MODELS (case does not matter), or from a config.json, a folder that
    contains one, or a GGUF file (which needs transformers)."""
    for name, shape in MODELS.items():
        if name.lower() == model.lower():
            return shape
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        checks.fail(op, "model", f"be one of {', '.join(MODELS)}, a config.json or a .gguf file", repr(model))
    if path.suffix == ".gguf":
        return from_config(op, fields_of(Checkpoint(path).config), str(path))
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        checks.fail(op, "model", f"be a config.json that can be read ({error})", repr(model))
    if not isinstance(config, dict):
        checks.fail(op, "model", "be a config.json with an object", repr(model))
    return from_config(op, config, str(path))


#: fields of a config that `from_config` reads
_FIELDS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "model_type", "tie_word_embeddings"),
    *("num_local_experts", "num_experts"),
)


def fields_of(config: Any) -> dict[str, Any]:
    """The fields of a transformers config that `from_config` reads; None for those it lacks."""
    return {name: getattr(config, name, None) for name in _FIELDS}


#: `model_type`s whose feed-forward layer has two matrices
_NOT_GATED = ("gpt2", "gpt_neox", "opt", "phi", "falcon", "bloom", "starcoder2")


def from_config(op: str, config: Mapping[str, Any], source: str) -> ModelShape:
    """The shape that a config of Hugging Face transformers describes."""
    config = config.get("text_config", config)  # of models that also see

    def size(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if value is None:
            checks.fail(op, name, f"be in the model's config ({source})", "none")
        return checks.check_integer(op, name, value, 1, checks.MAX_CAPACITY)

    if config.get("num_local_experts") or config.get("num_experts"):
        checks.fail(op, "model", "have no experts (plans can not tell which of them a token reads)", source)
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return ModelShape(
        str(config.get("_name_or_path") or config.get("model_type") or "model"),
        size("num_hidden_layers"),
        heads,
        size("num_key_value_heads", heads),
        size("head_dim", hidden // heads),
        hidden,
        size("intermediate_size", 4 * hidden),
        size("vocab_size"),
        gated=config.get("model_type") not in _NOT_GATED,
        tied=bool(config.get("tie_word_embeddings", False)),
    )
