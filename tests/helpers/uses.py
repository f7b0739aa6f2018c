# SPDX-License-Identifier: Apache-2.0
"""What a source file uses of the poplar API, with libclang: every call and every named type.

Calls are those of the file itself and of this project's own headers, resolved as the compiler resolves them:
overload, implicit constructors and default arguments included.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterator, Sequence, Union


@dataclass(frozen=True)
class Declaration:
    """A function of the API: qualified name and parameter types, both normalised."""

    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


@dataclass(frozen=True)
class Call:
    """A call of `declaration` with `n_arguments` given."""

    declaration: Declaration
    n_arguments: int
    where: str


@dataclass(frozen=True)
class NameUse:
    """A function whose overload the compiler has yet to choose: a call inside a template."""

    name: str
    where: str


@dataclass(frozen=True)
class TypeUse:
    """A type or an enumerator of the API, by qualified name."""

    name: str
    where: str


Use = Union[Call, NameUse, TypeUse]

_SPELLINGS = (
    (r"\b(?:poplar::|program::|gccs::|std::|typename )", ""),
    (r"\b(?:size_t|uint64_t|unsigned long)\b", "u64"),
    (r"\buint32_t\b", "unsigned"),
    (r"\buint16_t\b", "unsigned short"),
    (r"\bint32_t\b", "int"),
    (r"\bunsigned int\b", "unsigned"),
    (r"\b(?:\w+::)?(?=TileToTensorMapping|ConnectionDesc)", ""),
    (r"\s*([&*<>,])\s*", r"\1"),
)


#: declarations that a use by name alone may refer to
_NAMED = (
    *("CLASS_DECL", "STRUCT_DECL", "CLASS_TEMPLATE", "ENUM_DECL", "ENUM_CONSTANT_DECL"),
    *("TYPEDEF_DECL", "TYPE_ALIAS_DECL", "VAR_DECL"),
)


def normalise(type_name: str) -> str:
    """One spelling of a parameter type for all namespaces and aliases it may be written with."""
    for pattern, replacement in _SPELLINGS:
        type_name = re.sub(pattern, replacement, type_name)
    return re.sub(r"\s+", " ", type_name).strip()


def split_parameters(text: str) -> list[str]:
    """The parameters of a list, cut at the commas outside of all brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += c in "<({"
        depth -= c in ">)}"
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    rest = text[start:].strip()
    return [p.strip() for p in parts] + ([rest] if rest else [])


def load_libclang() -> Any:
    """clang.cindex with a library that loads; raises ImportError or what libclang raises."""
    from clang import cindex

    cindex.Index.create()
    return cindex


@lru_cache(maxsize=None)
def system_includes() -> list[str]:
    """Include directories of the host's compiler: libclang's wheel has none of its own."""
    compiler = os.environ.get("CXX", "c++")
    done = subprocess.run(
        [compiler, "-E", "-x", "c++", "-v", "/dev/null"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    listing = done.stderr.split("#include <...>", 1)[1].split("End of search list")[0]
    return [line.strip() for line in listing.splitlines()[1:]]


def parse(cindex: Any, source: Path, flags: Sequence[str], text: str | None = None) -> Any:
    """The translation unit; `text` in place of the file's contents.

    Raises:
        ValueError: it does not compile.
    """
    arguments = ["-x", "c++", "-std=c++17", "-Wno-everything", *flags]
    for directory in system_includes():
        arguments += ["-isystem", directory]
    unsaved = [(str(source), text)] if text is not None else None
    unit = cindex.Index.create().parse(str(source), args=arguments, unsaved_files=unsaved)
    errors = [d.format() for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if errors:
        raise ValueError(f"parse: {source} must compile, got {errors[0]}")
    return unit


def qualified_name(cursor: Any) -> str:
    parts = []
    while cursor is not None and cursor.kind.name != "TRANSLATION_UNIT":
        name = cursor.spelling
        if name and not cursor.kind.is_preprocessing():
            parts.append(re.sub(r"<.*", "", name) if not name.startswith("operator") else name)
        cursor = cursor.semantic_parent
    return "::".join(reversed(parts))


def declaration_of(cindex: Any, function: Any) -> Declaration:
    """As written in the header: of a template, its pattern rather than its instance."""
    template = cindex.conf.lib.clang_getSpecializedCursorTemplate(function)
    pattern = template if template is not None and template.kind.is_declaration() else function
    name = qualified_name(function)
    parameters = tuple(
        normalise(child.type.spelling) for child in pattern.get_children() if child.kind.name == "PARM_DECL"
    )
    return Declaration(name, parameters)


def _is_given(argument: Any) -> bool:
    return argument is not None and argument.extent.start.offset != argument.extent.end.offset


def is_copy_or_move(declaration: Declaration) -> bool:
    """Copies and moves are not held against the SDK: the compiler says what a class allows."""
    *scope, function = declaration.name.split("::")
    own = {f"const {scope[-1]}&", f"{scope[-1]}&&"} if scope else set()
    if function == "operator=" and not declaration.parameters:
        return True  # that of a class without one of its own, of which libclang says no parameters
    return (
        function in (scope[-1], "operator=")
        and len(declaration.parameters) == 1
        and (declaration.parameters[0] in own)
    )


def uses(cindex: Any, unit: Any, own: Sequence[Path], known: Sequence[str] = ()) -> Iterator[Use]:
    """Calls and types of namespace poplar in the files below the directories `own`, but for files that are
    `known` from another unit."""
    roots = tuple(str(p.resolve()) + os.sep for p in own)

    @lru_cache(maxsize=None)  # asked for each declaration of each header
    def is_own(file: str) -> bool:
        return os.path.realpath(file).startswith(roots) and file not in known

    def mine(cursor: Any) -> bool:
        file = cursor.location.file
        return file is not None and is_own(file.name)

    def visit(cursor: Any) -> Iterator[Use]:
        for child in cursor.get_children():
            if (
                child.semantic_parent is not None
                and cursor.kind.name == "TRANSLATION_UNIT"
                and not mine(child)
            ):
                continue
            yield from one(child)
            yield from visit(child)

    def where(location: Any) -> str:
        return f"{Path(location.file.name).name}:{location.line}"

    def one(cursor: Any) -> Iterator[Use]:
        location = cursor.location
        if location.file is None:
            return
        kind = cursor.kind.name
        if kind == "OVERLOADED_DECL_REF":
            lib = cindex.conf.lib
            if lib.clang_getNumOverloadedDecls(cursor):
                name = qualified_name(lib.clang_getOverloadedDecl(cursor, 0))
                # Not an operator: in a template those of iterators list poplar's, which is in scope.
                if name.startswith("poplar::") and not name.startswith("poplar::operator"):
                    yield NameUse(name, where(location))
            return
        target = cursor.referenced
        if target is None:
            return
        name = qualified_name(target)
        if not name.startswith("poplar::"):
            return
        if kind == "CALL_EXPR":
            given = sum(_is_given(a) for a in cursor.get_arguments())
            yield Call(declaration_of(cindex, target), given, where(location))
        elif target.kind.name in _NAMED:
            yield TypeUse(name, where(location))

    return visit(unit.cursor)
