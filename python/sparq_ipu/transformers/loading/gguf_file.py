# SPDX-License-Identifier: Apache-2.0
"""The header of a GGUF file: read once, and checked before anything of its size is allocated.

The reader of the package gguf makes an array of every string of a tokenizer, which takes seconds, and
believes every count. This one takes 0.2 s for a vocabulary of 150,000, and refuses a file that is not whole.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from sparq_reference import checks

STRING, ARRAY = 8, 9
#: an error of the whole file, not of a field
_FILE = ""
#: of a number, by its type in a file
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_FULL = ("F32", "F16", "F64")
#: kinds whose codes and scales stay as they are, and the bits that `FewBitsLinear` takes for them
KEPT_BITS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), 4),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q8_0", "IQ4_NL", "IQ4_XS"), 8),
    "Q6_K": 6,
}


class Field(NamedTuple):
    """A value of the header. Strings are bytes; `types` is that of an array and of its elements."""

    types: tuple[int, ...]
    value: Any


class Tensor(NamedTuple):
    """A tensor of the file: its shape as PyTorch has it, and the bytes of each row."""

    name: str
    kind: Any
    shape: tuple[int, ...]
    data: np.ndarray


class GgufFile:
    """A file, its data mapped and not read. A damaged one is refused by file and field."""

    def __init__(self, path: Path):
        self.path = path
        self.fields: dict[str, Field] = {}
        self.tensors: dict[str, Tensor] = {}
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                self.fail(_FILE, "have a header of 24 bytes", size)
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:4] != b"GGUF":
            self.fail(_FILE, "begin with GGUF", self._data[:4])
        self._at, self._reading = 4, "the header"
        version, n_tensors, n_fields = self._unpack("IQQ")
        if version not in _VERSIONS:
            self.fail("the version", "be 2 or 3, of this byte order", version)
        self._read_fields(n_fields)
        if (parts := self.number("split.count", 1)) > 1:
            part = self.number("split.no", 0) + 1
            rule = f"have all {parts} parts in one file (llama-gguf-split --merge)"
            self.fail(_FILE, rule, f"part {part} of {parts}")
        self._read_tensors(n_tensors)

    def fail(self, field: str, rule: str, value: object) -> NoReturn:
        """Raise ValueError, with the file's name."""
        text = repr(value) if isinstance(value, bytes) else str(value)
        where = str(self.path) if field == _FILE else f"{field} of {self.path}"
        checks.fail("load_model", where, rule, text if len(text) < 100 else text[:99] + "…")

    @property
    def architecture(self) -> str:
        """The kind of model."""
        return self.text("general.architecture")

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is a string."""
        field = self.fields.get(name)
        if field is None and default is not None:
            return default
        if field is None or field.types != (STRING,):
            self.fail(name, "be a string", None if field is None else field.value)
        try:
            return str(field.value, "utf-8")
        except UnicodeDecodeError:
            self.fail(name, "be UTF-8", field.value)

    def number(self, name: str, default: Any = None) -> Any:
        """A field that is one number, or `default`."""
        field = self.fields.get(name)
        if field is None:
            return default
        if field.types[0] not in _FORMATS:
            self.fail(name, "be one number", "a string" if field.types[0] == STRING else "an array")
        return field.value

    def array(self, name: str) -> list[Any]:
        """The elements of a field, [] where there is none."""
        field = self.fields.get(name)
        if field is not None and field.types[0] != ARRAY:
            self.fail(name, "be an array", field.value)
        return [] if field is None else list(field.value)

    def array_or_number(self, name: str) -> list[Any]:
        """One number for all layers, or one for each; [] where there is none."""
        field = self.fields.get(name)
        if field is not None and field.types[0] != ARRAY:
            return [self.number(name)]
        return self.array(name)

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
        if hasattr(mmap, "MADV_DONTNEED"):
            self._data.madvise(mmap.MADV_DONTNEED)

    # --- bytes

    def _take(self, n_bytes: int) -> int:
        """Where the next bytes begin."""
        at = self._at
        if n_bytes > len(self._data) - at:
            rule = f"{n_bytes} bytes of which the file has {len(self._data) - at}"
            self.fail(self._reading, "be whole", rule)
        self._at = at + n_bytes
        return at

    def _unpack(self, formats: str) -> tuple[Any, ...]:
        layout = struct.Struct("<" + formats)
        return layout.unpack_from(self._data, self._take(layout.size))

    def _string(self) -> bytes:
        (length,) = self._unpack("Q")
        at = self._take(length)
        return self._data[at : at + length]

    def _strings(self, count: int) -> list[bytes]:
        """As `_string`, of which a vocabulary has hundreds of thousands."""
        data, at, lengths = self._data, self._at, struct.Struct("<Q")
        values: list[bytes] = []
        last = len(data) - lengths.size
        for _ in range(count):
            if at > last or (end := at + 8 + lengths.unpack_from(data, at)[0]) > len(data):
                self.fail(self._reading, "be whole", f"{count} strings, of which the file has {len(values)}")
            values.append(data[at + 8 : end])
            at = end
        self._at = at
        return values

    def _name(self, what: str) -> str:
        self._reading = what
        name = self._string()
        try:
            return str(name, "utf-8")
        except UnicodeDecodeError:
            self.fail(what, "be UTF-8", name)

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind not in _FORMATS:
            self.fail(self._reading, "have a known type", kind)
        return self._unpack(_FORMATS[kind])[0]

    def _read_fields(self, n_fields: int) -> None:
        for index in range(n_fields):
            name = self._name(f"the name of field {index}")
            if name in self.fields:
                self.fail(name, "occur once", "it twice")
            self._reading = name
            (kind,) = self._unpack("I")
            if kind != ARRAY:
                self.fields[name] = Field((kind,), self._value(kind))
                continue
            element, count = self._unpack("IQ")
            if element in _FORMATS:
                values: Any = self._unpack(f"{self._fitting(count)}{_FORMATS[element]}")
            elif element == STRING:
                values = self._strings(self._fitting(count, 8))
            else:
                self.fail(name, "have elements of a known type", element)
            self.fields[name] = Field((ARRAY, element), values)

    def _fitting(self, count: int, n_bytes: int = 1) -> int:
        """A count of elements that the rest of the file can hold."""
        if count > (len(self._data) - self._at) // n_bytes:
            self.fail(self._reading, "be whole", f"{count} elements")
        return count

    def _read_tensors(self, n_tensors: int) -> None:
        import gguf

        found: list[tuple[int, int, str]] = []
        described: list[tuple[str, Any, tuple[int, ...], int, int]] = []
        for index in range(n_tensors):
            name = self._name(f"the name of tensor {index}")
            self._reading = name
            (n_dimensions,) = self._unpack("I")
            if not 1 <= n_dimensions <= _MOST_DIMENSIONS:
                self.fail(name, f"have 1 to {_MOST_DIMENSIONS} dimensions", n_dimensions)
            shape = self._unpack(f"{n_dimensions}Q")[::-1]
            code, offset = self._unpack("IQ")
            try:
                kind = gguf.GGMLQuantizationType(code)
            except ValueError:
                self.fail(name, "have a type that the package gguf knows", code)
            block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
            if shape[-1] % block or not all(shape):
                self.fail(name, f"have rows of a multiple of {block}", shape)
            described.append((name, kind, shape, prod(shape) // block * n_bytes, offset))
        alignment = self.number("general.alignment", _ALIGNMENT)
        if alignment not in [1 << bit for bit in range(3, 21)]:
            self.fail("general.alignment", "be a power of two from 8", alignment)
        begin = -(-self._at // alignment) * alignment
        for name, kind, shape, n_bytes, offset in described:
            end = begin + offset + n_bytes
            if offset % alignment:
                self.fail(name, f"begin at a multiple of {alignment} bytes", offset)
            if end > len(self._data):
                self.fail(name, f"end within the {len(self._data)} bytes of the file", end)
            if name in self.tensors:
                self.fail(name, "occur once", "it twice")
            found.append((begin + offset, end, name))
            data = np.frombuffer(self._data, np.uint8, n_bytes, begin + offset)
            self.tensors[name] = Tensor(name, kind, shape, data.reshape(*shape[:-1], -1))
        found.sort()
        for (_, end, name), (start, _, other) in zip(found, found[1:]):
            if start < end:
                self.fail(other, f"begin behind {name}", f"{start} before {end}")
