# SPDX-License-Identifier: Apache-2.0
"""Attention methods behind one interface: dense, SparQ in its settings, and what the SparQ and ALISA papers
compare with.

    from sparq_ipu.methods import parse_method
    method = parse_method("sparq:r=32,k=128,mean_from=1")
    output = method.attend(span)                        # see base.Span
    method.compression(seq_len=4096, head_dim=64)       # elements moved, against dense fp16

Needs torch. These are accuracy models in fp32, not the fast path: that is `sparq_ipu`'s own attention.
"""

from __future__ import annotations

import dataclasses

from .base import Dense, History, Method, Span, attend_to, top_positions
from .fixed import LMInfinite, Local, Strided
from .sparq import TEMPERATURES, LowRank, Oracle, SparQ, TopK
from .stateful import H2O, Alisa

METHODS = {
    cls.name: cls for cls in (Dense, SparQ, Oracle, LowRank, TopK, H2O, LMInfinite, Alisa, Local, Strided)
}


def parse_method(text: str) -> Method:
    """A method from text: `name` or `name:parameter=value,...`; `str(method)` gives the shortest such text
    back.

    Parameters are named by their short forms: see `describe_methods()`.
    Raises: ValueError naming the part that is wrong.
    """
    name, _, rest = text.partition(":")
    if name not in METHODS:
        raise ValueError(f"parse_method: name must be one of {', '.join(METHODS)}, got {name!r}")
    fields = {field.metadata["short"]: field for field in dataclasses.fields(METHODS[name])}
    values = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if key not in fields or not separator:
            raise ValueError(
                f"parse_method: parameter of {name} must be one of {', '.join(fields)}, got {part!r}"
            )
        kind = type(fields[key].default)
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
    "METHODS",
    "TEMPERATURES",
    "Alisa",
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
