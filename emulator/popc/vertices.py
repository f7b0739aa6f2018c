# SPDX-License-Identifier: Apache-2.0
"""Finds the vertex classes of a source file and their fields, with libclang."""

from __future__ import annotations

import functools
import subprocess
from typing import NamedTuple, Sequence

from code_size import NOT_COUNTED, CodeSize
from widths import Widths

VERTEX_BASES = {"poplar::Vertex", "poplar::MultiVertex", "poplar::SupervisorVertex"}


class PopcError(Exception):
    """Something the user must put right."""


class Vertex(NamedTuple):
    name: str  # as graphs name it: "ns::X<half,2>"
    cpp_type: str  # as C++ names it: "::ns::X<half, 2>"
    fields: list[str]
    narrower: set[str]  # of them those of state that have 32 bits on a device and 64 on the host
    tokens: int  # of its source: see CodeSize


def load_libclang():
    try:
        from clang import cindex
    except ImportError as e:
        raise PopcError(f"libclang must be installed (pip install libclang), got: {e}") from e
    try:
        cindex.Index.create()
    except Exception as e:  # the shared library is missing or does not match
        raise PopcError(f"libclang must be loadable (pip install libclang), got: {e}") from e
    return cindex


@functools.lru_cache(maxsize=None)
def system_includes(compiler: tuple) -> list[str]:
    """Include directories of the host compiler: libclang's wheel brings none of its own."""
    try:
        r = subprocess.run(
            [*compiler, "-E", "-x", "c++", "-v", "/dev/null"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as e:
        raise PopcError(f"the host compiler must be installed, got '{compiler[0]}' (set CXX)") from e
    dirs, listing = [], False
    for line in r.stderr.splitlines():
        if line.startswith("#include <...>"):
            listing = True
        elif line.startswith("End of search list"):
            break
        elif listing:
            dirs.append(line.strip())
    return dirs


def find_vertices(
    source: str, compiler: Sequence[str], flags: Sequence[str], warnings: list[str] | None = None
) -> list[Vertex]:
    """Concrete vertex classes and explicit instantiations that `source` and its own headers define.

    Adds to `warnings`. Raises PopcError with the compiler's diagnostics when the source does not parse, or
    where a field has another width on a device."""
    cindex = load_libclang()
    arguments = [*list(flags), "-x", "c++", "-Wno-everything"]
    for d in system_includes(tuple(compiler)):
        arguments += ["-isystem", d]
    unit = cindex.Index.create().parse(source, args=arguments)
    errors = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if errors:
        raise PopcError("\n".join(["the source does not parse:"] + [str(e.format()) for e in errors]))
    if warnings is not None:
        warnings += Widths(cindex, NOT_COUNTED).warnings(unit)
    finder = Finder(cindex)
    finder.visit(unit.cursor)
    return finder.vertices()


class Finder:
    def __init__(self, cindex) -> None:
        self.cindex = cindex
        self.kind = cindex.CursorKind
        self.code_size = CodeSize(cindex)
        self.widths = Widths(cindex, NOT_COUNTED)
        self.found: dict[str, Vertex] = {}

    def vertices(self) -> list[Vertex]:
        return list(self.found.values())

    def visit(self, cursor) -> None:
        for c in cursor.get_children():
            if c.location.is_in_system_header:
                continue
            if c.kind in (self.kind.NAMESPACE, self.kind.LINKAGE_SPEC, self.kind.UNEXPOSED_DECL):
                if not (c.kind == self.kind.NAMESPACE and c.spelling in ("std", "poplar")):
                    self.visit(c)
            elif c.kind in (self.kind.CLASS_DECL, self.kind.STRUCT_DECL):
                self.consider(c)

    def consider(self, cursor) -> None:
        template = self.template_of(cursor)
        definition = cursor.get_definition()
        if template is None and (definition is None or definition != cursor):
            return  # a declaration
        owner = self.definition_with_body(cursor)
        if owner is None or not self.derives_from_vertex(owner, set()):
            return
        if not cursor.spelling:
            return
        if not self.has_compute(cursor):
            return  # a base class of vertices
        name = self.vertex_name(cursor)
        fields = self.fields(cursor)
        names, narrower = [c.spelling for c in fields], {c.spelling for c in fields if self.widths.narrows(c)}
        self.found[name] = Vertex(name, self.cpp_type(cursor), names, narrower, self.tokens(cursor))

    def tokens(self, cursor) -> int:
        """Of the class and the classes that it is made from, with all that they call."""
        owner = self.definition_with_body(cursor)
        own = self.code_size.of_class(owner) if owner is not None else 0
        bases = [b for b in self.bases(cursor) if not self.qualified_name(b).startswith("poplar::")]
        return own + sum(map(self.tokens, bases))

    # ---- templates

    def template_of(self, cursor):
        """The class template an explicit instantiation or specialisation comes from, or None."""
        lib = self.cindex.conf.lib
        t = lib.clang_getSpecializedCursorTemplate(cursor)
        if t is None or t.kind.is_invalid():
            return None
        return t

    def definition_with_body(self, cursor):
        """Where fields and bases are written: the class itself, or the template it is made from."""
        has_members = any(
            c.kind in (self.kind.FIELD_DECL, self.kind.CXX_METHOD, self.kind.CXX_BASE_SPECIFIER)
            for c in cursor.get_children()
        )
        if has_members:
            return cursor
        template = self.template_of(cursor)
        if template is not None:
            return template.get_definition() or template
        return cursor.get_definition()

    def bases(self, cursor) -> list:
        """Cursors of the direct base classes (of dependent bases: their templates)."""
        owner = self.definition_with_body(cursor)
        result = []
        for c in owner.get_children() if owner is not None else []:
            if c.kind != self.kind.CXX_BASE_SPECIFIER:
                continue
            declaration = c.type.get_canonical().get_declaration()
            if declaration is None or declaration.kind == self.kind.NO_DECL_FOUND:
                for r in c.get_children():
                    if r.kind in (self.kind.TEMPLATE_REF, self.kind.TYPE_REF) and r.referenced is not None:
                        declaration = r.referenced
                        break
            if declaration is not None and declaration.kind != self.kind.NO_DECL_FOUND:
                result.append(declaration)
        return result

    def derives_from_vertex(self, cursor, seen) -> bool:
        for base in self.bases(cursor):
            name = self.qualified_name(base)
            if name in VERTEX_BASES or name == "poplar::SupervisorVertexIf":
                return True
            if self.names_vertex_in_alias(base):
                return True
            if name not in seen:
                seen.add(name)
                if self.derives_from_vertex(base, seen):
                    return True
        owner = self.definition_with_body(cursor)
        return owner is not None and any(
            c.kind == self.kind.CXX_BASE_SPECIFIER and self.mentions_vertex(c) for c in owner.get_children()
        )

    def mentions_vertex(self, base_specifier) -> bool:
        """A dependent base such as std::conditional_t<flag, SupervisorVertex, Vertex>."""
        return any(
            r.kind == self.kind.TYPE_REF
            and r.referenced is not None
            and self.qualified_name(r.referenced) in VERTEX_BASES
            for r in base_specifier.walk_preorder()
        )

    def names_vertex_in_alias(self, cursor) -> bool:
        if cursor.kind not in (self.kind.TYPE_ALIAS_DECL, self.kind.TYPEDEF_DECL):
            return False
        target = cursor.underlying_typedef_type.get_canonical().get_declaration()
        return self.qualified_name(target) in VERTEX_BASES

    # ---- fields

    def fields(self, cursor) -> list:
        """Cursors of the fields in order of declaration, those of base classes first."""
        result: list = []
        for base in self.bases(cursor):
            if not self.qualified_name(base).startswith("poplar::"):
                result += self.fields(base)
        owner = self.definition_with_body(cursor)
        members = owner.get_children() if owner is not None else []
        fields = [c for c in members if c.kind == self.kind.FIELD_DECL and c.spelling]
        wrong = [message for message in map(self.widths.of_field, fields) if message]
        if wrong:
            raise PopcError("\n".join(wrong))
        return result + fields

    def has_compute(self, cursor) -> bool:
        owner = self.definition_with_body(cursor)
        members = list(owner.get_children()) if owner is not None else []
        return any(c.kind == self.kind.CXX_METHOD and c.spelling == "compute" for c in members) or any(
            self.has_compute(base) for base in self.bases(cursor)
        )

    # ---- names

    def qualified_name(self, cursor) -> str:
        parts = [cursor.spelling]
        p = cursor.semantic_parent
        while p is not None and p.kind != self.kind.TRANSLATION_UNIT:
            if p.spelling and not p.kind.is_invalid():
                parts.append(p.spelling)
            p = p.semantic_parent
        return "::".join(reversed(parts))

    def arguments(self, cursor) -> list[tuple]:
        """(graph's text, C++ text) of each template argument."""
        template = self.template_of(cursor)
        if template is None:
            return []
        # A partial specialisation has parameters of its own, but names are made of the template's.
        while self.template_of(template) is not None:
            template = self.template_of(template)
        parameters = [
            c
            for c in template.get_children()
            if c.kind
            in (
                self.kind.TEMPLATE_TYPE_PARAMETER,
                self.kind.TEMPLATE_NON_TYPE_PARAMETER,
                self.kind.TEMPLATE_TEMPLATE_PARAMETER,
            )
        ]
        result = []
        for i, parameter in enumerate(parameters):
            kind = cursor.get_template_argument_kind(i)
            if kind == self.cindex.TemplateArgumentKind.TYPE:
                spelling = cursor.get_template_argument_type(i).get_canonical().spelling
                result.append((spelling.replace(", ", ","), spelling))
            elif kind == self.cindex.TemplateArgumentKind.INTEGRAL:
                result.append(self.integral_argument(cursor, parameter, i, result))
            else:
                raise PopcError(
                    f"template argument {i} of {cursor.displayname} must be a type or an integral value"
                )
        return result

    def integral_argument(self, cursor, parameter, i: int, previous: list[tuple]) -> tuple:
        declared = parameter.type.get_canonical()
        declaration = declared.get_declaration()
        if declaration.kind == self.kind.ENUM_DECL:
            value = cursor.get_template_argument_value(i)
            scope = self.qualified_name(declaration)
            for e in declaration.get_children():
                if e.kind == self.kind.ENUM_CONSTANT_DECL and e.enum_value == value:
                    if declaration.is_scoped_enum():
                        return (f"{scope}::{e.spelling}", f"::{scope}::{e.spelling}")
                    outer = scope.rsplit("::", 1)[0] + "::" if "::" in scope else ""
                    return (f"{outer}{e.spelling}", f"::{outer}{e.spelling}")
            raise PopcError(
                f"template argument {i} of {cursor.displayname} must be an enumerator, got {value}"
            )
        if declared.spelling == "bool":
            text = "true" if cursor.get_template_argument_value(i) else "false"
            return (text, text)
        if "unsigned" in declared.spelling:
            value = str(cursor.get_template_argument_unsigned_value(i))
        else:
            value = str(cursor.get_template_argument_value(i))
        return (value, value)

    def vertex_name(self, cursor) -> str:
        a = self.arguments(cursor)
        return self.qualified_name(cursor) + ("<" + ",".join(x[0] for x in a) + ">" if a else "")

    def cpp_type(self, cursor) -> str:
        a = self.arguments(cursor)
        return "::" + self.qualified_name(cursor) + ("<" + ", ".join(x[1] for x in a) + ">" if a else "")
