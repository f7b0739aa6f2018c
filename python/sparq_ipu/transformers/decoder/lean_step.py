# SPDX-License-Identifier: Apache-2.0
"""Forward passes of the decoders of `families`: fewer operations than transformers takes, and the same bits.

Decoding a small model is bound by the number of operations, not by their size. transformers takes some 60 in
each layer beside the products, and calls a dozen modules. Here norms are written out, and one call leads from
the products of queries, keys and values to the output of attention: some 10 operations. Products,
embeddings and the activation are the model's own modules, and every rounding is the model's. Where all layers
have few bits, a step is one call (module `few_bits_step`).

The model's own forward pass runs instead with gradients, with torch.compile, and where a class, a hook or an
argument differs from the original. This is checked at each step. `lean_step_of` checks once that the bits are
the same.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.nn.functional as F
import torch.nn.modules.module
from transformers.modeling_outputs import BaseModelOutputWithPast

from sparq_ipu.transformers.attention import has_own_prompts
from sparq_ipu.transformers.cache.sparq_cache import SparqCache, sparq_layers
from sparq_ipu.transformers.decoder.families import Family, family_of
from sparq_ipu.transformers.decoder.few_bits import JoinedLinear
from sparq_ipu.transformers.decoder.few_bits_step import SILU, FewBitsStep
from sparq_ipu.transformers.decoder.rotary import Rotary, of_layer_among
from sparq_ipu.transformers.decoder.step_layer import StepLayer, scores_factor
from sparq_ipu.transformers.decoder.unchanged import Unchanged, looks

_torch_module: Any = torch.nn.modules.module  # partly typed
#: tokens before that of the step, in a trial
_N_HELD = 3


class _Layer:
    """The linear layers of a decoder layer, and its attributes."""

    def __init__(self, layer: Any, family: Family, rotary: int):
        #: number of its rotary embedding, -1 without one
        self.rotary = rotary
        attention, mlp = layer.self_attn._modules, layer.mlp._modules
        inputs = (
            (attention, family.inputs),
            (attention, ("o_proj",)),
            (mlp, family.gates),
            (mlp, ("down_proj",)),
        )
        #: those of one input as one product, None where they do not fit
        self.joined = [
            JoinedLinear(modules, names) if JoinedLinear.fit([modules[name] for name in names]) else None
            for modules, names in inputs
        ]


class LeanStep:
    """The forward pass of a decoder, which it replaces: of one token, and of prompts where all layers have
    few bits. The decoder's own for all else."""

    def __init__(self, decoder: Any, family: Family):
        #: the decoder's own; `inspect` finds its signature by this name
        self.__wrapped__: Callable[..., Any] = decoder.forward
        self._decoder, self._family = decoder, family
        self._classes = [type(holder[name]) for holder, name in family.written_out(decoder)]
        self._prepare()

    def _prepare(self) -> None:
        decoder, family = self._decoder, self._family
        parts = list(family.written_out(decoder))
        if [type(holder[name]) for holder, name in parts] != self._classes:
            return  # others were put into a copy
        self._layers = [
            _Layer(layer, family, family.rotary_of(decoder.config, index, layer.self_attn))
            for index, layer in enumerate(decoder.layers)
        ]
        self._as_written = Unchanged()
        for holder, name in parts:
            self._as_written.watch_module(holder, name)
        attention = decoder.layers[0].self_attn
        self._head_dim, self._scaling = int(attention.head_dim), float(attention.scaling)
        #: where all layers have few bits, or why this is left to PyTorch; not known before the first step
        self._few_bits: FewBitsStep | str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The decoder of a copy may not be whole yet: the copy prepares for it at its first step."""
        return dict(vars(self), _layers=[], _as_written=None, _few_bits=None)

    def __call__(self, *args: Any, last_only: bool = False, **kwargs: Any) -> Any:
        """As the decoder. last_only: in a prompt, the output of tokens before the last may be anything."""
        is_step = None if args or self._is_looked_at() else _is_step(**kwargs)
        if is_step is None:
            return self.__wrapped__(*args, **kwargs)
        few_bits, tokens = self.find_few_bits(is_step), kwargs["input_ids"]
        if few_bits is None and (tokens.shape[1] > 1 or not (self._layers and self._as_written())):
            return self.__wrapped__(*args, **kwargs)
        given = tokens, kwargs.get("position_ids"), kwargs.get("cache"), is_step, last_only
        output = self.step(few_bits, *given)
        return self.__wrapped__(*args, **kwargs) if output is None else output

    def find_few_bits(self, is_step: bool = True) -> FewBitsStep | None:
        """The step in one call, or the layers of a prompt, for an unchanged decoder with layers of few bits;
        None: PyTorch computes it. Prompts: where their attention is `prompt_attention`."""
        if not is_step and not has_own_prompts(self._decoder.config._attn_implementation):
            return None
        if not self._layers:
            self._prepare()
        if self._few_bits is None and self._layers:
            joined = [layer.joined for layer in self._layers]
            rotary = [layer.rotary for layer in self._layers]
            self._few_bits = FewBitsStep.of(self._decoder, self._family, joined, rotary, self._as_written)
        few_bits = self._few_bits
        return few_bits if isinstance(few_bits, FewBitsStep) and few_bits.stands() else None

    def __str__(self) -> str:
        """How steps are computed, in a line."""
        if self.find_few_bits() is not None:
            return "one call of the CPU kernels"
        return f"few PyTorch operations, not one call of the CPU kernels ({self._few_bits})"

    def _is_looked_at(self) -> bool:
        """Somebody wants to see what goes through every part."""
        config = self._decoder.config
        wants = config.output_hidden_states or config.output_attentions
        return bool(wants or _torch_module._has_any_global_hook())

    def step(
        self,
        few_bits: FewBitsStep | None,
        tokens: torch.Tensor,
        positions: torch.Tensor | None,
        cache: Any,
        is_step: bool = True,
        last_only: bool = False,
    ) -> BaseModelOutputWithPast | None:
        """The pass of a decoder that is as it was written. None, and nothing has happened, where the kernels
        do not take several tokens. positions: of the tokens, or one for all; None: the next ones."""
        decoder, family = self._decoder, self._family
        modules = decoder._modules
        n_tokens = tokens.shape[1]
        embedded = modules["embed_tokens"](tokens)
        if family.embedding_multiplier is not None:
            embedded = embedded * getattr(decoder, family.embedding_multiplier)
        if positions is None:
            positions = torch.arange(n_tokens)[None] + cache.get_seq_length()
        heads = decoder.config.num_attention_heads, self._head_dim
        factor = scores_factor(self._scaling, self._head_dim)
        rotaries = []
        for name in family.rotary_types(decoder.config):
            kind = {"layer_type": name} if name else {}
            angles = modules["rotary_emb"](embedded, position_ids=positions, **kind)
            cos, sin = (x.flatten(0, 1) for x in angles)
            rotaries.append(Rotary(cos, _signed(sin), *heads, factor, family.has_wide_rotary))
        normed = None
        if few_bits is not None:
            normed = few_bits(embedded, cache.layers, rotaries, self._scaling, is_step, last_only)
        if normed is None:
            if n_tokens > 1:
                return None
            normed = self._by_torch(embedded[:, 0], cache, rotaries)[:, None]
        return BaseModelOutputWithPast(normed, cache=cache)

    def _by_torch(self, hidden: torch.Tensor, cache: Any, rotaries: Sequence[Rotary]) -> torch.Tensor:
        modules, family = self._decoder._modules, self._family
        before_attention, after_attention, before_mlp, after_mlp = family.norms
        for layer, cached, linears in zip(modules["layers"]._modules.values(), cache.layers, self._layers):
            of_layer = layer._modules
            attention, mlp = of_layer["self_attn"]._modules, of_layer["mlp"]._modules

            def normed(name: str | None, x: torch.Tensor, of_layer: Any = of_layer) -> torch.Tensor:
                return x if name is None else family.norm(of_layer[name], x)

            def added(x: torch.Tensor, layer: Any = layer) -> torch.Tensor:
                name = family.residual_multiplier
                return x if name is None else x * getattr(layer, name)

            products = torch.cat(_outputs(attention, family.inputs, normed(before_attention, hidden)), 1)
            if family.head_norms:
                products = self._head_normed(attention, products)
            attended = cached.step(products, of_layer_among(rotaries, linears.rotary))
            (output,) = _outputs(attention, ["o_proj"], attended)
            hidden = hidden + added(normed(after_attention, output))
            gates = _outputs(mlp, family.gates, normed(before_mlp, hidden))
            gate, up = gates if len(gates) == 2 else gates[0].chunk(2, 1)
            (output,) = _outputs(mlp, ["down_proj"], _activated(mlp[family.activation], gate) * up)
            hidden = hidden + added(normed(after_mlp, output))
        return family.norm(modules["norm"], hidden)

    def _head_normed(self, attention: Any, products: torch.Tensor) -> torch.Tensor:
        """Products with their queries and keys normed."""
        n_queries = self._decoder.config.num_attention_heads * self._head_dim
        n_keys = (products.shape[1] - n_queries) // 2
        parts = list(torch.split_with_sizes(products, [n_queries, n_keys, n_keys], 1))
        for index, name in enumerate(self._family.head_norms):
            norm = attention[name]
            rows = parts[index].view(len(products), -1, len(norm._parameters["weight"]))
            parts[index] = self._family.norm(norm, rows).flatten(1)
        return torch.cat(parts, 1)


def lean_step_of(decoder: Any) -> LeanStep | str:
    """The lean step of a decoder, or why it has none: it is not described, or its bits are others in a trial.
    decoder: of a model whose attention is SparQ attention by now."""
    family = family_of(decoder)
    if isinstance(family, str):
        return family
    lean = LeanStep(decoder, family)
    n = decoder.config.vocab_size
    tokens = torch.arange(1, _N_HELD + 2)[None] * n // (_N_HELD + 2)
    cache = SparqCache(decoder.config)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            twin = SparqCache(decoder.config)
            for part, is_step in ((tokens[:, :-1], False), (tokens[:, -1:], True)):
                for of in (cache, twin):
                    _arm(of)
                own = lean.__wrapped__(input_ids=part, cache=cache, use_cache=True)
                # not by a call, which leaves to the model what somebody looks at
                mine: Any = lean.step(lean.find_few_bits(is_step), part, None, twin, is_step)
                if mine is None:
                    mine = lean.__wrapped__(input_ids=part, cache=twin, use_cache=True)
                if not torch.equal(own.last_hidden_state, mine.last_hidden_state):
                    return "its own forward pass has other bits in a trial"
    except ValueError as error:
        return f"a trial ended with: {error}"
    return lean


def _arm(cache: SparqCache) -> None:
    for layer in sparq_layers(cache):
        layer.arm(None, None)


def _is_step(
    *,
    input_ids: torch.Tensor | None = None,
    cache: Any = None,
    attention_mask: Any = None,
    position_ids: torch.Tensor | None = None,
    use_cache: bool | None = None,
    **others: Any,
) -> bool | None:
    """Whether arguments of a decoder are those of a step, of one token or of several of one text; False: of
    a prompt. None where they ask for more than what follows from the tokens."""
    if input_ids is None or cache is None:
        return None
    if any(other is not None and other is not False for other in others.values()):
        return None
    batch, n_tokens = input_ids.shape
    layers = cache.layers
    if not all(isinstance(layer, StepLayer) for layer in layers):
        return None
    is_step = (n_tokens == 1 or batch == 1) and all(
        layer.takes_step(n_tokens, position_ids, attention_mask) for layer in layers
    )
    if not is_step and (
        n_tokens == 1 or not all(layer.takes_prompt(position_ids, attention_mask) for layer in layers)
    ):
        return None
    is_plain = not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    return is_step if is_plain and not torch.compiler.is_compiling() else None


def _outputs(modules: Any, names: Sequence[str], rows: torch.Tensor) -> list[torch.Tensor]:
    """Of linear layers, (batch, out_features) each."""
    return [modules[name](rows[:, None])[:, 0] for name in names]


def _activated(module: Any, gate: torch.Tensor) -> torch.Tensor:
    own = module.__dict__
    is_called = type(module) is not SILU or "forward" in own
    if is_called or looks(own["_forward_hooks"]) or own["_forward_pre_hooks"]:
        activated: torch.Tensor = module(gate[:, None])[:, 0]
        return activated
    return F.silu(gate)


def _signed(sin: torch.Tensor) -> torch.Tensor:
    """The sine with the sign that its component of `rotate_half` has."""
    low, high = sin.chunk(2, -1)
    return torch.cat((-low, high), -1)
