# SPDX-License-Identifier: Apache-2.0
"""A trace: recorded decode steps of a model's attention, and the .npz file that stores them.

It is what the attention layers of a model received while they decoded a text, for one sequence. The cache
holds `start` positions before the first step. Step i appends the key and value of position start + i; then
its query attends to the start + i + 1 positions that are there. The file has these arrays, for each layer L:

    query_L   (n_steps, n_heads, head_dim)                float16, of each step, after rotary embedding
    key_L     (n_kv_heads, start + n_steps, head_dim)     float16, of all positions, after rotary embedding
    value_L   (n_kv_heads, start + n_steps, head_dim)     float16, of all positions

and, as arrays of no axes, `format` (FORMAT), `start`, `text` (its name), `kind` (one of KINDS) and `model`.
Several layers have the same shapes. n_heads is a multiple of n_kv_heads: consecutive query heads share one.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Iterator, NoReturn

import numpy as np

from sparq_reference import checks

#: name and version of the file format
FORMAT = "sparq-ipu trace 1"
#: what was decoded: running text, a program, a passage for the second time, answers found in the context
KINDS = ("prose", "code", "repetition", "retrieval")

_OP = "trace"
_ARRAYS = ("query", "key", "value")


def _fail(argument: str, rule: str, got: object) -> NoReturn:
    checks.fail(_OP, argument, rule, got)


@dataclasses.dataclass(frozen=True)
class TraceLayer:
    """One layer of a trace: float16 arrays of the shapes above."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray

    def steps(self, start: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each step: query (n_heads, head_dim), key and value (n_kv_heads, 1, head_dim) to append before
        it."""
        for i, query in enumerate(self.query):
            at = slice(start + i, start + i + 1)
            yield query, self.key[:, at], self.value[:, at]


@dataclasses.dataclass(frozen=True)
class Trace:
    """Decode steps of one sequence.

    layers: layer number -> its arrays, ascending. start: positions before the first step, at least 1. text,
    kind, model: what was decoded, one of KINDS, by which model.
    """

    layers: dict[int, TraceLayer]
    start: int
    text: str
    kind: str
    model: str

    def __post_init__(self) -> None:
        if not self.layers:
            _fail("layers", "hold one layer or more", "none")
        if self.kind not in KINDS:
            _fail("kind", f"be one of {', '.join(KINDS)}", repr(self.kind))
        object.__setattr__(self, "layers", {number: self.layers[number] for number in sorted(self.layers)})
        for number, layer in self.layers.items():
            for name in _ARRAYS:
                array = getattr(layer, name)
                if array.dtype != np.float16 or array.ndim != 3 or array.size == 0:
                    got = f"{array.dtype} of shape {array.shape}"
                    _fail(f"{name}_{number}", "be float16 with 3 dimensions, not empty", got)
        n_kv_heads, n_positions, head_dim = self._any.key.shape
        rows = (n_kv_heads, n_positions, head_dim)
        shapes = (self.n_steps, n_kv_heads * (self.n_heads // n_kv_heads), head_dim), rows, rows
        for number, layer in self.layers.items():
            for name, shape in zip(_ARRAYS, shapes):
                array = getattr(layer, name)
                if array.shape != shape or 0 in shape:
                    _fail(f"{name}_{number}", f"have shape {shape}, not empty", array.shape)
                if not np.isfinite(array).all():
                    _fail(f"{name}_{number}", "be finite", "NaN or infinity")
        if self.start != n_positions - self.n_steps or self.start < 1:
            got = f"{self.start} of {n_positions} positions and {self.n_steps} steps"
            _fail("start", "be the positions less the steps, and 1 or more", got)

    @property
    def layer_numbers(self) -> list[int]:
        """Of the layers that were recorded, ascending."""
        return list(self.layers)

    @property
    def n_steps(self) -> int:
        return len(self._any.query)

    @property
    def n_heads(self) -> int:
        return int(self._any.query.shape[1])

    @property
    def n_kv_heads(self) -> int:
        return len(self._any.key)

    @property
    def head_dim(self) -> int:
        return int(self._any.key.shape[2])

    @property
    def n_positions(self) -> int:
        """After the last step; the least capacity of a cache for the whole trace."""
        return int(self._any.key.shape[1])

    @property
    def _any(self) -> TraceLayer:
        return next(iter(self.layers.values()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, compressed; one that is there is replaced. `path` is taken as it is."""
        arrays: dict[str, Any] = {
            f"{name}_{number}": getattr(layer, name)
            for number, layer in self.layers.items()
            for name in _ARRAYS
        }
        about = {"format": FORMAT, "start": self.start, "text": self.text, "kind": self.kind}
        arrays.update({name: np.array(value) for name, value in about.items()}, model=np.array(self.model))
        # through an open file: given a name, NumPy would add .npz to it
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)


def load(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file, or ValueError where it is no .npz file with the arrays of a trace."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged files raise what NumPy and zipfile happen to meet
        _fail("file", "be an .npz file with the arrays of a trace", f"{path} ({error})")
    numbers = [int(name[4:]) for name in arrays if name.startswith("key_") and name[4:].isdigit()]
    wanted = ["format", "start", "text", "kind", "model", *(f"{a}_{n}" for n in numbers for a in _ARRAYS)]
    missing = [name for name in wanted if name not in arrays]
    if missing:
        _fail("file", "be an .npz file with the arrays of a trace", f"{path} without {missing[0]}")
    if str(arrays["format"]) != FORMAT:
        _fail("file", f"hold format {FORMAT!r}", f"{str(arrays['format'])!r} in {path}")
    start = arrays["start"]
    if start.dtype.kind not in "iu" or start.ndim:
        _fail("start", "be an integer", f"{start.dtype} of shape {start.shape}")
    layers = {n: TraceLayer(*(arrays[f"{name}_{n}"] for name in _ARRAYS)) for n in numbers}
    text, kind, model = (str(arrays[name]) for name in ("text", "kind", "model"))
    return Trace(layers, int(start), text, kind, model)
