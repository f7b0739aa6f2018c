# SPDX-License-Identifier: Apache-2.0
"""The decoders whose steps are lean, by the name of their classes: how each differs from Llama.

A family is added after its forward pass in transformers was read: a trial compares one step, and cannot see
what happens at other positions.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Iterator

import torch

from sparq_ipu.transformers.decoder.unchanged import looks


@dataclasses.dataclass(frozen=True)
class Family:
    """A decoder of norms, attention with a rotary embedding, and a gated MLP.

    Attributes:
        inputs, gates: linear layers of one input; one name where they are fused.
        activation: of the gate, in the MLP.
        norms: of a layer, before attention, on its output, before the MLP, and on its output. None: no norm.
        head_norms: norms of queries and of keys, over one head or over all; () for none.
        epsilon: attribute of norms.
        norm_offset: is added to the weights of norms.
        norm_rounds_twice: norms round before the multiplication by the weight too.
        is_rotary: attribute of attention, False in layers without a rotary embedding.
        has_wide_rotary: cosine and sine are float32 in any model.
        rotary_by_type: layers of each of `config.layer_types` have a rotary embedding of their own.
        embedding_multiplier, residual_multiplier: attributes of the decoder and of its layers.
    """

    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gates: tuple[str, ...] = ("gate_proj", "up_proj")
    activation: str = "act_fn"
    norms: tuple[str | None, ...] = ("input_layernorm", None, "post_attention_layernorm", None)
    head_norms: tuple[str, ...] = ()
    epsilon: str = "variance_epsilon"
    norm_offset: float = 0.0
    norm_rounds_twice: bool = True
    is_rotary: str | None = None
    has_wide_rotary: bool = False
    rotary_by_type: bool = False
    embedding_multiplier: str | None = None
    residual_multiplier: str | None = None

    def rotary_types(self, config: Any) -> list[str]:
        """The kinds of rotary embeddings, by the name that the module takes; one without a name."""
        return sorted(set(config.layer_types)) if self.rotary_by_type else [""]

    def rotary_of(self, config: Any, index: int, attention: Any) -> int:
        """The number of the rotary embedding of a layer among `rotary_types`, -1 without one."""
        if self.is_rotary is not None and not getattr(attention, self.is_rotary):
            return -1
        return self.rotary_types(config).index(config.layer_types[index]) if self.rotary_by_type else 0

    def norm(self, module: Any, rows: torch.Tensor) -> torch.Tensor:
        """RMSNorm by this module, rounded as the model's own."""
        weight = module._parameters["weight"]
        epsilon = getattr(module, self.epsilon)
        if self.norm_rounds_twice:
            normed: torch.Tensor = weight * torch.rms_norm(rows, weight.shape, None, epsilon)
            return normed
        weight = weight.float() + self.norm_offset if self.norm_offset else weight
        normed = torch.rms_norm(rows.float(), weight.shape, None, epsilon) * weight
        return normed.to(rows.dtype)

    def each_norm(self, decoder: Any) -> Iterator[Any]:
        """All norms."""
        for layer in decoder.layers:
            yield from (getattr(layer, name) for name in self.norms if name is not None)
            yield from (getattr(layer.self_attn, name) for name in self.head_norms)
        yield decoder.norm

    def written_out(self, decoder: Any) -> Iterator[tuple[dict[str, Any], str]]:
        """What holds each module that a lean step replaces, and its name. Linear layers, activations and
        embeddings are called as modules."""
        called = {*self.inputs, *self.gates, "o_proj", "down_proj", self.activation}
        yield decoder._modules, "layers"
        yield decoder._modules, "norm"
        layers = decoder.layers._modules
        for name, layer in layers.items():
            yield layers, name
            for child in layer._modules:
                yield layer._modules, child
                inner = layer._modules[child]._modules
                yield from ((inner, one) for one in inner if one not in called)


_GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
FAMILIES = {
    "Llama": Family(),
    "Mistral": Family(),
    "Qwen2": Family(),
    "Qwen3": Family(head_norms=("q_norm", "k_norm")),
    "SmolLM3": Family(is_rotary="use_rope"),
    "Phi3": Family(inputs=("qkv_proj",), gates=("gate_up_proj",), activation="activation_fn"),
    "Granite": Family(embedding_multiplier="embedding_multiplier", residual_multiplier="residual_multiplier"),
    "Olmo2": Family(
        norms=(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        head_norms=("q_norm", "k_norm"),
        norm_rounds_twice=False,
        has_wide_rotary=True,
    ),
    "Gemma": Family(norm_offset=1.0, norm_rounds_twice=False, epsilon="eps"),
    "Gemma2": Family(norms=_GEMMA_NORMS, norm_offset=1.0, norm_rounds_twice=False, epsilon="eps"),
    "Gemma3Text": Family(
        norms=_GEMMA_NORMS,
        head_norms=("q_norm", "k_norm"),
        norm_offset=1.0,
        norm_rounds_twice=False,
        epsilon="eps",
        rotary_by_type=True,
    ),
}
#: the classes of parts that are written out
_PARTS = ("DecoderLayer", "Attention", "MLP", "RMSNorm")


def family_of(decoder: Any) -> Family | str:
    """The description of a decoder, or why it has none: a class or a function is not that of transformers, or
    a hook is in a part."""
    name, source = type(decoder).__name__, type(decoder).__module__
    prefix = name[: -len("Model")]
    family = FAMILIES.get(prefix) if name.endswith("Model") else None
    if family is None or source.split(".")[0] != "transformers":
        return f"{name} is not among {', '.join(FAMILIES)}"
    if "forward" in vars(decoder):
        return "its forward pass was replaced"
    written = sys.modules[source]
    of_parts = prefix[:-4] if prefix.endswith("Text") else prefix
    parts = [getattr(written, of_parts + part) for part in _PARTS]
    functions = [part.forward for part in (type(decoder), *parts)] + [written.apply_rotary_pos_emb]
    if any(function.__module__ != source for function in functions):
        return f"functions of {source} were replaced"
    if len(decoder.layers) != decoder.config.num_hidden_layers:
        return "config.num_hidden_layers is not the number of its layers"
    parts += [torch.nn.ModuleList, torch.nn.Dropout]
    for holder, part in family.written_out(decoder):
        module = holder[part]
        own = module.__dict__
        if type(module) not in parts or "forward" in own:
            return f"{part} is a {type(module).__name__} that was put there"
        if looks(own["_forward_hooks"]) or own["_forward_pre_hooks"]:
            return f"a hook is in {part}"
    return family
