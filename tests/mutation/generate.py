# SPDX-License-Identifier: Apache-2.0
"""Generated mutants: one changed line each, by rules of universalmutator, drawn at random with a seed.

A change that cannot matter is not generated: in a comment, docstring, annotation, or the text of an error or
a log message. Neither is one that does not parse, or that names something the file does not know.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import random
import re
import warnings
from pathlib import Path
from typing import Iterator, NamedTuple

HERE = Path(__file__).resolve().parent
PYTHON, CPP = (".py",), (".cpp", ".hpp")
#: names that a rule may bring into a file
NEW_NAMES = {"min", "max", "True", "False", "None", "true", "false", "return", "pass", "list", "all", "any"}
NEW_NAMES |= {"break", "not", "and", "or", "begin", "end", "if", "elif", "while", "in", "is"}
#: calls in Python whose texts are for people
MESSAGES = {
    "fail",
    "print",
    "warn",
    "add_argument",
    "ArgumentParser",
    "info",
    "warning",
    "error",
    "exit",
    "skip",
}
#: C++ that declares or loads, where a change is no question for tests
DECLARES = re.compile(
    r"\s*(#|namespace|using|template|static_assert|extern|friend|poplar::(Input|InOut|Output)|//|\*|\.def\()"
)
_CPP_TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\')|(?P<code>\w+|[^\w\s])',
    re.DOTALL,
)


class Mutant(NamedTuple):
    """One changed line of one file."""

    file: str
    #: 1 is the first
    line: int
    old: str
    new: str

    @property
    def fingerprint(self) -> str:
        """Names the change wherever its line or file moves."""
        words = [Path(self.file).name, "".join(self.old.split()), "".join(self.new.split())]
        return hashlib.sha256("\t".join(words).encode()).hexdigest()[:12]

    def broken(self, text: str) -> str:
        """The file's text with this change."""
        lines = text.split("\n")
        assert lines[self.line - 1] == self.old, self
        return "\n".join([*lines[: self.line - 1], self.new, *lines[self.line :]])


def files_below(root: Path, paths: list[str]) -> list[str]:
    """Source files below some paths, relative to the root; tests are not broken."""
    found: list[str] = []
    for name in paths:
        path = root / name
        if not path.exists():
            raise ValueError(f"mutation: PATH must exist, got {name!r}")
        every = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in every:
            inside = file.relative_to(root)
            is_test = file.name.startswith(("test_", "conftest")) or "tests" in inside.parts
            if file.suffix in PYTHON + CPP and not is_test and "build" not in inside.parts:
                found.append(inside.as_posix())
    return list(dict.fromkeys(found))


class Generator:
    """Draws mutants of some files.

    Args:
        root: the tree.
        files: relative to it.
        seed: the same seed draws the same mutants of the same files.
    """

    def __init__(self, root: Path, files: list[str], seed: int) -> None:
        self._texts = {file: (root / file).read_text(encoding="utf-8") for file in files}
        self._random = random.Random(seed)
        self._meaning: dict[str, object] = {}

    def draw(self) -> Iterator[Mutant]:
        """Different mutants without an end, as long as there are more: a file by its length, then a line,
        then one of the changes of that line."""
        places = [
            (file, number)
            for file, text in self._texts.items()
            for number, line in enumerate(text.split("\n"), 1)
            if re.search(r"\w", line)
        ]
        self._random.shuffle(places)
        for file, number in places:
            changes = list(self._changes(file, number))
            if changes:
                yield self._random.choice(changes)

    def _changes(self, file: str, number: int) -> Iterator[Mutant]:
        text = self._texts[file]
        old = text.split("\n")[number - 1]
        in_python = file.endswith(PYTHON)
        is_end_of_vertex = "/codelets/" in file and old.strip() == "return true;"
        if in_python and re.match(r"\s*(_?log|logger|logging)\.\w+\(", old):
            return
        if not in_python and (DECLARES.match(old) or is_end_of_vertex):
            return
        for new in self._random.sample(*_all_of(by_rules(old, "python" if in_python else "cpp"))):
            mutant = Mutant(file, number, old, new)
            if self._matters(mutant, text, in_python):
                yield mutant
                return  # the order is random already

    def _matters(self, mutant: Mutant, text: str, in_python: bool) -> bool:
        before = self._meaning.setdefault(mutant.file, meaning(text, in_python))
        if _ordered(mutant.old) == _ordered(mutant.new):
            return False
        broken = mutant.broken(text)
        if not set(re.findall(r"[A-Za-z_]\w*", mutant.new)) <= self._names(mutant.file) | NEW_NAMES:
            return False
        after = meaning(broken, in_python)
        return after is not None and after != before

    def _names(self, file: str) -> set[str]:
        return set(re.findall(r"[A-Za-z_]\w*", self._texts[file]))


def _ordered(line: str) -> str:
    """The line with the arguments of functions that do not care in one order."""

    def one(found: re.Match[str]) -> str:
        return found[1] + ", ".join(sorted((found[2], found[3])))

    return re.sub(r"((?:min|max|minimum|maximum|smaller|larger|gcd)\()([\w.]+), ([\w.]+)", one, line)


def _all_of(items: list[str]) -> tuple[list[str], int]:
    return items, len(items)


def by_rules(line: str, language: str) -> list[str]:
    """What the rules make of a line."""
    from universalmutator import mutator

    rules = [str(HERE / "universal.rules"), str(HERE / f"{language}.rules")]
    with contextlib.redirect_stdout(io.StringIO()):
        found = mutator.mutants_regexp([line + "\n"], ruleFiles=rules, ignorePatterns=[])
    return [changed[1].rstrip("\n") for changed in found]


def meaning(text: str, in_python: bool) -> object:
    """What tests may look at of a source: equal for two texts that differ in comments, docstrings,
    annotations and messages alone. None: it does not parse."""
    if not in_python:
        return [m["code"] or '""' for m in _CPP_TOKEN.finditer(text) if not m["comment"]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _Meaning().visit(ast.parse(text))
            compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return ast.dump(tree)


class _Meaning(ast.NodeTransformer):
    """Leaves out of a syntax tree what tests do not look at."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_docstring = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_docstring else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(0)
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST | None:
        return None

    def visit_If(self, node: ast.If) -> ast.AST | None:
        guards = [n for n in ast.walk(node.test) if isinstance(n, (ast.Name, ast.Attribute))]
        names = {n.id if isinstance(n, ast.Name) else n.attr for n in guards}
        return None if "TYPE_CHECKING" in names else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return _without_texts(self.generic_visit(node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        node = self.generic_visit(node)
        if name in MESSAGES:
            for argument in [
                *node.args,
                *(k.value for k in node.keywords if k.arg not in ("type", "default")),
            ]:
                _without_texts(argument)
        return node


def _without_texts(node: ast.AST) -> ast.AST:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = ""
        elif isinstance(part, ast.JoinedStr):
            part.values = []
    return node
