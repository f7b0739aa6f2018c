# SPDX-License-Identifier: Apache-2.0
"""How large a vertex is as source: what the library estimates the size of its code from."""

from __future__ import annotations

import os

HERE = os.path.dirname(os.path.abspath(__file__))
#: of the emulator: what they define costs nothing on a device, or is counted where it is used
NOT_COUNTED = (os.path.normpath(os.path.join(HERE, "..", "include")), HERE)


class CodeSize:
    """Tokens of vertex classes and of what they call. The count depends on the source alone, not on the host
    or its compiler, so all machines find the same memory."""

    def __init__(self, cindex) -> None:
        self.cindex = cindex
        self.kind = cindex.CursorKind
        self.functions = {
            self.kind.FUNCTION_DECL,
            self.kind.FUNCTION_TEMPLATE,
            self.kind.CXX_METHOD,
            self.kind.CONSTRUCTOR,
            self.kind.CONVERSION_FUNCTION,
        }
        self.known: dict[str, int] = {}

    def of_class(self, cursor) -> int:
        """Of the class: its members, and each time they call a function of the codelets, that function."""
        return self.with_calls(cursor, set())

    def with_calls(self, cursor, callers: set[str]) -> int:
        key = self.key(cursor)
        if key in callers:  # recursion: a call, no copy
            return 0
        if key not in self.known:
            inside = callers | {key}
            self.known[key] = self.tokens(cursor) + sum(
                self.with_calls(function, inside) for function in self.called(cursor)
            )
        return self.known[key]

    def tokens(self, cursor) -> int:
        comment = self.cindex.TokenKind.COMMENT
        return sum(token.kind != comment for token in cursor.get_tokens())

    def called(self, cursor) -> list:
        """Definitions of functions that it names, once for each time; those of the class itself are part of
        its tokens."""
        start, end = cursor.extent.start, cursor.extent.end
        result = []
        for c in cursor.walk_preorder():
            for target in self.targets(c):
                definition = target.get_definition()
                if definition is None or definition.kind not in self.functions:
                    continue
                at = definition.location
                if at.file is None or at.is_in_system_header or self.is_not_counted(at.file.name):
                    continue
                within = at.file.name == start.file.name and start.offset <= at.offset < end.offset
                if not within:
                    result.append(definition)
        return result

    def targets(self, cursor) -> list:
        """What a name stands for. One with template arguments that are not known yet may stand for several
        functions: the first of them counts."""
        if cursor.kind == self.kind.OVERLOADED_DECL_REF:
            lib = self.cindex.conf.lib
            if lib.clang_getNumOverloadedDecls(cursor):
                return [lib.clang_getOverloadedDecl(cursor, 0)]
            return []
        if cursor.kind in (self.kind.DECL_REF_EXPR, self.kind.MEMBER_REF_EXPR) and cursor.referenced:
            return [self.template_of(cursor.referenced)]
        return []

    def template_of(self, function):
        """Where the text of a function is: an instance of a template has none of its own."""
        template = self.cindex.conf.lib.clang_getSpecializedCursorTemplate(function)
        return function if template is None or template.kind.is_invalid() else template

    def is_not_counted(self, file: str) -> bool:
        path = os.path.normpath(os.path.abspath(file))
        return any(path.startswith(folder + os.sep) for folder in NOT_COUNTED)

    def key(self, cursor) -> str:
        at = cursor.extent.start
        return f"{at.file.name if at.file else ''}:{at.offset}"
