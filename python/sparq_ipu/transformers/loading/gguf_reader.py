# SPDX-License-Identifier: Apache-2.0
"""A parsed GGUF file in place of `gguf.GGUFReader`, so that transformers does not parse it once more."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from types import SimpleNamespace
from typing import Any, Iterator

from sparq_ipu.transformers.loading.gguf_file import ARRAY, STRING, GgufFile

_TOKENIZER = "tokenizer.ggml."
_lock = threading.Lock()


@contextlib.contextmanager
def parsed(file: GgufFile) -> Iterator[None]:
    """In this context transformers gets the fields of `file` from its readers, and maps of names once."""
    import gguf

    # transformers reads a tokenizer by a reader of its own, and a config by gguf's
    of_transformers: Any = importlib.import_module("transformers.integrations.gguf")
    of_config = SimpleNamespace(fields=_fields(file), tensors=[SimpleNamespace(name=n) for n in file.tensors])

    def metadata(path: str, strings: Any = ()) -> Any:
        return _metadata(file, strings), tuple(file.tensors)

    replaced: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", lambda *_, **__: of_config),
        (gguf, "get_tensor_name_map", functools.lru_cache(gguf.get_tensor_name_map)),
        (of_transformers.reader, "read_gguf_metadata", metadata),
        (of_transformers, "read_gguf_metadata", metadata),
    ]
    with _lock:
        originals = [getattr(module, name) for module, name, _ in replaced]
        for module, name, value in replaced:
            setattr(module, name, value)
        try:
            yield
        finally:
            for (module, name, _), value in zip(replaced, originals):
                setattr(module, name, value)


def _metadata(file: GgufFile, strings: Any) -> dict[str, Any]:
    """As transformers' reader: of an array of strings that is not asked for, how many there are."""
    values: dict[str, Any] = {}
    for name, (types, value) in file.fields.items():
        if types == (STRING,):
            values[name] = str(value, "utf-8")
        elif types == (ARRAY, STRING):
            values[name] = [str(text, "utf-8") for text in value] if name in strings else len(value)
        else:
            values[name] = list(value) if types[0] == ARRAY else value
    return values


def _fields(file: GgufFile) -> dict[str, Any]:
    """As those of gguf's reader; of the tokenizer's arrays how many tokens there are."""
    fields = {}
    for name, (types, value) in file.fields.items():
        parts: Any = [value if types == (STRING,) else (value,)]
        data: Any = [0]
        if types[0] == ARRAY and name.startswith(_TOKENIZER):
            parts = [b"" if types[-1] == STRING else (0,)]
            data *= len(value) if name == f"{_TOKENIZER}tokens" else 0
        elif types[0] == ARRAY:
            parts = value if types[-1] == STRING else [(element,) for element in value]
            data = range(len(value))
        fields[name] = SimpleNamespace(name=name, types=list(types), parts=parts, data=data)
    return fields
