# SPDX-License-Identifier: Apache-2.0
"""Every use of the poplar API in the sources that run on hardware, against the declarations of SDK 3.3.

The emulator's headers are what the sources are compiled with here; so where a call and the SDK's declaration
agree in name, parameter types and number of arguments, the emulator's declaration agrees too.
"""

from __future__ import annotations

import atexit
import os
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pybind11
import pytest
from sdk import Sdk
from uses import (
    Call,
    Declaration,
    NameUse,
    TypeUse,
    Use,
    is_copy_or_move,
    load_libclang,
    normalise,
    parse,
    qualified_name,
    uses,
)

pytestmark = pytest.mark.slow  # every source is parsed
ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "poplar_ops"
FOLDERS = ("src", "popart", "codelets")
PROBES = ROOT / "bench" / "day" / "probes.cpp"
OWN = [*(OPS / folder for folder in (*FOLDERS, "include", "bindings")), PROBES.parent]
SOURCES = sorted(source for folder in FOLDERS for source in (OPS / folder).rglob("*.cpp"))
SOURCES.append(PROBES)
FLAGS = [
    *(f"-I{OPS / folder}" for folder in ("include", "src", "codelets", "bindings", ".")),
    f"-I{ROOT / 'emulator' / 'include'}",
    *(f"-I{folder}" for folder in (pybind11.get_include(), sysconfig.get_path("include"))),
    f"-I{ROOT / 'tests' / 'popart' / 'include'}",
    '-DSPARQ_CODELETS_DIR="codelets"',
]

#: overloads that only the SDK has, with as many arguments as calls of ours, and why none can mean them
RIVALS: dict[str, str] = {}
#: headers whose declarations the emulator's overloads are taken from
HEADERS = (
    "CSRFunctions",
    "CycleCount",
    "Engine",
    "DeviceManager",
    "Graph",
    "IPUModel",
    "OptionFlags",
    "Program",
    "Vertex",
)
#: of the C++ library, what most sources include
OF_THE_LIBRARY = (
    "algorithm",
    "cstring",
    "functional",
    "limits",
    "map",
    "memory",
    "optional",
    "sstream",
    "vector",
)


@lru_cache(maxsize=None)
def uses_of(source: Path) -> tuple[Use, ...]:
    unit = parse(cindex(), source, [*FLAGS, *headers_once()])
    found = tuple(uses(cindex(), unit, OWN, known_headers))
    known_headers.update(str(inclusion.include) for inclusion in unit.get_includes())
    return found


#: uses in them are those of the first source that includes them
known_headers: set[str] = set()


@lru_cache(maxsize=None)
def headers_once() -> tuple[str, str]:
    """Flags with which the headers of others, most of each source, are not parsed again."""
    text = "".join(f"#include <poplar/{header}.hpp>\n" for header in HEADERS)
    text += "".join(f"#include <{header}>\n" for header in OF_THE_LIBRARY)
    handle, file = tempfile.mkstemp(".pch")
    os.close(handle)
    atexit.register(os.unlink, file)
    parse(cindex(), OPS / "src" / "headers.cpp", FLAGS, text).save(file)
    return "-include-pch", file


@lru_cache(maxsize=None)
def cindex() -> Any:
    try:
        return load_libclang()
    except Exception as error:
        pytest.skip(f"no libclang: {error}")


@lru_cache(maxsize=None)
def sdk() -> Sdk:
    return Sdk()


def uses_in_text(text: str) -> list[Use]:
    """Uses of a source file of ours that has this text."""
    file = OPS / "src" / "control.cpp"
    return list(uses(cindex(), parse(cindex(), file, [*FLAGS, *headers_once()], text), OWN))


def all_calls() -> list[Call]:
    return [use for source in SOURCES for use in uses_of(source) if isinstance(use, Call)]


def declared_by_emulator() -> set[tuple[str, tuple[str, ...]]]:
    """Name and parameters of every function in the emulator's headers."""
    text = "".join(f"#include <poplar/{header}.hpp>\n" for header in HEADERS)
    found = set()
    functions = ("CXX_METHOD", "CONSTRUCTOR", "FUNCTION_DECL", "FUNCTION_TEMPLATE", "CONVERSION_FUNCTION")

    def visit(cursor: Any) -> None:
        for child in cursor.get_children():
            kind = child.kind.name
            if kind in functions:
                parameters = (p.type.spelling for p in child.get_children() if p.kind.name == "PARM_DECL")
                found.add((qualified_name(child), tuple(normalise(p) for p in parameters)))
            elif kind in ("CLASS_DECL", "STRUCT_DECL", "CLASS_TEMPLATE", "FRIEND_DECL") or (
                kind == "NAMESPACE" and child.spelling in ("poplar", "program", "field")
            ):
                visit(child)

    visit(parse(cindex(), OPS / "src" / "headers.cpp", FLAGS, text).cursor)
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: f"{source.parent.name}/{source.name}")
def test_every_use_is_declared_by_the_sdk(source: Path) -> None:
    problems = [problem for use in uses_of(source) if (problem := sdk().problem(use))]
    assert not problems, "\n".join(problems)


def test_the_uses_are_found() -> None:
    """The search sees calls of every kind: members, constructors, free functions, templates, fields."""
    calls = all_calls()
    names = {call.declaration.name for call in calls}
    assert {
        "poplar::Graph::connect",
        "poplar::Tensor::slice",
        "poplar::program::Copy::Copy",
        "poplar::program::RepeatWhileTrue::RepeatWhileTrue",
        "poplar::concat",
        "poplar::Graph::addConstant",
        "poplar::Input::operator*",
        "poplar::MultiVertex::numWorkers",
        "poplar::Graph::addRemoteBuffer",
    } <= names
    assert len(calls) > 500
    inside_templates = {use.name for source in SOURCES for use in uses_of(source) if isinstance(use, NameUse)}
    assert "poplar::Graph::setInitialValue" in inside_templates
    for folder in FOLDERS:
        found = [use for source in SOURCES if source.parent.name == folder for use in uses_of(source)]
        assert {use.name for use in found if isinstance(use, TypeUse)}, folder


def test_emulator_declares_used_functions_as_the_sdk_does() -> None:
    """All of its overloads of a function in use, not only those that are called."""
    used = {call.declaration.name for call in all_calls() if not is_copy_or_move(call.declaration)}
    wrong = []
    for name, parameters in sorted(declared_by_emulator()):
        # of an operator only the overload for the types in use counts, which the test above checks
        if name in used and "::operator" not in name and not is_copy_or_move(Declaration(name, parameters)):
            if parameters not in [o.parameters for o in sdk().functions.get(name, [])]:
                wrong.append(str(Declaration(name, parameters)))
    assert not wrong, "\n".join(wrong)


def test_no_call_can_mean_an_overload_that_only_the_sdk_has() -> None:
    assert sdk().rivals(all_calls(), declared_by_emulator()) == set(RIVALS)


def test_no_declaration_is_kept_that_nothing_uses() -> None:
    used = {call.declaration.name for call in all_calls()}
    used |= {use.name for source in SOURCES for use in uses_of(source) if not isinstance(use, Call)}
    used |= {name for name, _ in declared_by_emulator()}
    kept = {
        name for name, overloads in sdk().functions.items() if not all(o.from_bindings for o in overloads)
    }
    assert kept <= used


# ---- controls: a wrong use is found

PROLOGUE = "#include <poplar/Graph.hpp>\n#include <poplar/Program.hpp>\nusing namespace poplar;\n"


@pytest.mark.parametrize(
    "text, problem",
    [
        (
            "namespace poplar { void invented(int); } void f() { poplar::invented(1); }",
            "control.cpp:4: no function poplar::invented",
        ),
        (
            "namespace poplar { struct Invented { void go(); }; } void f(poplar::Invented &x) { x.go(); }",
            "control.cpp:4: no function poplar::Invented::go",
        ),
        (
            "namespace poplar { struct Invented {}; } void f(poplar::Invented &);",
            "control.cpp:4: no type poplar::Invented",
        ),
        (
            "namespace poplar { Tensor concat(int); } void f() { poplar::concat(1); }",
            "control.cpp:4: no overload poplar::concat(int)",
        ),
        (
            "namespace poplar { template <class T> void invented(T); }\n"
            "template <class T> void f(T x) { poplar::invented(x); }",
            "control.cpp:5: no function poplar::invented",
        ),
    ],
)
def test_control_wrong_uses_are_found(text: str, problem: str) -> None:
    found = [p for use in uses_in_text(PROLOGUE + text) if (p := sdk().problem(use))]
    assert problem in found


def test_control_right_uses_are_not_found_wrong() -> None:
    text = (
        'void f(Graph &g, program::Sequence &s) { Tensor t = g.addVariable(HALF, {2, 3}, {"t"});'
        ' g.setTileMapping(t, 0); s.add(program::Copy(t.slice(0, 1), t.slice(1, 2), false, {"c"})); }'
    )
    found = uses_in_text(PROLOGUE + text)
    assert len(found) > 10
    assert [p for use in found if (p := sdk().problem(use))] == []


@pytest.mark.parametrize(
    "name, change",
    [
        ("poplar::Graph::connect", lambda o: o._replace(parameters=(*o.parameters[:-1], "Tensor&"))),
        ("poplar::program::Copy::Copy", lambda o: o._replace(most=3)),
        ("poplar::Tensor::slice", lambda o: o._replace(least=4, most=4)),
        ("poplar::Engine::writeTensor", lambda o: o._replace(parameters=o.parameters[:-1])),
        ("poplar::Graph::setInitialValue", None),
        ("poplar::Input::operator*", None),
    ],
)
def test_control_another_sdk_is_found(name: str, change: Any) -> None:
    """With one function declared otherwise, or gone, the sources no longer fit."""
    other = Sdk()
    if change is None:
        del other.functions[name]
    else:
        other.functions[name] = [change(o) for o in other.functions[name]]
    problems = [p for source in SOURCES for use in uses_of(source) if (p := other.problem(use))]
    assert problems and all(name in problem for problem in problems)
