# SPDX-License-Identifier: Apache-2.0
"""The format of the conformance vectors (docs/vectors.md): one reader, which tests use, and one writer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import numpy as np

#: the folder of the newest version, and the list of its files with their sums
FOLDER = Path(__file__).resolve().parent / "v1"
SUMS = "SHA256SUMS"
VERSION = 1
_WORDS = 10  # of 32 bits: a record's kind, the bytes of its arrays, its numbers

#: kinds of records: their code, their numbers, and their arrays
KINDS: dict[str, tuple[int, list[str], list[str]]] = {
    "cache": (
        int.from_bytes(b"SPRQ", "little"),
        "version batch n_kv_heads n_heads head_dim capacity index_bits row_bits".split(),
        [],
    ),
    "append": (1, ["n_tokens"], ["lengths", "key", "value"]),
    "truncate": (2, [], ["lengths"]),
    "reorder": (3, [], ["index"]),
    "reset": (4, [], []),
    "observe": (5, "n_tokens top_k n_local n_recent".split(), ["query"]),
    "dense": (6, [], ["query", "output"]),
    "sparq": (
        7,
        "rank top_k n_local mean_value width".split(),
        ["query", "output", "components", "positions"],
    ),
    "window": (8, "top_k n_local n_recent width".split(), ["query", "output", "positions"]),
    "rows": (9, ["n_positions"], ["lengths", "key", "value"]),
    "shares": (10, ["n_positions"], ["sums"]),
    "first": (  # nothing has number 11
        12,
        "rank top_k n_local mean_value width index_components".split(),
        ["query", "output", "components", "positions"],
    ),
    "prompt": (
        13,
        "n_tokens n_positions integers window blocks blocks_from".split(),
        ["starts", "query", "key", "value", "output"],
    ),
}
#: records of SparQ attention from another key index, and the option of the cache that says which
INDEX_OF = {"first": "index_components"}
_OF_CODE = {code: kind for kind, (code, _, _) in KINDS.items()}


class Record(NamedTuple):
    """One call and what it must give, or one thing that the cache must hold."""

    kind: str
    numbers: dict[str, int]
    arrays: dict[str, np.ndarray]


def _layout(kind: str, n: dict[str, int], of: dict[str, int]) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Type and shape of each array of a record; `of`: the numbers of the cache."""
    batch, n_kv_heads, n_heads, head_dim = (of[x] for x in "batch n_kv_heads n_heads head_dim".split())
    n_rows = n.get("n_tokens", n.get("n_positions", 0))
    is_prompt, i32 = kind == "prompt", "<i4"
    row = batch, n_kv_heads, n["n_positions"] if is_prompt else n_rows, head_dim
    width = n.get("width", 0)
    every = {
        "lengths": (i32, (batch,)),
        "index": (i32, (batch,)),
        "starts": (i32, (batch,)),
        "key": ("<f2", row),
        "value": ("<f2", row),
        "query": (
            "<f2",
            (batch, n_heads, n_rows, head_dim)
            if kind in ("observe", "prompt")
            else (batch, n_heads, head_dim),
        ),
        "output": (
            ("<f4", (batch, n_rows, n_heads, head_dim)) if is_prompt else ("<f2", (batch, n_heads, head_dim))
        ),
        "components": (i32, (batch, n_kv_heads, n.get("rank", 0))),
        "positions": (i32, (batch, width) if kind == "window" else (batch, n_kv_heads, width)),
        "sums": ("<u4", (batch, n_rows)),
    }
    return {name: every[name] for name in KINDS[kind][2]}


def to_bytes(records: list[Record]) -> bytes:
    """A file of these records, of which the first is the cache."""
    of = records[0].numbers
    parts: list[bytes] = []
    for kind, numbers, arrays in records:
        code, names, _ = KINDS[kind]
        assert list(numbers) == names, (kind, numbers)
        layout = _layout(kind, numbers, of)
        content = b""
        for name, (dtype, shape) in layout.items():
            array = np.ascontiguousarray(arrays[name], dtype)
            assert array.shape == shape, (kind, name, array.shape, shape)
            content += array.tobytes()
        words = np.zeros(_WORDS, "<i4")
        words[: 2 + len(numbers)] = [code, len(content), *numbers.values()]
        parts += [words.tobytes(), content]
    return b"".join(parts)


def from_bytes(content: bytes) -> Iterator[Record]:
    """The records of a file.

    Raises:
        ValueError: it is not such a file, of this version.
    """
    at = 0
    of: dict[str, int] = {}  # the numbers of the cache
    while at < len(content):
        words = np.frombuffer(content, "<i4", _WORDS, at)
        kind = _OF_CODE.get(int(words[0]), "")
        if not kind or (kind == "cache") != (at == 0):
            raise ValueError(f"record at byte {at}: its kind must be one of docs/vectors.md, got {words[0]}")
        at += words.nbytes
        end = at + int(words[1])
        numbers = dict(zip(KINDS[kind][1], map(int, words[2:])))
        of = of or numbers
        if of["version"] != VERSION:
            raise ValueError(f"the version must be {VERSION}, got {of['version']}")
        arrays = {}
        for name, (dtype, shape) in _layout(kind, numbers, of).items():
            arrays[name] = np.frombuffer(content, dtype, int(np.prod(shape)), at).reshape(shape)
            at += arrays[name].nbytes
        if at != end:
            raise ValueError(f"{kind}: its arrays must end at byte {end}, got {at}")
        yield Record(kind, numbers, arrays)


def sums_of(folder: Path) -> str:
    """The text of SHA256SUMS, as `sha256sum *.vec` prints it."""
    files = sorted(folder.glob("*.vec"))
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)


def read(file: Path) -> list[Record]:
    """The records of a file of a folder with sums.

    Raises:
        ValueError: it is not what the sum says, or not such a file.
    """
    content = file.read_bytes()
    line = f"{hashlib.sha256(content).hexdigest()}  {file.name}"
    if line not in (file.parent / SUMS).read_text(encoding="utf-8").splitlines():
        raise ValueError(f"{file.name}: its SHA-256 must be in {SUMS}, got another one")
    return list(from_bytes(content))
