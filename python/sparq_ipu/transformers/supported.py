# SPDX-License-Identifier: Apache-2.0
"""Which models can be enabled, judged by their structure and not by their name; and which of their layers.

A layer that sees all positions has SparQ attention. A layer that sees a window of the most recent ones has

* dense attention, where other layers see all positions: windows are short, and there is little to gain.
* SparQ attention as long as the text is within its window, where all layers have one, and dense attention
  beyond.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from sparq_reference import checks

_KNOWN_TYPES = ("full_attention", "sliding_attention")
#: features that change attention, by their names in configs
_REFUSED = (
    "attn_logit_softcapping",
    "attention_sink",
    "attention_chunk_size",
    "kv_lora_rank",
    "num_kv_shared_layers",
)


@dataclasses.dataclass(frozen=True)
class LayerKinds:
    """The attention of each layer of a model.

    Attributes:
        windows: the window of each layer, in positions; None: it sees all.
    """

    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, config: PretrainedConfig) -> LayerKinds:
        """From the config of a decoder that `check_model` accepts."""
        n_layers = int(config.num_hidden_layers)
        window = getattr(config, "sliding_window", None)
        types = getattr(config, "layer_types", None)
        if types is None:
            types = ["full_attention" if window is None else "sliding_attention"] * n_layers
        return cls(tuple(window if kind == "sliding_attention" else None for kind in types))

    @property
    def dense(self) -> frozenset[int]:
        """Layers that attend densely to their window, whatever the settings."""
        if None not in self.windows:
            return frozenset()
        return frozenset(index for index, window in enumerate(self.windows) if window is not None)

    def describe(self, attention: str) -> str:
        """One line: which layers have `attention`, e.g. "SparQ attention"."""
        n_layers, n_dense = len(self.windows), len(self.dense)
        line = f"{attention} in {n_layers - n_dense} of {n_layers} layers"
        sizes = ", ".join(str(size) for size in sorted({w for w in self.windows if w is not None}))
        if n_dense:
            return f"{line}, dense attention to a window of {sizes} positions in the others"
        if sizes:
            return f"{line} while a text is within their window of {sizes} positions, dense attention beyond"
        return line


def decoder_of(model: PreTrainedModel) -> Any:
    """The module that runs all layers in its forward pass: the base model, or the decoder inside it (OPT)."""
    base = model.base_model
    inner = getattr(base, "decoder", None)
    return inner if isinstance(inner, PreTrainedModel) else base


def text_config(model: Any) -> PretrainedConfig:
    """The config of the decoder, of a model or of its config."""
    config: PretrainedConfig = getattr(model, "config", model).get_text_config(decoder=True)
    return config


def n_layers_of(model: PreTrainedModel) -> int:
    """Layers of the decoder."""
    return int(text_config(model).num_hidden_layers)


def same_rotary_until(config: PretrainedConfig) -> int:
    """Positions of a text up to which a token has the rotary embedding that it has in a shorter one."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in ("longrope", "dynamic"):
        return checks.MAX_CAPACITY
    name = "original_max_position_embeddings"
    return int(rope.get(name) or getattr(config, name, None) or config.max_position_embeddings)


def head_dim_of(model: PreTrainedModel, op: str = "enable") -> int:
    """Components of a head."""
    config = text_config(model)
    try:
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    except Exception as error:  # of no class that is public
        if "PerLayerAttribute" not in type(error).__name__:
            raise
    checks.fail(op, "model", "have one head_dim in all layers", f"{type(model).__name__} with several")


def attention_modules(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The attention of each layer: modules that know their layer, and have no other such module inside."""
    found = []
    for module in decoder_of(model).modules():
        inner = (m for m in module.modules() if m is not module)
        if "Attention" in type(module).__name__ and hasattr(module, "layer_idx"):
            if not any(hasattr(m, "layer_idx") for m in inner):
                found.append(module)
    return found


def check_model(op: str, model: PreTrainedModel) -> None:
    """Refuse models with attention that the kernels do not compute."""
    if not isinstance(model, PreTrainedModel):
        checks.fail(op, "model", "be a transformers PreTrainedModel", type(model).__name__)
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        checks.fail(op, "model", "be a decoder", f"the encoder-decoder {name}")
    config = text_config(model)
    modules = attention_modules(model)
    indices = [module.layer_idx for module in modules]
    has_interface = getattr(model, "_supports_attention_backend", False)
    if not has_interface or indices != list(range(getattr(config, "num_hidden_layers", -1))):
        rule = "have one attention per layer, through AttentionInterface"
        checks.fail(op, "model", rule, name)
    if not all(getattr(module, "is_causal", True) for module in modules):
        checks.fail(op, "model", "attend causally", name)
    _check_layers(op, name, config, modules)
    head_dim = head_dim_of(model, op)
    if head_dim % checks.HEAD_DIM_MULTIPLE:
        checks.fail(op, "head_dim", f"be a multiple of {checks.HEAD_DIM_MULTIPLE}", head_dim)
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices != {"cpu"}:
        checks.fail(op, "model", "be on the CPU", ", ".join(sorted(devices)))
    if model.training:
        checks.fail(op, "model", "be in eval mode", "training mode")


def _check_layers(op: str, name: str, config: PretrainedConfig, modules: list[torch.nn.Module]) -> None:
    types = set(getattr(config, "layer_types", None) or [])
    if types - set(_KNOWN_TYPES):
        rule = f"have layers of {' or '.join(_KNOWN_TYPES)} alone"
        checks.fail(op, "model", rule, f"{name} with {', '.join(sorted(types))}")
    if "sliding_attention" in types and getattr(config, "sliding_window", None) is None:
        checks.fail(op, "model", "have a sliding_window", f"{name} with sliding_attention and none")
    for feature in _REFUSED:
        if getattr(config, feature, None):
            checks.fail(op, "model", f"have no {feature}", f"{name} with {getattr(config, feature)}")
    if any(hasattr(module, "sinks") for module in modules):
        checks.fail(op, "model", "have no attention sinks", name)
