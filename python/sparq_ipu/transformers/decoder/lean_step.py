# SPDX-License-Identifier: Apache-2.0
"""Steps of one token through decoders of the kind of Llama: fewer operations than transformers takes, and the
same bits.

Decoding a small model is bound by the number of operations, not by their size. transformers takes some 60 in
each layer beside the products, and calls a dozen modules. Here norms are written out, and one call leads from
the products of queries, keys and values to the output of attention: some 10 operations. Products,
embeddings and the activation are the model's own modules, and every rounding is the model's. Layers of few
bits that have one input are one product, and where all layers have few bits, a step is one call (module
`few_bits_step`).

The model's own forward pass runs instead with gradients, with torch.compile, and where a class, a hook or an
argument differs from the original. This is checked at each step.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Sequence

import torch
import torch.nn.functional as F
import torch.nn.modules.module
from transformers.modeling_outputs import BaseModelOutputWithPast

from sparq_ipu.transformers.cache_name import cache_in, with_cache
from sparq_ipu.transformers.decoder.few_bits import JoinedLinear
from sparq_ipu.transformers.decoder.few_bits_step import SILU, FewBitsStep
from sparq_ipu.transformers.decoder.rotary import Rotary
from sparq_ipu.transformers.decoder.step_layer import StepLayer
from sparq_ipu.transformers.decoder.unchanged import looks, replaces_forward

_torch_module: Any = torch.nn.modules.module  # partly typed

#: decoders that this computes, by the name of their class: what the names of its parts begin with
_FAMILIES = {"LlamaModel": "Llama", "Qwen2Model": "Qwen2"}
#: the parts that are written out here
_PARTS = ("DecoderLayer", "Attention", "MLP", "RMSNorm")


class _Linears:
    """Linear layers of one input: one product where they have few bits.

    Args:
        module: that has them, by these names.
    """

    def __init__(self, module: Any, *names: str):
        self._names, modules = names, module._modules
        fit = JoinedLinear.fit([modules[name] for name in names])
        #: all as one product
        self.joined = JoinedLinear(modules, names) if fit else None

    def each(self, modules: Any, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """The output of each; all have the same width.

        Args:
            modules: of that module, now.
            rows: (batch, in_features).
        """
        joined = self._product(modules, rows)
        return self._apart(modules, rows) if joined is None else joined.chunk(len(self._names), 1)

    def one(self, modules: Any, rows: torch.Tensor) -> torch.Tensor:
        """Their outputs, one after another, (batch, sum of their widths)."""
        joined = self._product(modules, rows)
        if joined is not None:
            return joined
        said = self._apart(modules, rows)
        return torch.cat(said, 1) if len(said) > 1 else said[0]

    def _product(self, modules: Any, rows: torch.Tensor) -> torch.Tensor | None:
        """The outputs of all together, or None where they are not joined or have been replaced."""
        joined = self.joined
        if joined is None or not joined.takes(rows) or modules is not joined.modules:
            return None
        return joined(rows) if joined.unchanged() else None

    def _apart(self, modules: Any, rows: torch.Tensor) -> list[torch.Tensor]:
        return [modules[name](rows[:, None])[:, 0] for name in self._names]


class _Layer:
    """The linear layers of a decoder layer."""

    def __init__(self, layer: Any):
        self.inputs = _Linears(layer.self_attn, "q_proj", "k_proj", "v_proj")
        self.output = _Linears(layer.self_attn, "o_proj")
        self.gates = _Linears(layer.mlp, "gate_proj", "up_proj")
        self.down = _Linears(layer.mlp, "down_proj")

    @property
    def joined(self) -> list[JoinedLinear | None]:
        """Each as one product, None where it is not."""
        return [of.joined for of in (self.inputs, self.output, self.gates, self.down)]


class LeanStep:
    """The forward pass of a decoder that `fits`: a step of one token, and the decoder's own for all else.

    Args:
        decoder: this becomes its `forward`.
    """

    def __init__(self, decoder: Any):
        #: the decoder's own; `inspect` finds its signature by this name
        self.__wrapped__: Callable[..., Any] = decoder.forward
        self._decoder = decoder
        self._prepare()

    def _prepare(self) -> None:
        self._layers = [_Layer(layer) for layer in self._decoder.layers]
        #: where all of these have few bits; not known before the first step
        self._few_bits: FewBitsStep | None = None
        self._is_known = False

    def __getstate__(self) -> dict[str, Any]:
        """The decoder of a copy may not be whole yet: the copy prepares for it at its first step."""
        return dict(vars(self), _layers=[], _few_bits=None, _is_known=False)

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
        if args or not _is_step(**kwargs) or self._is_looked_at():
            return self.__wrapped__(*args, **kwargs)
        few_bits = self._few_bits
        if few_bits is None or not few_bits.stands():
            if not self._is_as_written():
                return self.__wrapped__(*args, **kwargs)
            few_bits = None if self._is_known else self.find_few_bits()
        return self._step(few_bits, kwargs["input_ids"], kwargs.get("position_ids"), cache_in(kwargs))

    def find_few_bits(self) -> FewBitsStep | None:
        """The step in one call, for an unchanged decoder with layers of few bits; None:
        PyTorch computes it."""
        if not self._is_known:
            if not self._layers:
                self._prepare()
            self._is_known = True
            self._few_bits = FewBitsStep.of(self._decoder, [layer.joined for layer in self._layers])
        return self._few_bits if self._few_bits is not None and self._few_bits.stands() else None

    def _is_looked_at(self) -> bool:
        """Somebody wants to see what goes through every part."""
        config = self._decoder.config
        wants = config.output_hidden_states or config.output_attentions
        return bool(wants or _torch_module._has_any_global_hook())

    def _is_as_written(self) -> bool:
        """Every part is of its class, and nobody looks at what goes through it."""
        decoder = self._decoder
        family, written = _FAMILIES[type(decoder).__name__], sys.modules[type(decoder).__module__]
        layer_class, attention, mlp, norm = (getattr(written, family + part) for part in _PARTS)
        modules = decoder._modules
        if not _is_plain(modules["norm"], norm):
            return False
        for layer in modules["layers"]._modules.values():
            of_layer = layer._modules
            if not (
                _is_plain(layer, layer_class)
                and _is_plain(of_layer["self_attn"], attention)
                and _is_plain(of_layer["mlp"], mlp)
                and _is_plain(of_layer["input_layernorm"], norm)
                and _is_plain(of_layer["post_attention_layernorm"], norm)
            ):
                return False
        return True

    def _step(
        self,
        few_bits: FewBitsStep | None,
        token: torch.Tensor,
        position: torch.Tensor | None,
        cache: Any,
    ) -> BaseModelOutputWithPast:
        modules = self._decoder._modules
        embedded = modules["embed_tokens"](token)
        if position is None:
            position = torch.tensor([[cache.get_seq_length()]])
        cos, sin = modules["rotary_emb"](embedded, position_ids=position)
        rotary = Rotary(cos[:, 0], _signed(sin[:, 0]), self._decoder.config.num_attention_heads)
        hidden = embedded[:, 0]
        normed = None if few_bits is None else few_bits(hidden, cache.layers, rotary)
        if normed is None:
            normed = self._by_torch(hidden, cache, rotary)
        return BaseModelOutputWithPast(normed[:, None], **with_cache(cache))

    def _by_torch(self, hidden: torch.Tensor, cache: Any, rotary: Rotary) -> torch.Tensor:
        modules = self._decoder._modules
        for layer, cached, linears in zip(modules["layers"]._modules.values(), cache.layers, self._layers):
            of_layer = layer._modules
            attention, mlp = of_layer["self_attn"]._modules, of_layer["mlp"]._modules
            products = linears.inputs.one(attention, _norm(of_layer["input_layernorm"], hidden))
            hidden = hidden + linears.output.one(attention, cached.step(products, rotary))
            normed = _norm(of_layer["post_attention_layernorm"], hidden)
            gate, up = linears.gates.each(mlp, normed)
            hidden = hidden + linears.down.one(mlp, _activated(mlp["act_fn"], gate) * up)
        return _norm(modules["norm"], hidden)


def _is_plain(part: Any, cls: type) -> bool:
    """Whether it is of this class itself, and nobody looks at what goes through it."""
    own = part.__dict__
    return (
        type(part) is cls
        and not (looks(own["_forward_hooks"]) or own["_forward_pre_hooks"])
        and not replaces_forward(part)
    )


def _is_step(
    *,
    input_ids: torch.Tensor | None = None,
    cache: Any = None,
    past_key_values: Any = None,
    attention_mask: Any = None,
    position_ids: torch.Tensor | None = None,
    use_cache: bool | None = None,
    cache_position: Any = None,
    **others: Any,
) -> bool:
    """Whether arguments of a decoder are those of one token, and ask for nothing else."""
    cache = past_key_values if cache is None else cache
    if input_ids is None or input_ids.shape[1] != 1 or cache is None:
        return False
    if any(other is not None and other is not False for other in others.values()):
        return False
    if cache_position is not None and position_ids is None:
        return False
    for layer in cache.layers:
        if not (isinstance(layer, StepLayer) and layer.takes_step(position_ids, attention_mask)):
            return False
    is_plain = not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    return is_plain and not torch.compiler.is_compiling()


def _activated(module: Any, gate: torch.Tensor) -> torch.Tensor:
    activated: torch.Tensor = F.silu(gate) if _is_plain(module, SILU) else module(gate[:, None])[:, 0]
    return activated


def _signed(sin: torch.Tensor) -> torch.Tensor:
    """The sine with the sign that its component of `rotate_half` has."""
    low, high = sin.chunk(2, -1)
    return torch.cat((-low, high), -1)


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """RMSNorm, rounded as the model's own."""
    weight = module._parameters["weight"]
    normed: torch.Tensor = weight * torch.rms_norm(hidden, weight.shape, None, module.variance_epsilon)
    return normed


def _has_its_bits(module: Any) -> bool:
    """Whether `_norm` rounds as this one does, with this version of PyTorch."""
    generator = torch.Generator().manual_seed(0)
    weight = module.weight
    rows = torch.randn(64, 1, len(weight), generator=generator).to(weight.dtype)
    with torch.no_grad():
        return torch.equal(_norm(module, rows), module(rows))
