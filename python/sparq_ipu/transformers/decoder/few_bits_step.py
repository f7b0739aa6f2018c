# SPDX-License-Identifier: Apache-2.0
"""Steps of one token through decoders whose linear layers have few bits: one call of the CPU kernels, and the
same bits.

Between the output of attention and the queries of the next layer are four products, two norms, an activation
and two sums. In a small model these operations take PyTorch longer than reading their weights. So the kernels
compute them all, and attention too where the cache is theirs. Where it is elsewhere, one call leads from the
attention of a layer to that of the next.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from sparq_ipu.transformers.decoder.few_bits import MOST_ROWS, JoinedLinear
from sparq_ipu.transformers.decoder.rotary import Rotary
from sparq_ipu.transformers.decoder.unchanged import Unchanged

try:
    from sparq_ipu import _cpu
except ImportError:  # not built
    _cpu = None  # type: ignore[assignment]

#: the class of the usual activation: its name differs with the version
SILU = type(ACT2FN["silu"])
#: linear layers of a decoder layer: inputs of attention, its output, gates, down
Joined = Sequence[JoinedLinear]
#: numbers of float32 that a vector of PyTorch may hold
_LANES = (8, 16, 4)


class FewBitsStep:
    """The layers of a decoder of the kind of Llama.

    Args:
        decoder: as `lean_step.LeanStep` computes it.
        layers: its linear layers.
        lanes: see `_lanes`.
    """

    def __init__(self, decoder: Any, layers: Sequence[Joined], lanes: int):
        #: False where the decoder is not what it was
        self.stands = _watch(decoder, layers)
        self._hidden = decoder.norm.weight.shape[0]
        #: tensors whose addresses the kernels keep
        self._kept = layers, _activation_table(), [norm.weight.data for norm in _norms(decoder)]
        #: widths of the inputs of each layer's attention, and of the output of the last layer
        self._widths = [*(of_layer[0].out_features for of_layer in layers), self._hidden]
        #: the calls of a step, which a clock may stand around
        self.kernels = _cpu.DecoderStep(
            [norm.weight.data_ptr() for norm in _norms(decoder)],
            [joined.addresses for of_layer in layers for joined in of_layer],
            decoder.norm.variance_epsilon,
            self._hidden,
            lanes,
            _activation_table().data_ptr(),
        )

    @classmethod
    def of(cls, decoder: Any, layers: Sequence[Sequence[JoinedLinear | None]]) -> FewBitsStep | None:
        """None where it is left to PyTorch: some weights have 16 bits, an activation or a norm is another
        one, or this version of PyTorch rounds norms differently."""
        joined = [[one for one in of_layer if one is not None] for of_layer in layers]
        if _cpu is None or any(len(some) < len(every) for some, every in zip(joined, layers)):
            return None
        for layer, of_layer in zip(decoder.layers, joined):
            inside = (layer.self_attn,) * 2 + (layer.mlp,) * 2
            if any(one.modules is not module._modules for one, module in zip(of_layer, inside)):
                return None  # others were put there since
        if any(type(layer.mlp.act_fn) is not SILU for layer in decoder.layers):
            return None
        kinds = {(norm.weight.dtype, norm.variance_epsilon) for norm in _norms(decoder)}
        if kinds != {(torch.bfloat16, decoder.norm.variance_epsilon)}:
            return None
        lanes = _lanes(decoder.norm)
        return None if lanes is None else cls(decoder, joined, lanes)

    def __call__(self, embedded: torch.Tensor, layers: Sequence[Any], rotary: Rotary) -> torch.Tensor | None:
        """The normed output of the last layer, (batch, hidden_size); None, and nothing has happened, for rows
        that the kernels do not take.

        Args:
            embedded: (batch, hidden_size), what the first layer gets.
            layers: of the cache.
        """
        n_rows = len(embedded)
        if embedded.dtype is not torch.bfloat16 or n_rows > MOST_ROWS:
            return None
        step, n_threads = self.kernels, torch.get_num_threads()
        is_taken = rotary.dtype is torch.bfloat16
        attention = [layer.attention_of_step() if is_taken else None for layer in layers]
        hidden = embedded.clone(memory_format=torch.contiguous_format)
        memory = hidden.new_empty(n_rows * max(self._widths))
        at = n_rows, hidden.data_ptr(), memory.data_ptr(), n_threads
        step.begin(*at)
        index = 0
        while True:
            begin, lengths = index, []  # type: tuple[int, list[list[int]]]
            try:
                index, *_ = step.run(begin, attention, *rotary.for_kernels, *at, lengths)
            finally:
                for layer, of_rows in zip(layers[begin:], lengths):
                    layer.has_attended(of_rows)
            products = memory[: n_rows * self._widths[index]].view(n_rows, -1)
            if index == len(layers):
                return products
            attended = layers[index].step(products, rotary).contiguous()
            step.next(index, n_rows, attended.data_ptr(), *at[1:])
            index += 1


def _watch(decoder: Any, layers: Sequence[Joined]) -> Unchanged:
    watched = Unchanged()

    def watch_norm(holder: Any, name: str) -> None:
        norm = watched.watch_module(holder, name)
        watched.watch_value(norm._parameters, "weight")
        watched.watch_value(norm.__dict__, "variance_epsilon")

    watch_norm(decoder._modules, "norm")
    every = watched.watch_module(decoder._modules, "layers")._modules
    for name, of_layer in zip(every, layers):
        layer = watched.watch_module(every, name)._modules
        watched.watch_module(layer, "self_attn")
        mlp: Any = watched.watch_module(layer, "mlp")
        watched.watch_module(mlp._modules, "act_fn")
        for norm in ("input_layernorm", "post_attention_layernorm"):
            watch_norm(layer, norm)
        for joined in of_layer:
            watched.include(joined.unchanged)
    return watched


def _norms(decoder: Any) -> list[Any]:
    """In the order that the kernels take them."""
    norms = []
    for layer in decoder.layers:
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
    return [*norms, decoder.norm]


@functools.lru_cache(maxsize=None)
def _activation_table() -> torch.Tensor:
    """SiLU of every number of bfloat16, in the order of their bits: as PyTorch rounds it."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    return F.silu(bits.view(torch.bfloat16))


def _lanes(norm: Any) -> int | None:
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
                numbers = weight.data_ptr(), norm.variance_epsilon, n, lanes
                _cpu.rms_norm(*numbers, row.data_ptr(), to.data_ptr())
            return lanes if torch.equal(ours, normed) else None
    return None
