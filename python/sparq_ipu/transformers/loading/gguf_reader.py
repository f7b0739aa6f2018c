# SPDX-License-Identifier: Apache-2.0
"""A parsed GGUF file in place of `gguf.GGUFReader`, so that transformers does not parse it once more."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from types import SimpleNamespace
from typing import Any, Iterator

import gguf

from sparq_ipu.transformers.loading.gguf_file import GgufFile

_lock = threading.Lock()


@contextlib.contextmanager
def parsed(file: GgufFile) -> Iterator[None]:
    """In this context transformers gets the fields of `file` from its readers, and maps of names once."""
    # transformers reads a tokenizer by a reader of its own, and a config by gguf's
    of_transformers: Any = importlib.import_module("transformers.integrations.gguf")
    # of the tokenizer's arrays a config takes the number of tokens alone
    counted = {
        name: SimpleNamespace(types=[gguf.GGUFValueType.UINT8], parts=[[0]], data=[0] * len(value))
        for name, value in file.fields.items()
        if name.startswith("tokenizer.ggml.") and isinstance(value, list)
    }
    of_config = SimpleNamespace(fields={**file.raw_fields, **counted}, tensors=list(file.tensors.values()))

    def metadata(path: str, strings: Any = ()) -> Any:
        """Of an array of strings that is not asked for, how many there are."""
        values = {
            name: len(value)
            if isinstance(value, list) and name not in strings and isinstance((value or [0])[0], str)
            else value
            for name, value in file.fields.items()
        }
        return values, tuple(file.tensors)

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
