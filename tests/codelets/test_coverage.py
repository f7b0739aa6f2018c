# SPDX-License-Identifier: Apache-2.0
"""Every vertex has a test of its own here, which runs it and would notice if it did nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

HERE = Path(__file__).resolve().parent
CODELETS = HERE.parents[1] / "poplar_ops" / "codelets"


def coverage(*tests: Path) -> dict[str, list[str]]:
    """What vertex_coverage.py says of these test files."""
    done = subprocess.run(
        [sys.executable, str(HERE / "vertex_coverage.py"), *map(str, tests)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def vertices_of(source: str) -> set[str]:
    """The vertices that a file defines: classes, and what their templates are instantiated for."""
    names = re.findall(r"^class (\w+) : public poplar::\w*Vertex", source, re.MULTILINE)
    of_templates = re.findall(r"^template class (\w+<\w+>);", source, re.MULTILINE)
    names += [name.replace("<unsigned>", "<unsigned int>") for name in of_templates]
    return {f"sparq::{name}" for name in names}


@pytest.mark.slow
def test_every_vertex_is_run_and_watched() -> None:
    vertices = set().union(*(vertices_of(source.read_text()) for source in CODELETS.glob("*.cpp")))
    assert len(vertices) >= 30
    seen = coverage(*sorted(set(HERE.glob("test_*.py")) - {Path(__file__).resolve()}))
    assert seen["failed"] == []
    assert vertices - set(seen["executed"]) == set()
    assert seen["unnoticed"] == []


TEST = """
import numpy as np
from vertex import run, words

def test_looks():
    fields = dict(layer=np.uint32(0), rows=words(1))
    assert run("FillOffsets", fields, n=1, first=100, step=7, layerRows=9)["rows"].tolist() == [100]

def test_looks_away():
    run("AnyFull", dict(full=np.zeros(1, np.uint32), any=np.array(False)), nSlots=1)

def test_never_runs():
    if False:
        run("FillSum", {})

def test_fails():
    raise AssertionError
"""


def test_what_is_not_watched_is_seen(tmp_path: Path) -> None:
    """Negative control: a vertex run without a look at its result, one that only the text names."""
    file = tmp_path / "test_some.py"
    file.write_text(TEST)
    seen = coverage(file)
    assert sorted(seen["executed"]) == ["sparq::AnyFull", "sparq::FillOffsets"]
    assert seen["unnoticed"] == ["sparq::AnyFull"]
    assert [test.split("::")[-1] for test in seen["failed"]] == ["test_fails"]
