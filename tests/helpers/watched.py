# SPDX-License-Identifier: Apache-2.0
"""The exact twin with every intermediate under watch.

The source of numerics.py, key_index.py, twin.py and exact_twin.py is parsed, and every operator, call and
in-place assignment is wrapped so that its result passes through a function before it is used. Nothing in the
package knows of this.
"""

from __future__ import annotations

import ast
import copy
import functools
import sys
import types
from pathlib import Path
from typing import Callable
from unittest import mock

from sparq_reference import exact_twin, key_index, numerics, twin

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
    copied = types.ModuleType(f"watched_{path.stem}")
    setattr(copied, _WATCH, watch)
    exec(_compiled(path), copied.__dict__)
    return copied


def watched_twin(watch: Callable[[object], object]) -> tuple[twin.Twin, types.ModuleType]:
    """Copies of the exact twin and of numerics, one using the other, and key_index between them; `watch(x)`
    sees every result and returns it."""
    watched_numerics, watched_index = _load(numerics, watch), _load(key_index, watch)
    base = _load(twin, watch)
    with mock.patch.dict(sys.modules, {"sparq_reference.twin": base}):  # whose Twin the copy derives from
        watched_exact = _load(exact_twin, watch)
    watched_exact.key_index = watched_index
    watched_exact.numerics = watched_numerics
    for user in (watched_exact, watched_index):
        user.to_half = watched_numerics.to_half
        user.widen = watched_numerics.widen
    return watched_exact.exact, watched_numerics
