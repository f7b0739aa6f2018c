# SPDX-License-Identifier: Apache-2.0
"""Builds the emulator with the tests' device programs once, outside the tree, and runs them.

What is built is a copy of the emulator's folder, with nothing else beside it: so every test here also shows
that the emulator needs nothing else of the project.

SPARQ_TEST_BUILD_DIR names a build of the emulator made with -DSPARQ_BUILD_TESTS=ON to use instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import builds
import pytest

EMULATOR = Path(__file__).resolve().parents[1]


class Programs:
    """The built programs: run one, get its output."""

    def __init__(self, where: Path) -> None:
        self.build = where
        self.where = where / "tests"
        self.codelets = str(self.where / "test_codelets.gp")

    def path(self, name: str) -> str:
        return str(self.where / f"emulator_{name}")

    def run(self, name: str, *args, stdin=None, threads: int | None = None, text: bool = True, **variables):
        env = {**os.environ, **variables}
        if threads is not None:
            env["SPARQ_EMULATOR_THREADS"] = str(threads)
        r = subprocess.run(
            [self.path(name), *map(str, args)],
            input=stdin,
            capture_output=True,
            text=text,
            env=env,
            timeout=300,
        )
        if r.returncode:
            raise RuntimeError(f"{name} failed with status {r.returncode}:\n{r.stderr[-20000:]}")
        return r.stdout

    def json_lines(self, name: str, *args, **kwargs) -> list:
        return [json.loads(line) for line in self.run(name, *args, **kwargs).splitlines()]

    def json(self, name: str, *args, **kwargs):
        (line,) = self.json_lines(name, *args, **kwargs)
        return line


@pytest.fixture(scope="session")
def programs() -> Programs:
    given = os.environ.get("SPARQ_TEST_BUILD_DIR")
    if given:
        where = Path(given)
    else:
        if builds.tool("cmake") is None:
            pytest.skip("needs cmake")
        top = Path(tempfile.gettempdir()) / f"sparq-emulator-tests-{os.getuid()}-{builds.key(EMULATOR)}"
        where = top / "build"
        with builds.alone(top):
            builds.copy_changed(EMULATOR, top / "emulator")
            # -O1: these programs take longer to compile than to run.
            options = (f"-DPython3_EXECUTABLE={sys.executable}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
            builds.cmake(top / "emulator", where, "-DSPARQ_BUILD_TESTS=ON", *options)
    return Programs(where)


@pytest.fixture(scope="session")
def toolkit(programs, tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("toolkit")
    install = [builds.tool("cmake"), "--install", str(programs.build), "--prefix", str(where)]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    return where


@pytest.fixture(scope="session")
def shell(toolkit):
    """Runs a command line where the toolkit is enabled."""
    built = {key: value for key, value in os.environ.items() if not key.startswith("SPARQ_POPC")}

    def run(command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess:
        line = f". {toolkit}/enable.sh && {command}"
        result = subprocess.run(
            ["bash", "-c", line], cwd=cwd, env={**built, **variables}, text=True, capture_output=True
        )
        assert result.returncode == 0, result.stderr[-5000:]
        return result

    return run
