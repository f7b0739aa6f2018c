# SPDX-License-Identifier: Apache-2.0
"""Where the time of a decode step goes: matrix products, attention with its cache, and all else.

Clocks around modules of the model, and around our caches: they see what transformers and PyTorch do between
them too, and cost some microseconds each. So the parts are of steps of their own, which are not counted in
tokens per second. Attention of transformers is all that its modules do beside products; ours is what the
cache does, in a lean step (docs/models.md) with the rotary embedding. Where a step is one call of the
kernels, they say what share of it attention took. All else in it counts as products: norms and the activation
too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterator

#: tokens of a prompt, and decoded tokens, before anything is timed
WARM_UP = (48, 8)
#: the parts of a step
PARTS = ("products", "attention", "rest")


class Clock:
    """Seconds spent in modules, summed over steps."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.seconds: dict[str, float] = dict.fromkeys(("linear", "attention", "linear in attention"), 0.0)
        self._starts: list[float] = []
        self._in_attention = False

    def before(self, module: Any, *_: Any) -> None:
        """A hook in front of a module."""
        self._start(_is_linear(module))

    def after(self, module: Any, *_: Any) -> None:
        """A hook behind it."""
        self._stop(_is_linear(module))

    def timed(self, function: Callable[..., Any], is_product: bool) -> Callable[..., Any]:
        """A function with the clock around it."""

        def timed(*args: Any) -> Any:
            self._start(is_product)
            result = function(*args)
            self._stop(is_product)
            return result

        return timed

    def run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`run` of a `sparq_ipu._cpu.DecoderStep` with the clock around it. The kernels say what share
        attention took."""

        def timed(*args: Any) -> Any:
            start = self._now()
            result = function(*args)
            seconds = self._now() - start
            _, attention, products = result
            if attention:  # else no layer was computed
                share = attention / (attention + products)
                self.seconds["attention"] += seconds * share
                self.seconds["linear"] += seconds * (1 - share)
            return result

        return timed

    def _start(self, is_product: bool) -> None:
        if not is_product:
            self._in_attention = True
        self._starts.append(self._now())

    def _stop(self, is_product: bool) -> None:
        seconds = self._now() - self._starts.pop()
        if is_product:
            self.seconds["linear"] += seconds
            self.seconds["linear in attention"] += seconds if self._in_attention else 0.0
        else:
            self.seconds["attention"] += seconds
            self._in_attention = False

    def parts(self, total: float, n_steps: int) -> dict[str, float]:
        """Seconds of each part of a step, of n_steps that took `total` seconds."""
        attention = self.seconds["attention"] - self.seconds["linear in attention"]
        rest = total - self.seconds["linear"] - attention
        return dict(zip(PARTS, (x / n_steps for x in (self.seconds["linear"], attention, rest))))


def _is_linear(module: Any) -> bool:
    return type(module).__name__ in ("Linear", "FewBitsLinear")


#: what a layer of our caches does in a step
_OURS = ("step", "update", "attend")


@dataclasses.dataclass
class _TimedStep:
    """`sparq_ipu._cpu.DecoderStep` with clocks."""

    begin: Callable[..., Any]
    next: Callable[..., Any]
    run: Callable[..., Any]


def _few_bits_step(model: Any) -> Any:
    """What computes a step with weights of few bits, None where PyTorch does."""
    forward = getattr(getattr(model, "model", None), "forward", None)
    return forward.find_few_bits() if hasattr(forward, "find_few_bits") else None


@contextlib.contextmanager
def clock(model: Any, cache: Any, now: Callable[[], float]) -> Iterator[Clock]:
    """Measures forward passes of the model with that cache, while it is in force. `now`: seconds."""
    of = Clock(now)
    handles = []
    ours = [layer for layer in cache.layers if hasattr(layer, "step")]
    for layer in ours:
        for name in _OURS:
            setattr(layer, name, of.timed(getattr(layer, name), False))
    few_bits = _few_bits_step(model) if ours else None
    own = few_bits and few_bits.kernels
    if few_bits is not None:
        clocked = of.timed(own.begin, True), of.timed(own.next, True), of.run(own.run)
        few_bits.kernels = _TimedStep(*clocked)
    for name, module in model.named_modules():
        if few_bits is not None and ".layers." in name:
            continue  # a clock there would be a reason to leave it to PyTorch
        if _is_linear(module) or (name.endswith("self_attn") and not ours):
            handles.append(module.register_forward_pre_hook(of.before))
            handles.append(module.register_forward_hook(of.after))
    try:
        yield of
    finally:
        for handle in handles:
            handle.remove()
        if few_bits is not None:
            few_bits.kernels = own
        for layer in ours:
            for name in _OURS:
                delattr(layer, name)
