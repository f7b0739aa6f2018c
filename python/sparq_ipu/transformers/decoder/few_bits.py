# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose weights have 8 or 4 bits, through the CPU kernels.

A step reads every weight for each token. Of 4 bits it reads about a third of the bytes of 16.

int8   a scale for each row of the weights: weight = scale * code, code in [-127, 127]
int4   a scale and a zero for each group of 32 weights of a row: weight = scale * (code - 8) + zero, code in
       [0, 15]. So GGUF's kinds of 4 bits fit as they are.

Codes are multiplied by integers of 15 bits and summed exactly within a group (contract E15). A row has the
same bits alone and among others, so a token has them in a step and in a prompt.
"""

from __future__ import annotations

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

#: paired codes (n, m / 2) uint8, scale and zero (n, m / 32) of any float type
Groups = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]
#: int4 weights that share a scale
GROUP = 32
#: outputs that are joined only whole
_BLOCK = 64
#: outputs that the kernels keep together; bytes of a group of 4 bits: codes, and with scales and zeros
_OUTPUTS, _CODES, _BYTES = 16, 256, 320
#: bytes of a large page, of codes that have pages of their own (at least), of pages that others share
_PAGE, _HUGE, _SHARED = 1 << 21, 1 << 22, 1 << 26
#: weights that are rounded at a time
_CHUNK = 1 << 18
#: sizes must be multiples of these
_MULTIPLES = {"out_features": _OUTPUTS, "in_features": GROUP}


class FewBitsLinear(torch.nn.Module):
    """As `torch.nn.Linear` of bfloat16, which it takes the bias of.

    Attributes:
        packed: (out_features / 16, in_features / 32, bytes) uint8, as the kernels read weights
            (poplar_ops/cpu/decoder/few_bits_product.hpp).
        scale: (out_features,) bfloat16 of 8 bits; None where scales are in `packed`.
    """

    packed: torch.Tensor
    scale: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias

    @staticmethod
    def fits(linear: torch.nn.Linear) -> bool:
        """Whether the kernels take its shape."""
        return not any(getattr(linear, name) % multiple for name, multiple in _MULTIPLES.items())

    @property
    def weight(self) -> torch.Tensor:
        """(out_features, in_features) bfloat16, made at every call."""
        raise NotImplementedError

    @property
    def weight_bytes(self) -> int:
        """Bytes that a step reads."""
        return self.packed.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As that of `torch.nn.Linear`."""
        if input.dtype is not torch.bfloat16:
            checks.fail("few_bits", "input", "be bfloat16, as the model was", input.dtype)
        if not _takes(input, self.packed, self.scale):
            return F.linear(input, self.weight, self.bias)
        output = _product(input.reshape(-1, self.in_features), self.packed, self.scale)
        if self.bias is not None:
            output += self.bias
        return output.view(*input.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The text that `print` shows."""
        names = ("in_features", "out_features")
        return (
            ", ".join(f"{name}={getattr(self, name)}" for name in names) + f", bias={self.bias is not None}"
        )


class Int8Linear(FewBitsLinear):
    """Weights of 8 bits, rounded to nearest."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__(linear)
        weight = linear.weight.detach()
        codes, scale = (
            torch.empty(weight.shape, dtype=torch.int8),
            torch.empty(len(weight), dtype=torch.bfloat16),
        )
        n_rows = max(1, _CHUNK // weight.shape[1])  # the processor's cache has room for them
        for begin in range(0, len(weight), n_rows):
            part = slice(begin, begin + n_rows)
            numbers = weight[part].float()
            scale[part] = numbers.abs().amax(dim=1) / 127
            steps = numbers / scale[part].float().masked_fill(scale[part] == 0, 1)[:, None]
            codes[part] = steps.round_().clamp_(-127, 127)
        stored = codes.view(torch.uint8) ^ 128
        self.register_buffer("packed", _in_huge_pages([_in_blocks(stored, weight.shape[1] // GROUP)]))
        self.register_buffer("scale", scale)

    @property
    def codes(self) -> torch.Tensor:
        """(out_features, in_features) int8."""
        return (_in_rows(self.packed).flatten(1) ^ 128).view(torch.int8)

    @property
    def weight(self) -> torch.Tensor:
        """See FewBitsLinear."""
        assert self.scale is not None
        return self.codes.to(self.scale.dtype).mul_(self.scale[:, None])


class Int4Linear(FewBitsLinear):
    """Weights of 4 bits.

    Args:
        rows: of a slice of the outputs, whole blocks of 16: codes as `paired` makes them, and scale and zero
            (rows, in_features / 32), which become bfloat16. None: `rounded` of the weights of `linear`.
    """

    def __init__(
        self,
        linear: torch.nn.Linear,
        rows: Callable[[slice], Groups] | None = None,
    ):
        super().__init__(linear)
        weight, n_out, n_in = linear.weight.detach(), linear.out_features, linear.in_features
        packed = torch.empty(n_out // _OUTPUTS, n_in // GROUP, _BYTES, dtype=torch.uint8)
        n_blocks = max(1, _CHUNK // n_in // _OUTPUTS)  # the processor's cache has room for them
        for begin in range(0, len(packed), n_blocks):
            some = slice(begin, begin + n_blocks)
            part = slice(begin * _OUTPUTS, min(begin + n_blocks, len(packed)) * _OUTPUTS)
            packed[some] = _packed(*(rounded(weight[part]) if rows is None else rows(part)))
        self.register_buffer("packed", packed)
        self.register_buffer("scale", None)

    @property
    def pairs(self) -> torch.Tensor:
        """(out_features / 16, in_features / 32, 16, 2) bfloat16: scale and zero, a part of `packed`."""
        return _pairs(self.packed)

    @property
    def weight(self) -> torch.Tensor:
        """See FewBitsLinear."""
        return _weight(self.packed)


class JoinedLinear:
    """Several layers of one input, whose outputs are one product of the kernels (`few_bits_step`).

    The layers stay as they are, but their codes become views: they are in memory once. Scales of 8 bits are
    held twice.

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
        self._packed = _in_shared_pages([layer.packed for layer in layers])
        at = 0
        for layer in layers:
            end = at + len(layer.packed)
            layer.packed = self._packed[at:end]
            at = end
        self._scale = None if first.scale is None else _together([layer.scale for layer in layers])
        self._bias = None if first.bias is None else _together([layer.bias for layer in layers])
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
        """Whether they are of one kind, with or without a bias, and with whole blocks of outputs."""
        of = [layer for layer in layers if isinstance(layer, FewBitsLinear)]
        if len(of) < len(layers):
            return False
        kinds = {(type(layer), layer.in_features, layer.bias is None) for layer in of}
        return len(kinds) == 1 and not any(layer.out_features % _BLOCK for layer in of)

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """As the kernels of a step take it (poplar_ops/cpu/decoder/decoder_step.hpp): where the weights are,
        the scales of 8 bits and the bias, 0 for none; in_features and out_features."""
        scale = 0 if self._scale is None else self._scale.data_ptr()
        bias = 0 if self._bias is None else self._bias.data_ptr()
        return self._packed.data_ptr(), scale, bias, self.in_features, self.out_features


def _takes(rows: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor | None) -> bool:
    """Whether the CPU kernels, which get addresses alone, may multiply: they are built, no tensor was
    converted or moved to another device, and PyTorch traces nothing and needs no gradient."""
    if _cpu is None or torch.compiler.is_compiling() or (rows.requires_grad and torch.is_grad_enabled()):
        return False
    numbers = (rows,) if scale is None else (rows, scale)
    return packed.is_cpu and all(x.is_cpu and x.dtype is torch.bfloat16 for x in numbers)


def _product(rows: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    rows, packed = rows.contiguous(), packed.contiguous()
    output = rows.new_empty(len(rows), len(packed) * _OUTPUTS)
    _cpu.few_bits_product(
        rows.data_ptr(),
        packed.data_ptr(),
        0 if scale is None else scale.contiguous().data_ptr(),
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


def rounded(weight: torch.Tensor) -> Groups:
    """`round_to_groups`, with the codes in pairs."""
    codes, scale, zero = round_to_groups(weight)
    return paired(codes), scale, zero


def _packed(pairs_of_codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """As poplar_ops/cpu/decoder/few_bits_product.hpp says."""
    blocks, groups = len(pairs_of_codes) // _OUTPUTS, pairs_of_codes.shape[1] * 2 // GROUP
    pairs = torch.stack((scale, zero), dim=2).to(torch.bfloat16).view(blocks, _OUTPUTS, groups, 2)
    packed = torch.empty(blocks, groups, _BYTES, dtype=torch.uint8)
    packed[:, :, :_CODES] = _in_blocks(pairs_of_codes, groups)
    _pairs(packed).copy_(pairs.transpose(1, 2))
    return packed


def _pairs(packed: torch.Tensor) -> torch.Tensor:
    pairs = packed[:, :, _CODES:].view(torch.bfloat16)
    return pairs.view(*packed.shape[:2], _OUTPUTS, 2)


def _weight(packed: torch.Tensor) -> torch.Tensor:
    """(out_features, in_features) bfloat16."""
    nibbles = _in_rows(packed[:, :, :_CODES])
    codes = torch.stack((nibbles & 15, nibbles >> 4), dim=2).flatten(2)
    scale, zero = _pairs(packed).transpose(1, 2).flatten(0, 1)[..., None].unbind(dim=2)
    return codes.to(torch.bfloat16).sub_(8).mul_(scale).add_(zero).flatten(1)


def _in_huge_pages(parts: list[torch.Tensor]) -> torch.Tensor:
    """All parts in pages of 2 MB where the system has them, if they fill some: a product reads a page and
    leaves it."""
    n_bytes = sum(part.nbytes for part in parts)
    if n_bytes < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _together(parts)
    return _copied(parts, *_huge_pages(n_bytes))


#: memory that is shared out, as long as some of it is used, and where in it the rest begins and ends
_shared: tuple[weakref.ref[mmap.mmap], int, int] | None = None


def _in_shared_pages(parts: list[torch.Tensor]) -> torch.Tensor:
    """In pages of 2 MB, together with others where they fill none: a product takes some 1.7 times as long
    from small pages of a virtual machine. The memory is given back when nothing of it is used any more."""
    global _shared
    n_bytes = sum(part.nbytes for part in parts)
    if n_bytes >= _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _in_huge_pages(parts)
    memory, begin, end = (None, 0, 0) if _shared is None else (_shared[0](), *_shared[1:])
    if memory is None or begin + n_bytes > end:
        memory, begin = _huge_pages(_SHARED)
        end = begin + _SHARED
    _shared = weakref.ref(memory), -(-(begin + n_bytes) // 64) * 64, end  # in whole lines
    return _copied(parts, memory, begin)


def _huge_pages(n_bytes: int) -> tuple[mmap.mmap, int]:
    """Memory, and where n_bytes of it begin: at a large page, or a part of them would be in small ones. The
    rest is never touched, so it takes nothing."""
    memory = mmap.mmap(-1, n_bytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _PAGE


def _copied(parts: list[torch.Tensor], memory: mmap.mmap, begin: int) -> torch.Tensor:
    count, rest = sum(part.numel() for part in parts), parts[0].shape[1:]
    to = torch.frombuffer(memory, dtype=parts[0].dtype, count=count, offset=begin)
    return torch.cat(parts, out=to.view(-1, *rest))


def _together(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def round_to_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights (n, m) of any float type in groups of 32 along m: from the lowest of a group to its highest in
    15 steps.

    Returns:
        codes (n, m) uint8, and scale and zero (n, m / 32) bfloat16.
    """
    grouped = weight.float().view(weight.shape[0], -1, GROUP)
    low, high = grouped.amin(dim=2), grouped.amax(dim=2)
    scale = ((high - low) / 15).to(torch.bfloat16)
    zero = (low + 8 * scale.float()).to(torch.bfloat16)
    steps = (grouped - zero.float()[:, :, None]).div_(scale.float().masked_fill(scale == 0, 1)[:, :, None])
    codes = steps.round_().add_(8).clamp_(0, 15)
    return codes.to(torch.uint8).view(weight.shape), scale, zero
