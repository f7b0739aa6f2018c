# SPDX-License-Identifier: Apache-2.0
"""Steps of one token through decoders of the kind of Llama: fewer operations than transformers takes, and the
same bits.

A step of a small model takes as long as its operations are many, whatever they compute. transformers takes
some 60 in each layer beside the products, and calls a dozen modules. Here norms, the rotary embedding and
what is around attention are written out: some 30. Products, embeddings and the activation are the model's own
modules, and every rounding is the model's. Layers of few bits that have one input are one product.

What is not as it was written (a class, a hook, an argument), gradients and torch.compile: all of these have
the model's own forward pass, at each step anew.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Sequence

import torch
import torch.nn.functional as F
import torch.nn.modules.module
from transformers.modeling_outputs import BaseModelOutputWithPast

from sparq_ipu.torch.few_bits import JoinedLinear
from sparq_ipu.transformers.layer import SparqLayer
from sparq_ipu.transformers.places import PlacesPass

_torch_module: Any = torch.nn.modules.module  # partly typed

#: decoders that this computes, by the name of their class: what the names of its parts begin with
_FAMILIES = {"LlamaModel": "Llama", "Qwen2Model": "Qwen2"}
#: the parts that are written out here
_PARTS = ("DecoderLayer", "Attention", "MLP", "RMSNorm")
#: linear layers with one input, of attention and of the MLP
_INPUTS, _GATES = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


class LeanStep:
    """The forward pass of a decoder that `fits`: a step of one token, and the decoder's own for all else.

    Args:
        decoder: whose `forward` this becomes.
    """

    def __init__(self, decoder: Any):
        #: the decoder's own, whose signature `inspect` finds by this name
        self.__wrapped__: Callable[..., Any] = decoder.forward
        self._decoder = decoder
        self._joined = [
            (_joined(layer.self_attn, _INPUTS), _joined(layer.mlp, _GATES)) for layer in decoder.layers
        ]

    @staticmethod
    def fits(decoder: Any) -> bool:
        """Whether it is one of transformers' own, and nobody has put other functions into its classes."""
        family = _FAMILIES.get(type(decoder).__name__)
        source = type(decoder).__module__
        if family is None or source.split(".")[0] != "transformers" or "forward" in vars(decoder):
            return False
        written = sys.modules[source]
        functions = [type(decoder).forward, written.apply_rotary_pos_emb]
        functions += [getattr(written, family + part).forward for part in _PARTS]
        if any(function.__module__ != source for function in functions):
            return False
        attention = (layer.self_attn for layer in decoder.layers)
        scales = (module.scaling * float(module.head_dim) ** 0.5 for module in attention)
        is_whole = len(decoder.layers) == decoder.config.num_hidden_layers
        is_usual = is_whole and all(abs(scale - 1) < 1e-6 for scale in scales)
        return is_usual and _has_its_bits(decoder.norm)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args or not (_is_step(**kwargs) and self._is_as_written()):
            return self.__wrapped__(*args, **kwargs)
        return self._step(kwargs["input_ids"], kwargs.get("position_ids"), kwargs["past_key_values"])

    def _is_as_written(self) -> bool:
        """Every part is of its class, and nobody looks at what goes through it."""
        decoder, config = self._decoder, self._decoder.config
        if _torch_module._has_any_global_hook() or config.output_hidden_states or config.output_attentions:
            return False
        family, written = _FAMILIES[type(decoder).__name__], sys.modules[type(decoder).__module__]
        layer_class, attention, mlp, norm = (getattr(written, family + part) for part in _PARTS)
        parts = [(decoder._modules["norm"], norm)]
        for layer in decoder._modules["layers"]:
            of_layer = layer._modules
            parts += [
                (layer, layer_class),
                (of_layer["self_attn"], attention),
                (of_layer["mlp"], mlp),
                (of_layer["input_layernorm"], norm),
                (of_layer["post_attention_layernorm"], norm),
            ]
        return all(
            type(part) is cls
            and not (part._forward_hooks or part._forward_pre_hooks)
            and "forward" not in part.__dict__
            for part, cls in parts
        )

    def _step(
        self, token: torch.Tensor, position: torch.Tensor | None, cache: Any
    ) -> BaseModelOutputWithPast:
        modules = self._decoder._modules
        hidden = modules["embed_tokens"](token)
        if position is None:
            position = torch.tensor([[cache.get_seq_length()]])
        cos, sin = (x[:, None] for x in modules["rotary_emb"](hidden, position_ids=position))
        sin = _signed(sin)
        for layer, cached, (inputs, gates) in zip(modules["layers"], cache.layers, self._joined):
            of_layer = layer._modules
            attention, mlp = of_layer["self_attn"], of_layer["mlp"]._modules
            normed = _norm(of_layer["input_layernorm"], hidden)
            products = _products(attention._modules, inputs, _INPUTS, normed)
            attended = _attend(products, attention, cos, sin, cached)
            hidden = hidden + attention._modules["o_proj"](attended)
            normed = _norm(of_layer["post_attention_layernorm"], hidden)
            gate, up = _products(mlp, gates, _GATES, normed).chunk(2, 2)
            hidden = hidden + mlp["down_proj"](mlp["act_fn"](gate) * up)
        return BaseModelOutputWithPast(_norm(modules["norm"], hidden), past_key_values=cache)


def _is_step(
    *,
    input_ids: torch.Tensor | None = None,
    past_key_values: Any = None,
    attention_mask: Any = None,
    position_ids: torch.Tensor | None = None,
    use_cache: bool | None = None,
    cache_position: Any = None,
    **others: Any,
) -> bool:
    """Whether arguments of a decoder are those of one token, and ask for nothing else."""
    if input_ids is None or input_ids.shape[1] != 1 or past_key_values is None:
        return False
    if any(other is not None and other is not False for other in others.values()):
        return False
    if cache_position is not None and position_ids is None:
        return False
    if isinstance(past_key_values, PlacesPass):
        is_ours = position_ids is not None and attention_mask is None and past_key_values.is_step
    else:
        is_ours = all(type(layer) is SparqLayer for layer in past_key_values.layers)
    is_plain = not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    return is_ours and is_plain and not torch.compiler.is_compiling()


def _joined(module: Any, names: Sequence[str]) -> JoinedLinear | None:
    """Of weights of few bits."""
    layers = {name: module._modules[name] for name in names}
    return JoinedLinear(layers) if JoinedLinear.fit(list(layers.values())) else None


def _products(
    modules: Any, joined: JoinedLinear | None, names: Sequence[str], hidden: torch.Tensor
) -> torch.Tensor:
    """What these layers say, one after another along the last axis."""
    if joined is not None and joined.takes(hidden) and joined.stands_for(modules):
        return joined(hidden)
    return torch.cat([modules[name](hidden) for name in names], 2)


def _attend(
    products: torch.Tensor, module: Any, cos: torch.Tensor, sin: torch.Tensor, cached: Any
) -> torch.Tensor:
    """(batch, 1, n_heads * head_dim): attention of one token, which the cache of the layer then holds.
    products: its query, key and value."""
    batch, head_dim = len(products), module.head_dim
    # x * cos + rotate_half(x) * sin: the sign of a half is in `sin`
    heads = products.view(batch, -1, 1, head_dim)  # of queries, keys and values
    n_turned = heads.shape[1] - heads.shape[1] // (module.num_key_value_groups + 2)
    turned, value = heads[:, :n_turned], heads[:, n_turned:].to(torch.float16)
    turned = (turned * cos).add_(turned.roll(head_dim // 2, 3).mul_(sin)).to(torch.float16)
    n_heads = n_turned - value.shape[1]
    attended: torch.Tensor = cached.step(turned[:, :n_heads], turned[:, n_heads:], value)
    return attended.view(batch, 1, -1).to(products.dtype)


def _signed(sin: torch.Tensor) -> torch.Tensor:
    """The sine with the sign that its component of `rotate_half` has."""
    low, high = sin.chunk(2, -1)
    return torch.cat((-low, high), -1)


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """RMSNorm, rounded as the model's own."""
    weight = module._parameters["weight"]
    normed: torch.Tensor = weight * F.rms_norm(hidden, weight.shape, None, module.variance_epsilon)
    return normed


def _has_its_bits(module: Any) -> bool:
    """Whether `_norm` rounds as this one does, with this version of PyTorch."""
    generator = torch.Generator().manual_seed(0)
    weight = module.weight
    rows = torch.randn(64, 1, len(weight), generator=generator).to(weight.dtype)
    with torch.no_grad():
        return torch.equal(_norm(module, rows), module(rows))
