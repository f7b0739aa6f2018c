# SPDX-License-Identifier: Apache-2.0
"""Attention methods whose accuracy is compared: dense, SparQ in its settings, the baselines of the SparQ
(arXiv:2312.04985) and ALISA (arXiv:2403.17312) papers, and what came after them.

    from sparq_study.accuracy.methods import parse_method
    method = parse_method("sparq:r=32,k=128,mean_from=1")
    output = method.attend(span)                        # see base.Span
    method.compression(seq_len=4096, head_dim=64)       # elements moved, against dense fp16

A method is a model in torch float32 of what attention returns and of how much it reads. It is slow and never
reaches a device. The kernels that devices run are elsewhere: `sparq_ipu/kernels.py` lists them. A method may
have options that no kernel has (temperatures, a rounded cache).

To add an accuracy method:

1. Derive a frozen dataclass from `base.Method`, with a `name`. Each parameter is a field with a default and a
   short name (`metadata={"short": ...}`): the text form is made from them. Check them in `__post_init__`.
2. Write `_attend` (the output), `_cache_elements` (the transfer) and, if it always reads the last positions,
   `window`. A method whose choice depends on earlier steps keeps its state in `span.history.state`, as those
   of stateful.py do.
3. Add the class to METHODS below, a family to `accuracy/plots.py`, and its text to `accuracy/plan.py`.
4. Write it again as a plain loop in `study/tests/method_oracles.py`, and name both in
   `test_accuracy_methods.py` (against the loop, transfer formula) and `test_accuracy_engine.py` (decoding).
5. Run study/accuracy.py, and describe the method in docs/study.md.

Published results are keyed by text form, so a parameter's short name and its default must not change. Needs
torch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .base import HIDDEN, Calibration, Dense, History, Method, Span, attend_to, top_positions
from .fixed import LMInfinite, Local, Strided
from .pages import Quest
from .sparq import TEMPERATURES, DoubleSparsity, LowRank, Oracle, SparQ, TopK
from .stateful import H2O, Alisa

_CLASSES: tuple[type[Method], ...] = (
    *(Dense, SparQ, Oracle, LowRank, TopK, H2O, LMInfinite, Alisa, Local, Strided),
    *(Quest, DoubleSparsity),
)
METHODS: dict[str, type[Method]] = {cls.name: cls for cls in _CLASSES}


def parse_method(text: str) -> Method:
    """A method from text: `name` or `name:parameter=value,...`.

    Parameters are named by their short forms: see `describe_methods()`. `str(method)` is the shortest text.
    Raises: ValueError naming the part that is wrong.
    """
    name, _, rest = text.partition(":")
    if name not in METHODS:
        raise ValueError(f"parse_method: name must be one of {', '.join(METHODS)}, got {name!r}")
    fields = {field.metadata["short"]: field for field in dataclasses.fields(METHODS[name])}
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if key not in fields or not separator:
            message = f"parse_method: parameter of {name} must be one of {', '.join(fields)}, got {part!r}"
            raise ValueError(message)
        default: Any = fields[key].default
        kind = type(default)
        try:
            values[fields[key].name] = kind(value)
        except ValueError:
            raise ValueError(f"parse_method: {key} must be of type {kind.__name__}, got {value!r}") from None
    return METHODS[name](**values)


def describe_methods() -> str:
    """One line per method: its name, its parameters with defaults, its summary."""
    lines = []
    for name, cls in METHODS.items():
        parameters = ",".join(
            f"{field.metadata['short']}={field.default}" for field in dataclasses.fields(cls)
        )
        lines.append(f"{name}:{parameters}\n    {(cls.__doc__ or '').splitlines()[0]}")
    return "\n".join(lines)


__all__ = [
    "H2O",
    "HIDDEN",
    "METHODS",
    "TEMPERATURES",
    "Alisa",
    "Calibration",
    "Dense",
    "History",
    "LMInfinite",
    "Local",
    "LowRank",
    "Method",
    "Oracle",
    "Span",
    "SparQ",
    "Strided",
    "TopK",
    "attend_to",
    "describe_methods",
    "parse_method",
    "top_positions",
]
