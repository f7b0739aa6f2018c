# SPDX-License-Identifier: Apache-2.0
"""The emulator is a project of its own: nothing in its folder, or in its tests, names what is built on it.

That it builds and runs alone is shown by every other test here: conftest.py builds copies of the two folders.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "poplar_ops" / "emulator", ROOT / "tests" / "emulator")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in folder.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path != Path(__file__).resolve()
)
SOURCES = [path for path in FILES if path.suffix in (".cpp", ".hpp", ".h")]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SYSTEM = re.compile(r"(sys/|sanitizer/)?[a-z_0-9]+(\.h)?")
#: names of what is built on the emulator
OTHERS = re.compile(
    r"(?<!\w)(sparq/|sparq_(?!emulator|add_codelets\b|ipu\.emulator\b)\w+|_core\b|_cpu\b|pybind11|Session\b|KVCache\b|attention\b"
    r"|cache/|bindings\b|poplar_ops/(?!emulator\b))"
)


def is_inside(path: Path) -> bool:
    return path.is_file() and any(folder in path.resolve().parents for folder in FOLDERS)


def include_problems(path: Path, text: str) -> list[str]:
    """Headers that are neither the emulator's or the tests' own nor the system's."""
    emulator = FOLDERS[0]
    own = {"<": [emulator / "include", emulator / "src"], '"': [path.parent, emulator / "popc"]}
    return [
        name
        for quote, name in INCLUDE.findall(text)
        if not any(is_inside(root / name) for root in own[quote])
        and not (quote == "<" and SYSTEM.fullmatch(name))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_are_its_own_or_the_systems(path):
    assert include_problems(path, path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_of_the_project_is_named(path):
    assert OTHERS.findall(path.read_text()) == []


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
