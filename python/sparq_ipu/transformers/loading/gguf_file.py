# SPDX-License-Identifier: Apache-2.0
"""The header of a GGUF file: read once by the package gguf, and by field for what this package asks of it."""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import gguf
import numpy as np

from sparq_ipu.transformers.loading.folder import refused
from sparq_reference import checks

_ARRAY, _STRING = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
#: an error of the whole file, not of a field
_FILE = ""
_FULL = ("F32", "F16", "F64")
#: kinds whose codes and scales stay as they are, and the bits that `FewBitsLinear` takes for them
KEPT_BITS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), 4),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q8_0", "IQ4_NL", "IQ4_XS"), 8),
    "Q6_K": 6,
}


class _Reader(gguf.GGUFReader):  # type: ignore[misc, unused-ignore]  # gguf may be absent for mypy
    """As gguf's, which calls itself and makes NumPy arrays for each element of an array: that takes 4 s for a
    vocabulary of 50,000."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != _ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        data: Any = np.asarray(self.data)
        element, count = struct.unpack_from("<IQ", data, orig_offs)
        kind, at = gguf.GGUFValueType(element), orig_offs + 12
        if kind == _STRING:
            parts = []
            for _ in range(count):
                begin = at + 8
                at = begin + struct.unpack_from("<Q", data, at)[0]
                parts.append(data[begin:at])
        else:
            values = self._get(at, self.gguf_scalar_to_np[kind], count)
            if len(values) < count:
                raise ValueError(f"an array has {count} elements, of which the file has {len(values)}")
            parts, at = list(np.asarray(values)[:, None]), at + values.nbytes
        return at - orig_offs, parts, list(range(count)), [_ARRAY, kind]


class Tensor(NamedTuple):
    """A tensor of the file: its shape as PyTorch has it, and its rows: numbers, or the bytes of blocks."""

    name: str
    kind: Any
    shape: tuple[int, ...]
    data: np.ndarray


class GgufFile:
    """A file, its data mapped and not read. A damaged one is refused."""

    def __init__(self, path: Path):
        self.path = path
        with refused(str(path)):
            self._reader = _Reader(path)
            #: as gguf has them: for readers of transformers
            self.raw_fields: dict[str, Any] = dict(self._reader.fields)
            #: values by name: strings, numbers and lists
            self.fields: dict[str, Any] = {name: of.contents() for name, of in self.raw_fields.items()}
            self.tensors = {
                tensor.name: Tensor(
                    tensor.name, tensor.tensor_type, tuple(tensor.shape.tolist()[::-1]), tensor.data
                )
                for tensor in self._reader.tensors
            }
        if (parts := self.number("split.count", 1)) > 1:
            part = self.number("split.no", 0) + 1
            rule = f"have all {parts} parts in one file (llama-gguf-split --merge)"
            self.fail(_FILE, rule, f"part {part} of {parts}")
        placed = sorted(self._reader.tensors, key=lambda tensor: tensor.data_offset)
        for before, tensor in zip(placed, placed[1:]):
            if before.data_offset + before.n_bytes > tensor.data_offset:
                self.fail(tensor.name, f"begin behind {before.name}", f"byte {tensor.data_offset}")

    def fail(self, field: str, rule: str, value: object) -> NoReturn:
        """Raise ValueError, with the file's name."""
        text = str(value)
        where = str(self.path) if field == _FILE else f"{field} of {self.path}"
        checks.fail("load_model", where, rule, text if len(text) < 100 else text[:99] + "…")

    @property
    def architecture(self) -> str:
        """The kind of model."""
        return self.text("general.architecture")

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is a string."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            self.fail(name, "be a string", value)
        return value

    def number(self, name: str, default: Any = None) -> Any:
        """A field that is one number, or `default`."""
        value = self.fields.get(name, default)
        if isinstance(value, (str, list)):
            self.fail(name, "be one number", "a string" if isinstance(value, str) else "an array")
        return value

    def array(self, name: str) -> list[Any]:
        """The elements of a field, [] where there is none."""
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            self.fail(name, "be an array", value)
        return value

    def array_or_number(self, name: str) -> list[Any]:
        """One number for all layers, or one for each; [] where there is none."""
        value = self.fields.get(name, [])
        return value if isinstance(value, list) else [self.number(name)]

    @property
    def stored_types(self) -> tuple[str, str | None]:
        """The type that most weights of its layers take in memory: float32 for those of 16 or 32 bits but
        BF16; bfloat16; or bfloat16 with "int4" or "int8" for kinds that keep their codes."""
        sizes: dict[tuple[str, str | None], int] = {}
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
                kind, bits = tensor.kind.name, KEPT_BITS.get(tensor.kind.name)
                few = None if bits is None else "int4" if bits == 4 else "int8"
                key = "float32" if kind in _FULL else "bfloat16", few
                sizes[key] = sizes.get(key, 0) + prod(tensor.shape)
        return max(sizes, key=lambda key: sizes[key], default=("float32", None))

    def forget(self) -> None:
        """Give back the memory of data that was read; it is read again where it is needed."""
        mapped: Any = self._reader.data
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped._mmap.madvise(mmap.MADV_DONTNEED)
