# SPDX-License-Identifier: Apache-2.0
"""The type stubs of the native modules say what the modules have: every name, by mypy's stubtest; and every
parameter, default and type, by the signatures that pybind11 writes into docstrings (`inspect` does not see
these, so stubtest can not compare them)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = Path(__file__).with_name("stubtest_allowed.txt")
MODULES = ("sparq_ipu._core", "sparq_ipu._cpu")

#: how versions of pybind11 write a type, and how a stub does
SAME_TYPES = (
    (r"\b(\w+\.)+(?=\w)", ""),  # names of modules
    (r"\bSupportsInt( \| SupportsIndex)?", "int"),
    (r"\bSupportsFloat( \| SupportsIndex)?", "float"),
    (r"\bAnnotated\[ArrayLike, \w+\]|\bndarray\[[^\]]*\]", "ndarray"),
    (r"\bOptional\[([^\]]*)\]", r"\1 | None"),
    (r"\bobject\b", "Any"),
    (r"\bMapping\b", "dict"),
    (r"\b(List|Dict|Tuple)\b", lambda match: match.group().lower()),
)


def module(name: str):
    if name == "sparq_ipu._core":
        core = pytest.importorskip(name, reason="the extension module is not built")
        if not core.has_emulator:
            pytest.skip("a build against the SDK lacks the functions of the emulator")
        return core
    return pytest.importorskip(name, reason="the extension module is not built")


def plain_type(text: str) -> str:
    """A type without names of modules, in the words of the stubs."""
    for pattern, replacement in SAME_TYPES:
        text = re.sub(pattern, replacement, text)
    return text


def signature(function: ast.FunctionDef, source: str) -> str:
    def parameter(arg: ast.arg, default: ast.expr | None) -> str:
        annotation = plain_type(ast.get_source_segment(source, arg.annotation))
        annotation = re.sub(r"\blist\b", "Sequence", annotation)  # what takes a list takes any sequence
        return f"{arg.arg}: {annotation}" + ("" if default is None else f" = {ast.literal_eval(default)!r}")

    a = function.args
    assert not a.posonlyargs and a.vararg is None and a.kwarg is None, function.name
    positional = [arg for arg in a.args if arg.arg != "self"]
    defaults = [None] * (len(positional) - len(a.defaults)) + a.defaults
    parts = [parameter(*pair) for pair in zip(positional, defaults)]
    parts += ["*"] * bool(a.kwonlyargs)
    parts += [parameter(*pair) for pair in zip(a.kwonlyargs, a.kw_defaults)]
    return f"({', '.join(parts)}) -> {plain_type(ast.get_source_segment(source, function.returns))}"


def signatures_of_stub(name: str) -> dict[str, str]:
    source = (ROOT / "python" / Path(*name.split(".")).with_suffix(".pyi")).read_text()
    found = {}
    for node in ast.parse(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef):
                found[prefix + member.name] = signature(member, source)
    return found


def signature_of_docstring(doc: str) -> str:
    first = doc.splitlines()[0]
    first = re.sub(r"^\(\w+: [\w.]+\)", "getter(self)", first)  # of a property: without names
    source = f"def {first}: ..."
    return signature(ast.parse(source).body[0], source)


def signatures_of_module(name: str) -> dict[str, str]:
    found = {}
    for key, value in vars(module(name)).items():
        if isinstance(value, type):
            for member, of_class in vars(value).items():
                if isinstance(of_class, property):
                    found[f"{key}.{member}"] = signature_of_docstring(of_class.fget.__doc__)
                elif (of_class.__doc__ or "").startswith(f"{member}("):
                    found[f"{key}.{member}"] = signature_of_docstring(of_class.__doc__)
        elif callable(value):
            found[key] = signature_of_docstring(value.__doc__)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_signatures(name):
    of_module = signatures_of_module(name)
    assert of_module
    assert signatures_of_stub(name) == of_module


def test_a_changed_signature_is_seen():
    """Of every kind: a parameter's name, type and default, keyword-only or not, the result."""
    text = "f(self: a.B, x: typing.SupportsInt, *, y: str = 'a') -> list[numpy.ndarray]"
    right = signature_of_docstring(text)
    assert right == "(x: int, *, y: str = 'a') -> list[ndarray]"
    for old, new in (
        ("x:", "z:"),
        ("typing.SupportsInt", "str"),
        ("'a'", "'b'"),
        ("*, ", ""),
        ("list[numpy.ndarray]", "list"),
    ):
        assert signature_of_docstring(text.replace(old, new)) != right


def test_stubtest():
    pytest.importorskip("mypy", reason="mypy is not installed; the extra `lint` has it")
    for name in MODULES:
        module(name)
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", *MODULES, "--allowlist", ALLOWED],
        cwd=ROOT,
        env=dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(sys.path),
            MYPYPATH=os.pathsep.join([str(ROOT / "python"), str(ROOT / "reference")]),
        ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_native_module_has_a_stub():
    """One without would be untyped, and nothing would say so."""
    built = "".join((ROOT / "poplar_ops" / path / "CMakeLists.txt").read_text() for path in ("", "cpu"))
    modules = re.findall(r"pybind11_add_module\((\w+)", built)
    stubs = [path.stem for path in (ROOT / "python" / "sparq_ipu").glob("*.pyi")]
    assert sorted(stubs) == sorted(modules) == sorted(name.rpartition(".")[2] for name in MODULES)
