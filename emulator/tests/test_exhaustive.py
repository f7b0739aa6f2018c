# SPDX-License-Identifier: Apache-2.0
"""A new class of program, step or field can not be forgotten: no source compiles until it handles it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import builds
import pytest

EMULATOR = Path(__file__).resolve().parents[1]

#: of the library
FLAGS = re.findall(
    r"target_compile_options\(poplar_emulator PRIVATE ([^)]*)\)", (EMULATOR / "CMakeLists.txt").read_text()
)[0].split()

#: enumeration: the header that defines it, and the sources that must say what each of its values means
ENUMERATIONS = {
    "ProgramKind": (
        "src/program_impl.hpp",
        ["compile.cpp", "control_slice.cpp", "liveness.cpp"],
    ),
    "StepOp": ("src/plan.hpp", ["execute.cpp"]),
    "StepKind": ("include/sparq_emulator/Counters.hpp", ["counters.cpp", "device_model.cpp"]),
    "Nesting": ("popc/codelet_abi.hpp", ["accounting.cpp", "compile_vertices.cpp", "vertices.cpp"]),
    "Layout": ("popc/codelet_abi.hpp", ["accounting.cpp", "compile_vertices.cpp", "vertices.cpp"]),
    "VertexKind": ("popc/codelet_abi.hpp", ["accounting.cpp", "compile_vertices.cpp"]),
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory) -> dict[str, str]:
    """What the compiler says of each source, with another value in every enumeration."""
    compiler = builds.compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    changed = tmp_path_factory.mktemp("emulator")
    for folder in ("include", "popc", "src"):
        shutil.copytree(EMULATOR / folder, changed / folder)
    for name, (header, _) in ENUMERATIONS.items():
        text, n = re.subn(
            rf"(enum class {name}\b[^{{;]*{{)", rf"\1 New{name},", (changed / header).read_text()
        )
        assert n == 1
        (changed / header).write_text(text)
    found = {}
    for source in {source for _, sources in ENUMERATIONS.values() for source in sources}:
        r = subprocess.run(
            [*compiler.split(), "-std=c++17", *FLAGS, f"-I{changed / 'include'}", "-fsyntax-only", source],
            cwd=changed / "src",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert r.returncode != 0, source
        found[source] = r.stdout
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, source", [(name, source) for name, (_, sources) in ENUMERATIONS.items() for source in sources]
)
def test_a_new_value_does_not_compile_unmentioned(errors, name, source):
    assert re.search(rf"error: enumeration value .New{name}. not", errors[source]), errors[source]


def test_an_unknown_program_is_refused_by_name(programs):
    assert programs.json("unknown_program") == {
        "real": "compile: class of program must be one that the emulator knows, got number 99 [bad_argument]",
        "dry": "dry run: class of program must be one that the emulator knows, got number 99 [bad_argument]",
    }
