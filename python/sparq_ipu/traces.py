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
import zipfile
from typing import Any, Iterator, NoReturn

import numpy as np

from sparq_reference import checks

#: name and version of the file format
FORMAT = "sparq-ipu trace 1"
#: what was decoded: running text, a program, a passage for the second time, answers found in the context, no
#: text at all
KINDS = ("prose", "code", "repetition", "retrieval", "synthetic")

_OP = "trace"


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
        first = next(iter(self.layers.values()))
        for number, layer in self.layers.items():
            for name in ("query", "key", "value"):
                array = getattr(layer, name)
                if array.dtype != np.float16:
                    _fail(f"{name}_{number}", "be float16", array.dtype)
                if array.ndim != 3 or array.size == 0:
                    _fail(f"{name}_{number}", "have 3 dimensions, none of them 0", array.shape)
                if array.shape != getattr(first, name).shape:
                    shape = getattr(first, name).shape
                    _fail(f"{name}_{number}", f"have the shape of the other layers, {shape}", array.shape)
                if not np.isfinite(array).all():
                    _fail(f"{name}_{number}", "be finite", "NaN or infinity")
        n_kv_heads, n_positions, head_dim = first.key.shape
        if first.value.shape != first.key.shape:
            _fail("values", f"have the shape of the keys, {first.key.shape}", first.value.shape)
        if first.query.shape[2] != head_dim:
            _fail("queries", f"have head_dim={head_dim} components", first.query.shape)
        if first.query.shape[1] % n_kv_heads:
            _fail("queries", f"have a multiple of n_kv_heads={n_kv_heads} heads", first.query.shape)
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
            for name in ("query", "key", "value")
        }
        about = {"format": FORMAT, "start": self.start, "text": self.text, "kind": self.kind}
        arrays.update({name: np.array(value) for name, value in about.items()}, model=np.array(self.model))
        # through an open file: given a name, NumPy would add .npz to it
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)


def load(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file, or ValueError where it is no .npz file with the arrays of a trace."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):  # NumPy would speak of pickle
            _fail("file", "be an .npz file", path)
    with np.load(path) as arrays:
        names = set(arrays.files)
        if "format" not in names or str(_read(arrays, "format")) != FORMAT:
            got = f"format {str(_read(arrays, 'format'))!r}" if "format" in names else f"{sorted(names)}"
            _fail("file", f"hold format {FORMAT!r}", f"{got} in {path}")
        numbers = sorted(int(name[4:]) for name in names if name.startswith("key_") and name[4:].isdigit())
        wanted = {"start", "text", "kind", "model"}
        wanted |= {f"{name}_{number}" for number in numbers for name in ("query", "key", "value")}
        for missing in sorted(wanted - names):
            _fail("file", f"hold {missing}", f"{sorted(names)} in {path}")
        start = _read(arrays, "start")
        if start.dtype.kind not in "iu" or start.ndim:
            _fail("start", "be an integer", f"{start.dtype} of shape {start.shape}")
        layers = {
            number: TraceLayer(*(_read(arrays, f"{name}_{number}") for name in ("query", "key", "value")))
            for number in numbers
        }
        text, kind, model = (str(_read(arrays, name)) for name in ("text", "kind", "model"))
    return Trace(layers, int(start), text, kind, model)


def _read(arrays: Any, name: str) -> np.ndarray:
    try:
        array: np.ndarray = arrays[name]
    except (ValueError, OSError, zipfile.BadZipFile) as error:  # objects; or bytes that are none of NumPy's
        _fail(name, "be an array of numbers or a text", "objects" if "allow_pickle" in str(error) else error)
    return array
