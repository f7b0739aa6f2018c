# SPDX-License-Identifier: Apache-2.0
"""Types whose width is another one on a device: `long`, and with it `size_t` and `ptrdiff_t`, has 32 bits
there and 64 on most hosts. What overflows there passes here. The SDK takes them, and its own libraries
declare local variables so, therefore that is a warning. So it is for a number without sign that is state of a
vertex, or an Input of it: what a graph writes there fills the lower half. Any other field is refused: what it
holds or points to would have another size."""

from __future__ import annotations

import os

#: these have 64 bits everywhere, though a host may make them of `long`
SAME_EVERYWHERE = ("int64_t", "uint64_t", "intmax_t", "uintmax_t", "int_least64_t", "uint_least64_t")


class Widths:
    """Finds declarations of such types in a source and its own headers."""

    def __init__(self, cindex, not_counted: tuple[str, ...]) -> None:
        self.kind, self.types = cindex.CursorKind, cindex.TypeKind
        self.not_counted = not_counted
        self.declarations = {
            self.kind.VAR_DECL: "variable",
            self.kind.FIELD_DECL: "field",
            self.kind.PARM_DECL: "parameter",
            self.kind.FUNCTION_DECL: "result of",
            self.kind.CXX_METHOD: "result of",
            self.kind.FUNCTION_TEMPLATE: "result of",
        }
        self.casts = {
            self.kind.CSTYLE_CAST_EXPR,
            self.kind.CXX_STATIC_CAST_EXPR,
            self.kind.CXX_FUNCTIONAL_CAST_EXPR,
        }

    def warnings(self, unit) -> list[str]:
        """One for each declaration or cast, with its place."""
        found: list[str] = []
        for top in unit.cursor.get_children():
            file = top.location.file
            if file is None or top.location.is_in_system_header or self.is_library(file.name):
                continue
            for c in top.walk_preorder():
                what = self.offence(c)
                if what:
                    at = c.location
                    found.append(f"{at.file.name}:{at.line}:{at.column}: {what}")
        return list(dict.fromkeys(found))

    def of_field(self, cursor) -> str | None:
        """What is wrong with a field of a vertex."""
        if self.narrows(cursor):
            return None
        at, what = cursor.location, self.offence(cursor)
        return what and f"{at.file.name}:{at.line}:{at.column}: {what}"

    def narrows(self, cursor) -> bool:
        """Whether a field is plain state of a type like size_t, or an Input of one."""
        of = cursor.type
        if of.get_canonical().spelling.replace("const ", "") == "poplar::Input<unsigned long>":
            of = of.get_template_argument_type(0)
        return of.get_canonical().kind == self.types.ULONG and self.differs(of, 0)

    def offence(self, cursor) -> str | None:
        if cursor.kind in self.casts:
            return self.message("cast", cursor.type)
        what = self.declarations.get(cursor.kind)
        if what is None:
            return None
        of = cursor.result_type if what == "result of" else cursor.type
        return self.message(f"{what} '{cursor.spelling}'", of)

    def message(self, what: str, of) -> str | None:
        if not self.differs(of, 0):
            return None
        return (
            f"{what} must have a type of the same width on host and device, got {of.spelling}, which has 32 "
            "bits on a device: use unsigned, int or uint64_t"
        )

    def differs(self, of, depth: int) -> bool:
        """Whether the type, what it points to or a template argument of it is `long`."""
        if depth > 8:
            return False
        if of.spelling.replace("const ", "").split("::")[-1] in SAME_EVERYWHERE:
            return False
        if of.kind in (self.types.LONG, self.types.ULONG):
            return True
        declaration = of.get_declaration()
        if declaration.kind in (self.kind.TYPEDEF_DECL, self.kind.TYPE_ALIAS_DECL):
            return self.differs(declaration.underlying_typedef_type, depth + 1)
        if of.kind in (self.types.POINTER, self.types.LVALUEREFERENCE, self.types.RVALUEREFERENCE):
            return self.differs(of.get_pointee(), depth + 1)
        if of.kind in (self.types.CONSTANTARRAY, self.types.INCOMPLETEARRAY, self.types.VECTOR):
            return self.differs(of.element_type, depth + 1)
        arguments = (of.get_template_argument_type(i) for i in range(max(0, of.get_num_template_arguments())))
        if any(a.kind != self.types.INVALID and self.differs(a, depth + 1) for a in arguments):
            return True
        canonical = of.get_canonical()
        return canonical != of and canonical.kind in (self.types.LONG, self.types.ULONG)

    def is_library(self, file: str) -> bool:
        path = os.path.normpath(os.path.abspath(file))
        return any(path.startswith(folder + os.sep) for folder in self.not_counted)
