# SPDX-License-Identifier: Apache-2.0
"""Forward passes of decoders whose linear layers have few bits, by the CPU kernels with the same bits.

Between the output of attention and the queries of the next layer are four products, two norms or more, an
activation and two sums. PyTorch takes longer for these operations than for reading the weights of a small
model in a step, and about as long as for the products of a prompt. So the kernels compute them all. A step of
one token in each row is one call where the cache is theirs too. Else, and for prompts, one call leads from
the attention of a layer to that of the next.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from sparq_ipu.transformers.decoder.families import Family
from sparq_ipu.transformers.decoder.few_bits import JoinedLinear
from sparq_ipu.transformers.decoder.rotary import Rotary, of_layer_among
from sparq_ipu.transformers.decoder.unchanged import Unchanged

try:
    from sparq_ipu import _cpu
except ImportError:  # not built
    _cpu = None  # type: ignore[assignment]

#: the class of the usual activation: its name differs with the version
SILU = type(ACT2FN["silu"])
#: activations of each number by itself
_ACTIVATIONS = (SILU, *(type(ACT2FN[name]) for name in ("gelu", "gelu_pytorch_tanh")))
#: linear layers of a decoder layer: inputs of attention, its output, gates, down
Joined = Sequence[JoinedLinear]
#: numbers of float32 that a vector of PyTorch may hold
_LANES = (8, 16, 4)


class FewBitsStep:
    """The layers of a decoder, as `lean_step.LeanStep` computes it.

    Args:
        layers: its linear layers.
        rotary: of each layer, the number of its rotary embedding, -1 without one.
        lanes: see `_lanes`.
        as_written: watches the modules that are written out.
    """

    def __init__(
        self,
        decoder: Any,
        family: Family,
        layers: Sequence[Joined],
        rotary: Sequence[int],
        lanes: int,
        as_written: Unchanged,
    ):
        #: False where the decoder is not what it was
        self.stands = _watch(decoder, family, layers, as_written)
        self._hidden = decoder.norm.weight.shape[0]
        self._rotary = rotary
        table = _activation_table(getattr(decoder.layers[0].mlp, family.activation))
        #: tensors whose addresses the kernels keep
        self._kept = layers, table, [norm.weight.data for norm in family.each_norm(decoder)]
        #: widths of the inputs of each layer's attention, and of the output of the last layer
        self._widths = [*(of_layer[0].out_features for of_layer in layers), self._hidden]
        n_queries, n_outputs = layers[0][1].in_features, layers[0][0].out_features
        heads: list[int] = []
        for name, width in zip(family.head_norms, (n_queries, (n_outputs - n_queries) // 2)):
            of_norm = getattr(decoder.layers[0].self_attn, name).weight.shape[0]
            heads += [width // of_norm, of_norm]
        multiplier = family.residual_multiplier
        #: the calls of a step
        self.kernels = _cpu.DecoderStep(
            [
                (_norms_at(layer, family), [one.addresses for one in of_layer], number)
                for layer, of_layer, number in zip(decoder.layers, layers, rotary)
            ],
            decoder.norm.weight.data_ptr(),
            _norm_at(decoder.norm, family, lanes),
            heads or [0] * 4,
            self._hidden,
            1.0 if multiplier is None else getattr(decoder.layers[0], multiplier),
            table.data_ptr(),
        )

    @classmethod
    def of(
        cls,
        decoder: Any,
        family: Family,
        layers: Sequence[Sequence[JoinedLinear | None]],
        rotary: Sequence[int],
        as_written: Unchanged,
    ) -> FewBitsStep | str:
        """Or why it is left to PyTorch."""
        joined = [[one for one in of_layer if one is not None] for of_layer in layers]
        if _cpu is None:
            return "the CPU kernels are not built"
        if any(len(some) < len(every) for some, every in zip(joined, layers)):
            return "linear layers have weights of 16 bits, or outputs that are no multiple of 64"
        for layer, of_layer in zip(decoder.layers, joined):
            inside = (layer.self_attn,) * 2 + (layer.mlp,) * 2
            if any(one.modules is not module._modules for one, module in zip(of_layer, inside)):
                return "linear layers were replaced"
        kinds = {type(getattr(layer.mlp, family.activation)) for layer in decoder.layers}
        if len(kinds) > 1 or not kinds.issubset(_ACTIVATIONS):
            return f"the activation is {' and '.join(sorted(kind.__name__ for kind in kinds))}"
        norms = list(family.each_norm(decoder))
        if len({(norm.weight.dtype, getattr(norm, family.epsilon)) for norm in norms}) > 1:
            return "its norms differ"
        if decoder.norm.weight.dtype is not torch.bfloat16:
            return f"its norms have {decoder.norm.weight.dtype}"
        sizes = {norm.weight.shape: norm for norm in norms}
        lanes = {_lanes(norm, family) for norm in sizes.values()}
        found = lanes.pop() if len(lanes) == 1 else None
        if found is None:
            return "this PyTorch rounds norms differently"
        return cls(decoder, family, joined, rotary, found, as_written)

    def __call__(
        self,
        embedded: torch.Tensor,
        layers: Sequence[Any],
        rotaries: Sequence[Rotary],
        scaling: float,
        is_step: bool,
        last_only: bool = False,
    ) -> torch.Tensor | None:
        """The normed output of the last layer, (batch, n_tokens, hidden_size). None, and nothing has
        happened, where the kernels do not take it.

        Args:
            embedded: (batch, n_tokens, hidden_size), what the first layer gets.
            layers: of the cache.
            rotaries: by number.
            scaling: of the scores.
            is_step: tokens come by `step`, one of each row or several of one text; else by `read`.
            last_only: of a prompt; the last layer then computes the last token of each row, and the output of
                the others is 0.
        """
        batch, n_tokens, _ = embedded.shape
        n_rows, is_taken = batch * n_tokens, all(rotary.is_for(torch.bfloat16) for rotary in rotaries)
        if embedded.dtype is not torch.bfloat16 or not (is_step or is_taken):
            return None
        step, n_threads = self.kernels, torch.get_num_threads()
        hidden = embedded.clone(memory_format=torch.contiguous_format)
        memory = hidden.new_empty(n_rows * max(self._widths))
        turning = [rotary.for_kernels for rotary in rotaries]
        at = n_rows, hidden.data_ptr(), memory.data_ptr(), n_threads
        attention = [layer.waves(n_rows) if is_step and is_taken else None for layer in layers]
        step.begin(*at)
        index = 0
        while True:
            begin, lengths = index, []  # type: tuple[int, list[list[int]]]
            try:
                if is_step:
                    index = step.run(begin, attention, turning, *at, lengths)
            finally:
                for layer, of_rows in zip(layers[begin:], lengths):
                    layer.has_attended(of_rows)
            products = memory[: n_rows * self._widths[index]].view(n_rows, -1)
            if index == len(layers):
                normed = products.view(batch, -1, self._hidden)
                n_before = n_tokens - normed.shape[1]
                return F.pad(normed, (0, 0, n_before, 0)) if n_before else normed
            rotary = of_layer_among(rotaries, self._rotary[index])
            if is_step:
                attended = layers[index].step(products, rotary)
            else:
                step.turn(index, rotary.for_kernels, n_rows, memory.data_ptr(), n_threads)
                is_enough = last_only and index + 1 == len(layers)
                heads = rotary.heads(products.view(batch, n_tokens, -1))
                attended = layers[index].read(*heads, scaling, is_enough)
                if is_enough:
                    attended, hidden, n_rows = attended[:, -1:], hidden[:, -1:].contiguous(), batch
            attended = attended.contiguous()
            step.next(index, n_rows, attended.data_ptr(), hidden.data_ptr(), *at[2:])
            index += 1


def _watch(decoder: Any, family: Family, layers: Sequence[Joined], as_written: Unchanged) -> Unchanged:
    watched = Unchanged()
    watched.include(as_written)
    for norm in family.each_norm(decoder):
        watched.watch_value(norm._parameters, "weight")
        watched.watch_value(norm.__dict__, family.epsilon)
    for layer, of_layer in zip(decoder.layers, layers):
        watched.watch_module(layer.mlp._modules, family.activation)
        for joined in of_layer:
            watched.include(joined.unchanged)
    return watched


def _norms_at(layer: Any, family: Family) -> list[int]:
    """Addresses of the weights of norms, in the order that the kernels take them; 0: none."""
    first, *others = (name and getattr(layer, name) for name in family.norms)
    heads = [getattr(layer.self_attn, name) for name in family.head_norms] or [None] * 2
    return [0 if norm is None else norm.weight.data_ptr() for norm in (first, *heads, *others)]


def _norm_at(norm: Any, family: Family, lanes: int) -> tuple[float, int, float, bool]:
    """As the kernels take it."""
    return getattr(norm, family.epsilon), lanes, family.norm_offset, family.norm_rounds_twice


def _activation_table(activation: Any) -> torch.Tensor:
    """Of every number of bfloat16, in the order of their bits: as PyTorch rounds it."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    with torch.no_grad():
        table: torch.Tensor = type(activation).forward(activation, bits.view(torch.bfloat16))
    return table.contiguous()


def _lanes(norm: Any, family: Family) -> int | None:
    """With how many lanes the kernels add up a row as PyTorch does, and then have the bits of this norm."""
    weight = norm.weight.detach()
    n = weight.shape[0]
    rows = torch.randn(64, n, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.no_grad():
        means, normed = rows.float().pow(2).mean(-1).tolist(), norm(rows)
    for lanes in _LANES:
        if [_cpu.mean_of_squares(n, lanes, row.data_ptr()) for row in rows] == means:
            ours = torch.empty_like(rows)
            for row, to in zip(rows, ours):
                given = _norm_at(norm, family, lanes), weight.data_ptr(), n
                _cpu.rms_norm(*given, row.data_ptr(), to.data_ptr())
            return lanes if torch.equal(ours, normed) else None
    return None
