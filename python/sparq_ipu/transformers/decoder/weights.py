# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits for a model of transformers: its linear layers are replaced in place; and which rows of
a prompt have the same bits then."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from typing import Any, Callable, Iterator, NamedTuple

import torch
from transformers import PreTrainedModel

from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear, Groups, rounded
from sparq_ipu.transformers.settings.layers import WEIGHTS
from sparq_reference import checks

#: Rows of a product of PyTorch in a prompt. So many take little longer than one.
ROWS = 128


class Stored(NamedTuple):
    """A linear layer in a file."""

    #: as of `FewBitsLinear`; None: of a kind that it does not take
    bits: int | None
    #: of a slice of its outputs: as the file has them, and in float32, for fewer bits than those
    groups: Callable[[slice], Groups]
    numbers: Callable[[slice], torch.Tensor] | None = None


@dataclasses.dataclass(frozen=True)
class FewBits:
    """The report of `quantise_weights`.

    Attributes:
        weights: "int8" or "int4", or "as in the file".
        layers: the number of linear layers by "int8" (with kinds of 5 and 6 bits) and "int4", of these layers
            "as in the file" and "rounded anew"; "left" have 16 bits: the kernels do not take their shape,
            or the kind that the file has.
        bytes_before, bytes_after: of these layers, what a step reads.
    """

    weights: str
    layers: dict[str, int]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        layers = ", ".join(f"{n} {name}" for name, n in self.layers.items() if n)
        before, after = self.bytes_before / 1e6, self.bytes_after / 1e6
        return f"{self.weights} ({layers}), {after:.0f} MB read per token; {before:.0f} MB in bfloat16"


def check_weights(op: str, weights: object) -> None:
    """Refuse what is no kind of weights."""
    if weights not in WEIGHTS:
        checks.fail(op, "weights", f"be one of {', '.join(WEIGHTS)}, or None", repr(weights))


def quantise_weights(
    model: PreTrainedModel,
    weights: str | None,
    *,
    stored: Callable[[str], Stored | None] | None = None,
    op: str = "quantise_weights",
) -> FewBits:
    """Replace the linear layers of a model by ones of few bits, for good: former weights are not kept.
    Embeddings keep 16 bits, for a token reads one row of them. With "int4" the output layer has 8 bits: it is
    the last product before a token is chosen.

    Args:
        model: in bfloat16 (`dtype=torch.bfloat16`), on the CPU, in eval mode.
        weights: "int8" or "int4", the most bits of a layer, see `sparq_ipu.transformers.decoder.few_bits`.
        stored: the layer of this name in a file. What has no more bits there stays as it is. None, and a
            layer for which it returns None: the weights in memory. With it `weights` may be None: nothing is
            rounded.
        op: what messages begin with.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`. The model is then unchanged.
    """
    if stored is None or weights is not None:
        check_weights(op, weights)
    if not isinstance(model, PreTrainedModel):
        checks.fail(op, "model", "be a transformers PreTrainedModel", type(model).__name__)
    before = {_kind(module) for module in model.modules() if isinstance(module, FewBitsLinear)}
    if before:
        checks.fail(op, "model", "have weights of 16 bits", f"one of {' and '.join(sorted(before))}")
    modules = model.named_modules(remove_duplicate=False)
    linear = {name: module for name, module in modules if type(module) is torch.nn.Linear}
    fitting = {name: module for name, module in linear.items() if FewBitsLinear.fits(module)}
    if not fitting:
        rule = "have linear layers of a multiple of 32 inputs and of 16 outputs"
        checks.fail(op, "model", rule, type(model).__name__)
    for module in fitting.values():
        if module.weight.dtype is not torch.bfloat16:
            rule = "have bfloat16 weights"
            checks.fail(op, "model", rule, str(module.weight.dtype).replace("torch.", ""))
        if module.weight.device.type != "cpu":
            checks.fail(op, "model", "be on the CPU", module.weight.device.type)
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def made_of(item: tuple[str, torch.nn.Linear]) -> tuple[FewBitsLinear | None, bool]:
        name, module = item
        most = 4 if weights == "int4" and module is not output else 8
        of_file = stored(name) if stored else None
        is_stored = of_file is not None and of_file.bits is not None and of_file.bits <= most
        if of_file is not None and of_file.bits is not None and is_stored:
            few = FewBitsLinear(module, of_file.bits, of_file.groups)
        elif weights is None:
            return None, True
        else:
            numbers = (of_file and of_file.numbers) or module.weight.detach().__getitem__
            few = FewBitsLinear(module, most, lambda part: rounded(numbers(part), most))
        if not few.is_finite:
            checks.fail(op, name, "have finite scales and zeros in float16", "infinity or NaN")
        return few, is_stored

    once = {id(module): (name, module) for name, module in reversed(fitting.items())}
    # the largest first: the output layer takes one thread as long as half of the others take
    once = dict(sorted(once.items(), key=lambda item: -item[1][1].weight.numel()))
    with conversion_threads() as pool:
        made = dict(zip(once, pool.map(made_of, once.values())))
    layers = {
        "int8": 0,
        "int4": 0,
        "as in the file": 0,
        "rounded anew": 0,
        "left": len(linear) - len(fitting),
    }
    odd = {id(module): module.weight.nbytes for module in linear.values() if not FewBitsLinear.fits(module)}
    bytes_before = bytes_after = sum(odd.values())
    for key, (few, is_stored) in made.items():
        if few is None:
            layers["left"] += 1
            bytes_before += once[key][1].weight.nbytes
            bytes_after += once[key][1].weight.nbytes
            continue
        layers[_kind(few)] += 1
        layers["as in the file" if is_stored else "rounded anew"] += 1
        bytes_before += once[key][1].weight.nbytes
        bytes_after += few.weight_bytes
    for name, module in fitting.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[id(module)][0] or module)
    return FewBits(weights or "as in the file", layers, bytes_before, bytes_after)


@contextlib.contextmanager
def conversion_threads() -> Iterator[concurrent.futures.Executor]:
    """A thread for each of PyTorch's, which has none besides: two teams of them would wait for each other."""
    n_threads = torch.get_num_threads()
    try:
        with concurrent.futures.ThreadPoolExecutor(
            n_threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            yield pool
    finally:
        torch.set_num_threads(n_threads)


def weights_of(model: Any) -> str | None:
    """Which of WEIGHTS, or None where no layer has few bits."""
    kinds = {_kind(module) for module in model.modules() if isinstance(module, FewBitsLinear)}
    return min(kinds, default=None)


def _kind(module: FewBitsLinear) -> str:
    return "int4" if module.bits == 4 else "int8"


def piece_rows(model: torch.nn.Module) -> int:
    """Pieces of prompts begin at multiples of this, and are filled up to one.

    1 if all products with weights are those of `FewBitsLinear`, where a row has the same bits for any number
    of rows (contract E15). PyTorch's products round differently for other numbers of rows: ROWS.
    """
    return ROWS if any(map(_multiplies, model.modules())) else 1


def _multiplies(module: torch.nn.Module) -> bool:
    """Whether PyTorch multiplies by weights of this module itself."""
    if isinstance(module, (FewBitsLinear, torch.nn.Embedding)):
        return False
    return any(weight.ndim > 1 for weight in module.parameters(recurse=False))
