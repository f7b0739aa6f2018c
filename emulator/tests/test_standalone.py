# SPDX-License-Identifier: Apache-2.0
"""The emulator is a project of its own: nothing in its folder names what is built on it.

That it builds and runs alone is shown by every other test here, where nothing is installed: conftest.py then
builds a copy of the folder.
"""

from __future__ import annotations

import re
from pathlib import Path

EMULATOR = Path(__file__).resolve().parents[1]
#: fidelity/ tells where the SDK's declarations were found
NOT_READ = {"__pycache__", "fidelity", Path(__file__).name}
FILES = sorted(path for path in EMULATOR.rglob("*") if path.is_file() and not NOT_READ & set(path.parts))
SOURCES = [path for path in FILES if path.suffix in (".cpp", ".hpp", ".h")]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SYSTEM = re.compile(r"(sys/|sanitizer/)?[a-z_0-9]+(\.h)?")
#: names of what is built on the emulator
OTHERS = re.compile(
    r"(?<!\w)(sparq/|sparq_(?!emulator|add_codelets\b|ipu\.emulator\b)\w+|_core\b|_cpu\b|pybind11|Session\b|KVCache\b|attention\b"
    r"|cache/|bindings\b|poplar_ops/)"
)


def is_inside(path: Path) -> bool:
    return path.is_file() and EMULATOR in path.resolve().parents


def include_problems(path: Path, text: str) -> list[str]:
    """Headers that are neither the emulator's or the tests' own nor the system's."""
    own = {"<": [EMULATOR / "include", EMULATOR / "src"], '"': [path.parent, EMULATOR / "popc"]}
    return [
        name
        for quote, name in INCLUDE.findall(text)
        if not any(is_inside(root / name) for root in own[quote])
        and not (quote == "<" and SYSTEM.fullmatch(name))
    ]


def test_includes_are_its_own_or_the_systems():
    found = {str(path): include_problems(path, path.read_text()) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_nothing_else_of_the_project_is_named():
    found = {str(path): OTHERS.findall(path.read_text()) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_control_others_are_seen():
    path = SOURCES[0]
    assert include_problems(path, '#include "session.hpp"\n') == ["session.hpp"]
    assert include_problems(path, "#include <sparq/cache.hpp>\n#include <cstdio>\n") == ["sparq/cache.hpp"]
    for text in (
        "#include <sparq/cache.hpp>",
        'e.write("cache/filled", x)',
        "Session &s",
        "import sparq_ipu",
    ):
        assert OTHERS.search(text), text
