# SPDX-License-Identifier: Apache-2.0
"""Every vertex has a test of its own here."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
CODELETS = HERE.parents[1] / "poplar_ops" / "codelets"


def test_every_vertex_is_tested() -> None:
    vertices = {
        name
        for source in CODELETS.glob("*.cpp")
        for name in re.findall(r"class (\w+) : public poplar::\w*Vertex", source.read_text())
    }
    tested = set(re.findall(r'run\(\s*"(\w+)"', "".join(p.read_text() for p in HERE.glob("test_*.py"))))
    assert len(vertices) >= 30
    assert vertices - tested == set()
