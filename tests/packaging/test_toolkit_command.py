# SPDX-License-Identifier: Apache-2.0
"""`python -m sparq_ipu.emulator`: where the toolkit is, and what makes compilers find it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparq_ipu.emulator


def test_the_folder_is_beside_the_package_or_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(sparq_ipu.emulator, "__file__", str(tmp_path / "emulator.py"))
    monkeypatch.setattr(sparq_ipu.emulator.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"toolkit must lie beside .*cmake --install"):
        sparq_ipu.emulator.prefix()
    header = tmp_path / "toolkit" / "include" / "poplar" / "Graph.hpp"
    header.parent.mkdir(parents=True)
    header.touch()
    assert sparq_ipu.emulator.prefix() == tmp_path.resolve() / "toolkit"


def test_the_variables_come_before_what_is_set(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("CPATH", raising=False)
    found = sparq_ipu.emulator.environment(Path("/t"))
    assert found["PATH"] == f"/t/bin{os.pathsep}/usr/bin"
    assert found["CPATH"] == "/t/include"
    assert found["POPLAR_SDK_ENABLED"] == "/t"


def test_the_command_asks_for_one_of_both():
    command = [sys.executable, "-m", "sparq_ipu.emulator"]
    result = subprocess.run(command, text=True, capture_output=True)
    assert result.returncode == 2 and "--prefix" in result.stderr and "--env" in result.stderr
