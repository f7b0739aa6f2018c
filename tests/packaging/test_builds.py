# SPDX-License-Identifier: Apache-2.0
"""What tests build and keep is built again where its sources or its tools are others."""

from __future__ import annotations

import os
from pathlib import Path

import builds
import pytest


def test_other_tools_have_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = builds.key("tree")
    assert before == builds.key("tree") != builds.key("another tree")
    monkeypatch.setenv("CXXFLAGS", "-O0 -DSOMETHING")
    assert builds.key("tree") != before


def test_sources_are_compared_by_content(tmp_path: Path) -> None:
    """Also where time and size are the same. What is the same keeps its time, and is not built again."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("changes", "stays", "goes"):
        (source / name).write_text("one")
    builds.copy_changed(source, target)
    times = {name: (target / name).stat().st_mtime_ns for name in ("changes", "stays")}
    (source / "changes").write_text("two")
    os.utime(source / "changes", ns=(times["changes"], times["changes"]))
    (source / "goes").unlink()
    builds.copy_changed(source, target)
    assert (target / "changes").read_text() == "two"
    assert (target / "changes").stat().st_mtime_ns > times["changes"]
    assert (target / "stays").stat().st_mtime_ns == times["stays"]
    assert sorted(path.name for path in target.iterdir()) == ["changes", "stays"]
