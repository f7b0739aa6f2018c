# SPDX-License-Identifier: Apache-2.0
"""Which declarations of SDK 3.3 the emulator's headers have: by name, parameters, numbers of arguments."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from uses import load_libclang, normalise, parse, qualified_name, split_parameters

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent / "include"
#: the emulator's headers lack these, and why
UNKNOWN = "what it gives or holds is not known"
MISSING = {
    "poplar::VertexEdgeInfo": UNKNOWN,
    "poplar::VertexEdgeInfo::StorageInfo": UNKNOWN,
    "poplar::Device::getNumaTopology()": UNKNOWN,
    "poplar::Device::getNumaNodesUsedForIPUs()": UNKNOWN,
    "poplar::StreamCallbackWithMetadata": UNKNOWN,
    "poplar::StreamCallbackWithMetadata::getMetadata()": UNKNOWN,
    "poplar::ResumableStreamCallback": UNKNOWN,
    "poplar::ResumableStreamCallback::notify()": UNKNOWN,
    "poplar::ResumableStreamCallback::isAwaiting()": UNKNOWN,
}
SHARE = 0.95

FUNCTIONS = ("CXX_METHOD", "CONSTRUCTOR", "FUNCTION_DECL", "FUNCTION_TEMPLATE")
SCOPES = ("NAMESPACE", "CLASS_DECL", "STRUCT_DECL", "CLASS_TEMPLATE", "LINKAGE_SPEC")
TYPES = ("CLASS_DECL", "STRUCT_DECL", "ENUM_DECL", "TYPEDEF_DECL", "TYPE_ALIAS_DECL", "ENUM_CONSTANT_DECL")


class Declared(NamedTuple):
    """What headers declare: types and enumerators; functions with least and most number of arguments."""

    names: frozenset[str]
    functions: dict[tuple[str, tuple[str, ...]], tuple[int, int]]


class Row(NamedTuple):
    name: str
    parameters: tuple[str, ...] | None  # None: no function
    least: int
    most: int
    text: str


def spelled(parameter: str) -> str:
    """A parameter's type without the scopes that a class's own types may be written with."""
    text = normalise(parameter)
    for scope in ("ProfileValue::", "PrintTensorFmt::", "OptionFlags::", "Engine::", "Program::"):
        text = text.replace(scope, "")
    return text


def rows() -> list[Row]:
    found = []
    for line in (HERE / "poplar_3_3_declarations.tsv").read_text().splitlines():
        if line.startswith(("#", "kind\t")):
            continue
        _, text, least, most = [*line.split("\t"), "", "", ""][:4]
        if "(" not in text:
            found.append(Row(text, None, 0, 0, text))
            continue
        name, parameters = text.replace("<>(", "(").split("(", 1)
        types = tuple(spelled(p) for p in split_parameters(parameters.rsplit(")", 1)[0]))
        found.append(Row(name, types, int(least), int(most), text))
    return found


def declared(text: str) -> Declared:
    cindex = load_libclang()
    names: set[str] = set()
    functions: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}

    def add_function(cursor: Any) -> None:
        parameters = [p for p in cursor.get_children() if p.kind.name == "PARM_DECL"]
        least = sum("=" not in [t.spelling for t in p.get_tokens()] for p in parameters)
        key = (qualified_name(cursor), tuple(spelled(p.type.spelling) for p in parameters))
        old = functions.get(key, (least, len(parameters)))
        functions[key] = (min(least, old[0]), len(parameters))

    def visit(cursor: Any) -> None:
        for child in cursor.get_children():
            if child.location.is_in_system_header:
                continue
            kind = child.kind.name
            if kind in FUNCTIONS:
                add_function(child)
            if kind in TYPES:
                names.add(qualified_name(child))
            if kind in SCOPES or kind == "ENUM_DECL":
                visit(child)

    visit(parse(cindex, HERE / "all_headers.cpp", [f"-I{INCLUDE}"], text).cursor)
    return Declared(frozenset(names), functions)


@lru_cache(maxsize=None)
def emulators() -> Declared:
    headers = sorted((INCLUDE / "poplar").glob("*.hpp"))
    try:
        return declared("".join(f"#include <poplar/{h.name}>\n" for h in headers))
    except ImportError as error:
        pytest.skip(f"no libclang: {error}")


def has(d: Declared, row: Row) -> bool:
    if row.parameters is None:
        return row.name in d.names
    counts = d.functions.get((row.name, row.parameters))
    if counts is None:  # the bindings list copies, which the compiler may make
        return is_copy(row) and row.name.rsplit("::", 1)[0] in d.names
    least, most = counts  # the bindings leave out the defaults of free functions
    return least <= row.least and row.most <= most


def is_copy(row: Row) -> bool:
    own = row.name.split("::")[-1]
    return row.parameters in ((f"const {own}&",), ("const iterator&",))


def missing(d: Declared) -> list[str]:
    return [row.text for row in rows() if not has(d, row)]


def test_the_share_of_what_the_sdk_declares(record_property: Any) -> None:
    absent, all_of_them = missing(emulators()), rows()
    share = 1 - len(absent) / len(all_of_them)
    record_property("share", share)
    assert len(all_of_them) > 700
    assert sorted(absent) == sorted(MISSING)
    assert share >= SHARE


@pytest.mark.parametrize(
    "text, found",
    [
        ("namespace poplar { class Graph { public: unsigned getNumVertices() const; }; }", True),
        ("namespace poplar { class Graph { public: unsigned getNumVertices(int) const; }; }", False),
        ("namespace poplar { class Graph { public: unsigned getNumVertices(int = 0) const; }; }", False),
        ("namespace poplar { class Grave { public: unsigned getNumVertices() const; }; }", False),
    ],
)
def test_control_a_declaration_of_another_form_is_missing(text: str, found: bool) -> None:
    assert ("poplar::Graph::getNumVertices()" not in missing(declared(text))) == found
