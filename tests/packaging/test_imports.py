# SPDX-License-Identifier: Apache-2.0
"""What imports what: no circles, and `import sparq_ipu` loads neither planning nor a backend."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Mapping

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: packages, and where they are
PACKAGES = {
    "sparq_ipu": ROOT / "python/sparq_ipu",
    "sparq_reference": ROOT / "reference/sparq_reference",
    "sparq_study": ROOT / "study/sparq_study",
}
#: modules that a cache of each device needs; "ipu" serves the emulator too
BACKENDS = ("ipu", "cpu", "reference")

Graph = Mapping[str, "set[str]"]


def modules() -> dict[str, Path]:
    """Every Python module by its name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, with_typing: bool = False) -> Iterator[tuple[int, str, str | None]]:
    """(level, module, name) of every import, in functions too; those for type checking only if asked for."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not with_typing:
            continue
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or "", alias.name) for alias in node.names)
        else:
            yield from imported(node, with_typing)


def graph(sources: Mapping[str, tuple[str, bool]], with_typing: bool = False) -> Graph:
    """Edges from each module to those that its imports execute: the module that is named, and the packages
    around it that are not around the importer too.

    Args:
        sources: name: text, and whether it is a package.
        with_typing: imports for type checking count too, except those of a package: they name what it loads
            lazily.
    """
    edges: dict[str, set[str]] = {}
    for name, (text, is_package) in sources.items():
        edges[name] = set()
        for level, module, imported_name in imported(ast.parse(text), with_typing and not is_package):
            if level:
                above = name.split(".")[: None if is_package and level == 1 else is_package - level]
                module = ".".join([*above, *([module] if module else [])])
            if imported_name and f"{module}.{imported_name}" in sources:
                module = f"{module}.{imported_name}"
            elif imported_name in ("_core", "_cpu"):  # made of C++, which imports errors alone
                continue
            parts = module.split(".")
            around = {".".join(parts[:n]) for n in range(1, len(parts))}
            executed = {module} | {package for package in around if not f"{name}.".startswith(f"{package}.")}
            edges[name] |= executed & set(sources)
    return edges


def circles(edges: Graph) -> list[list[str]]:
    """Modules that import each other, directly or by others: each circle once, and one of a module's own."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in edges[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    all_reached = {name: reached(name) for name in edges}
    found = {
        tuple(sorted(other for other in those if name in all_reached[other]))
        for name, those in all_reached.items()
        if name in those
    }
    return [list(circle) for circle in sorted(found)]


def own_graph(with_typing: bool = False) -> Graph:
    sources = {name: (path.read_text(), path.stem == "__init__") for name, path in modules().items()}
    return graph(sources, with_typing)


def test_no_circle_of_imports() -> None:
    assert circles(own_graph()) == []


def test_no_circle_of_imports_for_type_checking() -> None:
    assert circles(own_graph(with_typing=True)) == []


def test_circles_are_seen() -> None:
    """Negative control: at the top, in functions, by packages that are executed on the way."""
    plain = {"a": ("", True), "a.b": ("", False), "a.c": ("", True), "a.c.d": ("", False), "e": ("", False)}
    two = ["a.b", "a.c.d"]
    for b, d in (
        ("import a.c.d", "from a import b"),
        ("def f():\n    from a.c import d", "import a.b as b"),
        ("from .c.d import x", "from ..b import y"),
        ("from .c import d", "try:\n    from .. import b\nexcept ImportError:\n    pass"),
    ):
        assert circles(graph({**plain, "a.b": (b, False), "a.c.d": (d, False)})) == [two], (b, d)
    of_package = {**plain, "a.c": ("from a import b", True), "a.b": ("import a.c.d", False)}
    assert circles(graph(of_package)) == [["a.b", "a.c"]]
    lazy = {**plain, "a": ("def __getattr__(name):\n    import a.b", True), "a.b": ("from a import x", False)}
    assert circles(graph(lazy)) == [["a", "a.b"]]
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.c import d"
    assert circles(graph({**plain, "a.b": (typed, False), "a.c.d": ("from a import b", False)}, True)) == [
        two
    ]
    for b, d in ((typed, "from a import b"), ("import e", "import e"), ("from a.c import d", "import e")):
        assert circles(graph({**plain, "a.b": (b, False), "a.c.d": (d, False)})) == [], (b, d)


def test_nothing_that_is_installed_needs_the_study() -> None:
    edges = own_graph()
    users = {name for name, others in edges.items() if any(o.startswith("sparq_study") for o in others)}
    assert users and all(name.startswith("sparq_study") for name in users), users


def names_of(folder: Path) -> set[str]:
    """What an import calls the programs and packages of a folder."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py")}


def users_of(names: set[str], sources: Mapping[str, str]) -> list[str]:
    """Those of these sources that import one of these names."""
    return [
        source
        for source, text in sources.items()
        if any(not level and module.split(".")[0] in names for level, module, _ in imported(ast.parse(text)))
    ]


@pytest.mark.parametrize(("of", "other"), [("bench", "study"), ("study", "bench")])
def test_benches_and_studies_do_not_import_each_other(of: str, other: str) -> None:
    sources = {str(path): path.read_text() for path in (ROOT / of).rglob("*.py")}
    names = names_of(ROOT / other)
    assert {"bench": "lib", "study": "sparq_study"}[other] in names and not names & names_of(ROOT / of)
    assert users_of(names, sources) == []
    # negative control
    broken = {"a": f"def f():\n    from {sorted(names)[0]}.x import y", "b": "import numpy"}
    assert users_of(names, broken) == ["a"]


def loaded(code: str) -> list[str]:
    """Modules of the packages that a fresh process has after it has run this."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in out.splitlines()[-1].split() if name.split(".")[0] in PACKAGES]


def test_the_package_alone_loads_no_planning_and_no_backend() -> None:
    def unused(names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if name.startswith(("sparq_ipu.planning", "sparq_ipu.backends", "sparq_ipu._"))
        ]

    assert "sparq_ipu" in loaded("import sparq_ipu") and unused(loaded("import sparq_ipu")) == []
    # negative control; and what is asked for is there
    assert "sparq_ipu.planning.planner" in unused(loaded("import sparq_ipu; sparq_ipu.plan"))
    assert "sparq_ipu.planning.pod" in unused(loaded("import sparq_ipu; sparq_ipu.planning.plan_pod"))
    assert "sparq_ipu.planning.planner" in unused(loaded("from sparq_ipu import *; plan"))


def test_names_that_are_looked_up() -> None:
    import sparq_ipu

    assert set(sparq_ipu.__all__) <= set(dir(sparq_ipu))
    with pytest.raises(AttributeError, match="module 'sparq_ipu' has no attribute 'nothing'"):
        sparq_ipu.nothing  # noqa: B018


def test_a_cache_loads_the_backend_of_its_device_alone() -> None:
    names = loaded('import sparq_ipu; sparq_ipu.KVCache(1, 1, 8, 8, device="reference")')
    assert [name for name in BACKENDS if f"sparq_ipu.backends.{name}" in names] == ["reference"]
    assert not [name for name in names if name.startswith("sparq_ipu.planning")]
