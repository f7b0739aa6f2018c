# SPDX-License-Identifier: Apache-2.0
"""The exact twin with every intermediate under watch.

The source of numerics.py, key_index.py and exact.py is parsed, and every operator, call and in-place
assignment is wrapped so that its result passes through a function before it is used. Nothing in the package
knows of this.
"""

from __future__ import annotations

import ast
import copy
import functools
import types
from pathlib import Path
from typing import Callable

from sparq_reference import exact, key_index, numerics

_WATCH = "__watch__"


class _Wrap(ast.NodeTransformer):
    def _wrap(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(func=ast.Name(id=_WATCH, ctx=ast.Load()), args=[node], keywords=[])

    visit_BinOp = visit_UnaryOp = _wrap

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "empty":
            return node  # memory, not a result
        return self._wrap(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        # the product in `a += b * c` is one intermediate, the sum another: look at the target afterwards
        self.generic_visit(node)
        target = copy.deepcopy(node.target)
        target.ctx = ast.Load()
        look = ast.Call(func=ast.Name(id=_WATCH, ctx=ast.Load()), args=[target], keywords=[])
        return [node, ast.Expr(look)]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [statement for old in node.body for statement in _as_list(self.visit(old))]
        return node  # not its annotations and defaults


def _as_list(x: object) -> list:
    return x if isinstance(x, list) else [x]


@functools.lru_cache(maxsize=None)
def _compiled(path: Path) -> types.CodeType:
    tree = ast.fix_missing_locations(_Wrap().visit(ast.parse(path.read_text(encoding="utf-8"))))
    return compile(tree, str(path), "exec")


def _load(module: types.ModuleType, watch: Callable[[object], object]) -> types.ModuleType:
    path = Path(module.__file__)
    twin = types.ModuleType(f"watched_{path.stem}")
    setattr(twin, _WATCH, watch)
    exec(_compiled(path), twin.__dict__)
    return twin


def watched_twin(watch: Callable[[object], object]) -> tuple[types.ModuleType, types.ModuleType]:
    """Copies of exact and numerics, one using the other, and key_index between them; `watch(x)` sees every
    result and returns it."""
    watched_numerics = _load(numerics, watch)
    watched_exact = _load(exact, watch)
    watched_exact.key_index = _load(key_index, watch)
    watched_exact.numerics = watched_numerics
    for user in (watched_exact, watched_exact.key_index):
        user.to_half = watched_numerics.to_half
        user.widen = watched_numerics.widen
    return watched_exact, watched_numerics
