# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose weights have 8 bits or fewer, through the CPU kernels.

A step reads every weight for each token. Of 4 bits it reads about a third of the bytes of 16.

4 bits   a scale and a zero for each group of 32 weights of a row: weight = scale * (code - 8) + zero
8 bits   the same with weight = scale * (code - 128) + zero
6 bits   codes of 8 bits, and a scale for each 16 weights: weight = scale * (code - 128)

Scales and zeros are float16, as in GGUF files. Codes are multiplied by integers of 8 or 16 bits and summed
exactly within a group (contract E15). A row has the same bits alone and among others, so a token has them in
a step and in a prompt.
"""

from __future__ import annotations

import itertools
import math
import mmap
import weakref
from typing import Any, Callable, Sequence, Tuple

import torch
import torch.nn.functional as F

from sparq_ipu.transformers.decoder.unchanged import Unchanged
from sparq_reference import checks

try:
    from sparq_ipu import _cpu
except ImportError:  # not built
    _cpu = None  # type: ignore[assignment]

#: codes (n, m) uint8, of 4 bits (n, m / 2) as `paired` makes them; and of any float type (n, m / 32, 2):
#: scale and zero, with 6 bits the scales of both halves
Groups = Tuple[torch.Tensor, torch.Tensor]
#: the same, of a slice of the rows
Rows = Callable[[slice], Groups]
#: weights that share a scale and a zero
GROUP = 32
#: outputs that are joined only whole
_BLOCK = 64
#: outputs that the kernels keep together, and bytes of their codes of a group; then come 64 of scales
_OUTPUTS, _CODES = 16, {4: 256, 6: 512, 8: 512}
#: bytes of a large page, of codes that have pages of their own (at least), of pages that others share
_PAGE, _HUGE, _SHARED = 1 << 21, 1 << 22, 1 << 26
#: weights that are rounded at a time
_CHUNK = 1 << 18
#: sizes must be multiples of these
_MULTIPLES = {"out_features": _OUTPUTS, "in_features": GROUP}


class FewBitsLinear(torch.nn.Module):
    """As `torch.nn.Linear` of bfloat16, which it takes the bias of.

    Args:
        bits: 4, 6 or 8.
        rows: of a slice of the outputs, whole blocks of 16. None: the weights of `linear`, rounded to 4 or 8.

    Attributes:
        packed: (out_features / 16, in_features / 32, bytes) uint8, as the kernels read weights
            (poplar_ops/cpu/decoder/few_bits_product.hpp).
        is_finite: whether no scale or zero overflowed in float16, nor is NaN.
    """

    packed: torch.Tensor

    def __init__(self, linear: torch.nn.Linear, bits: int, rows: Rows | None = None):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias, self.bits = linear.bias, bits
        weight, n_out, n_in = linear.weight.detach(), linear.out_features, linear.in_features
        shape = n_out // _OUTPUTS, n_in // GROUP, _CODES[bits] + 64
        packed = _in_huge_pages(shape)
        self.is_finite = True
        n_blocks = max(1, _CHUNK // n_in // _OUTPUTS)  # the processor's cache has room for them
        for begin in range(0, len(packed), n_blocks):
            some = packed[begin : begin + n_blocks]
            part = slice(begin * _OUTPUTS, (begin + len(some)) * _OUTPUTS)
            codes, scales = rounded(weight[part], bits) if rows is None else rows(part)
            some[:, :, : _CODES[bits]] = _in_blocks(codes, n_in // GROUP)
            by_block = scales.view(len(some), _OUTPUTS, -1, 2).permute(0, 2, 3, 1)
            stored = some[:, :, _CODES[bits] :].view(torch.float16).view(*by_block.shape).copy_(by_block)
            self.is_finite = self.is_finite and bool(stored.isfinite().all())
        self.register_buffer("packed", packed)

    @staticmethod
    def fits(linear: torch.nn.Linear) -> bool:
        """Whether the kernels take its shape."""
        return not any(getattr(linear, name) % multiple for name, multiple in _MULTIPLES.items())

    @property
    def groups(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes (out_features, in_features) uint8, and scales (out_features, in_features / 32, 2) float16."""
        stored = self.packed[:, :, _CODES[self.bits] :].contiguous().view(torch.float16)
        scales = stored.view(*self.packed.shape[:2], 2, _OUTPUTS).permute(0, 3, 1, 2).flatten(0, 1)
        codes = _in_rows(self.packed[:, :, : _CODES[self.bits]])
        if self.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=2)
        return codes.flatten(1), scales

    @property
    def weight(self) -> torch.Tensor:
        """(out_features, in_features) bfloat16, made at every call."""
        codes, scales = self.groups
        n, halves = len(codes), 2 if self.bits == 6 else 1
        scale, zero = scales.float()[..., :halves, None], scales.float()[..., 1:, None]
        steps = codes.view(n, -1, halves, GROUP // halves).float() - (8 if self.bits == 4 else 128)
        numbers = steps * scale if self.bits == 6 else steps * scale + zero
        return numbers.view(n, -1).to(torch.bfloat16)

    @property
    def weight_bytes(self) -> int:
        """Bytes that a step reads."""
        return self.packed.nbytes

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As that of `torch.nn.Linear`."""
        if input.dtype is not torch.bfloat16:
            checks.fail("few_bits", "input", "be bfloat16, as the model was", input.dtype)
        if not _takes(input, self.packed):
            return F.linear(input, self.weight, self.bias)
        rows = input.reshape(-1, self.in_features).contiguous()
        output = _product(rows, self.packed.contiguous(), self.bits)
        if self.bias is not None:
            output += self.bias
        return output.view(*input.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The text that `print` shows."""
        names = ("in_features", "out_features", "bits")
        return (
            ", ".join(f"{name}={getattr(self, name)}" for name in names) + f", bias={self.bias is not None}"
        )


class JoinedLinear:
    """Several layers of one input, whose outputs are a product for each run of equal bits (`few_bits_step`).
    The layers stay as they are, but their codes become views: they are in memory once.

    Args:
        modules: `_modules` of the module that has the layers.
        names: of those that `fit`.

    Attributes:
        unchanged: whether the layers are as they were, and nobody looks at what goes through them.
    """

    def __init__(self, modules: dict[str, Any], names: Sequence[str]):
        self.modules, self.unchanged = modules, Unchanged()
        layers: list[Any] = [modules[name] for name in names]
        first = layers[0]
        #: codes of each product, and their bits
        self._parts: list[tuple[torch.Tensor, int]] = []
        for bits, some in itertools.groupby(layers, key=lambda layer: layer.bits):
            together = list(some)
            packed, at = _in_shared_pages([layer.packed for layer in together]), 0
            self._parts.append((packed, bits))
            for layer in together:
                layer.packed = packed[at : at + len(layer.packed)]
                at += len(layer.packed)
        self._bias = None if first.bias is None else torch.cat([layer.bias for layer in layers])
        self.in_features = first.in_features
        self.out_features = sum(layer.out_features for layer in layers)
        for name in names:
            self.unchanged.watch_module(modules, name)
            layer = modules[name]
            for buffer in layer._buffers:
                self.unchanged.watch_value(layer._buffers, buffer)
            holder = layer.__dict__ if self._bias is None else layer._parameters
            self.unchanged.watch_value(holder, "bias")

    @staticmethod
    def fit(layers: Sequence[torch.nn.Module]) -> bool:
        """Whether they are such layers, with or without a bias, and with whole blocks of outputs."""
        of = [layer for layer in layers if isinstance(layer, FewBitsLinear)]
        if len(of) < len(layers):
            return False
        kinds = {(layer.in_features, layer.bias is None) for layer in of}
        return len(kinds) == 1 and not any(layer.out_features % _BLOCK for layer in of)

    @property
    def addresses(self) -> tuple[list[tuple[int, int, int]], int, int]:
        """As the kernels of a step take it (poplar_ops/cpu/decoder/decoder_step.hpp): where the weights of
        each product are, their bits and outputs; where the bias is, 0 for none; in_features."""
        parts = [(packed.data_ptr(), bits, len(packed) * _OUTPUTS) for packed, bits in self._parts]
        return parts, 0 if self._bias is None else self._bias.data_ptr(), self.in_features


def _takes(rows: torch.Tensor, packed: torch.Tensor) -> bool:
    """Whether the CPU kernels, which get addresses alone, may multiply: they are built, no tensor was
    converted or moved to another device, and PyTorch traces nothing and needs no gradient."""
    if _cpu is None or torch.compiler.is_compiling() or (rows.requires_grad and torch.is_grad_enabled()):
        return False
    return packed.is_cpu and rows.is_cpu and rows.dtype is torch.bfloat16


def _product(rows: torch.Tensor, packed: torch.Tensor, bits: int) -> torch.Tensor:
    output = rows.new_empty(len(rows), len(packed) * _OUTPUTS)
    _cpu.few_bits_product(
        rows.data_ptr(),
        packed.data_ptr(),
        bits,
        output.data_ptr(),
        len(rows),
        packed.shape[1] * GROUP,
        output.shape[1],
        n_threads=torch.get_num_threads(),
    )
    return output


def _in_blocks(rows: torch.Tensor, n_groups: int) -> torch.Tensor:
    """Bytes (outputs, n) -> (outputs / 16, n_groups, bytes): four bytes of each of 16 outputs in turn."""
    words = rows.contiguous().view(torch.int32).view(-1, _OUTPUTS, n_groups, rows.shape[1] // n_groups // 4)
    return words.permute(0, 2, 3, 1).contiguous().view(torch.uint8).view(len(words), n_groups, -1)


def _in_rows(blocks: torch.Tensor) -> torch.Tensor:
    """The bytes that `_in_blocks` was given, (outputs, groups, n) uint8."""
    n_blocks, groups = blocks.shape[:2]
    words = blocks.contiguous().view(torch.int32).view(n_blocks, groups, -1, _OUTPUTS)
    return words.permute(0, 3, 1, 2).contiguous().view(torch.uint8).view(n_blocks * _OUTPUTS, groups, -1)


def paired(codes: torch.Tensor) -> torch.Tensor:
    """Codes (n, m) uint8 in [0, 15] -> (n, m / 2): codes 16 inputs apart in one byte."""
    halves = codes.to(torch.uint8).view(len(codes), -1, 2, 16)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).view(len(codes), -1)


def rounded(weight: torch.Tensor, bits: int) -> Groups:
    """`round_to_groups`, with codes of 4 bits in pairs."""
    codes, scales = round_to_groups(weight, bits)
    return paired(codes) if bits == 4 else codes, scales


def _in_huge_pages(shape: tuple[int, ...]) -> torch.Tensor:
    """Bytes in pages of 2 MB where the system has them, if they fill some: a product reads a page and
    leaves it."""
    n_bytes = math.prod(shape)
    if n_bytes < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=torch.uint8)
    return _bytes_of(*_huge_pages(n_bytes), shape)


#: memory that is shared out, as long as some of it is used, and where in it the rest begins and ends
_shared: tuple[weakref.ref[mmap.mmap], int, int] | None = None


def _in_shared_pages(parts: list[torch.Tensor]) -> torch.Tensor:
    """In pages of 2 MB, together with others where they fill none: a product takes some 1.7 times as long
    from small pages of a virtual machine. The memory is given back when nothing of it is used any more."""
    global _shared
    shape = sum(map(len, parts)), *parts[0].shape[1:]
    n_bytes = math.prod(shape)
    if n_bytes >= _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return parts[0] if len(parts) == 1 else torch.cat(parts, out=_in_huge_pages(shape))
    memory, begin, end = (None, 0, 0) if _shared is None else (_shared[0](), *_shared[1:])
    if memory is None or begin + n_bytes > end:
        memory, begin = _huge_pages(_SHARED)
        end = begin + _SHARED
    _shared = weakref.ref(memory), -(-(begin + n_bytes) // 64) * 64, end  # in whole lines
    return torch.cat(parts, out=_bytes_of(memory, begin, shape))


def _huge_pages(n_bytes: int) -> tuple[mmap.mmap, int]:
    """Memory, and where n_bytes of it begin: at a large page, or a part of them would be in small ones. The
    rest is never touched, so it takes nothing."""
    memory = mmap.mmap(-1, n_bytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _PAGE


def _bytes_of(memory: mmap.mmap, begin: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, count=math.prod(shape), offset=begin).view(shape)


def round_to_groups(weight: torch.Tensor, bits: int) -> Groups:
    """Weights (n, m) of any float type in groups of 32 along m: with 4 bits from the lowest of a group to its
    highest in 15 steps, with 8 from its largest magnitude's negative in 254 -> codes (n, m) uint8, and scale
    and zero (n, m / 32, 2) float16."""
    grouped = weight.float().view(weight.shape[0], -1, GROUP)
    low, high = grouped.amin(dim=2), grouped.amax(dim=2)
    if bits == 4:
        offset, scale = 8, ((high - low) / 15).half()
        zero = (low + 8 * scale.float()).half()
    else:
        offset, scale = 128, (torch.maximum(high, -low) / 127).half()
        zero = torch.zeros_like(scale)
    steps = (grouped - zero.float()[:, :, None]).div_(scale.float().masked_fill(scale == 0, 1)[:, :, None])
    codes = steps.round_().add_(offset).clamp_(0 if bits == 4 else 1, 2 * offset - 1)
    return codes.to(torch.uint8).view(weight.shape), torch.stack((scale, zero), dim=2)
