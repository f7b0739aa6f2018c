# SPDX-License-Identifier: Apache-2.0
"""Builds the tests' device programs once, outside the tree, and runs them.

They are linked with the toolkit that is installed (python -m sparq_ipu.emulator). Where none is, the emulator
is built with them from a copy of its folder, with nothing else beside it. So every test here then also shows
that the emulator needs nothing else of the project.
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
        self.where = where
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


def installed() -> Path | None:
    """The toolkit of an installation."""
    try:
        from sparq_ipu.emulator import prefix

        return prefix()
    except (ImportError, FileNotFoundError):
        return None


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the build."""
    if builds.tool("cmake") is None:
        pytest.skip("needs cmake")
    found = installed()
    top = Path(tempfile.gettempdir()) / f"sparq-emulator-tests-{os.getuid()}-{builds.key(EMULATOR, found)}"
    with builds.alone(top):
        builds.copy_changed(EMULATOR, top / "emulator")
        options = [f"-DPython3_EXECUTABLE={sys.executable}"]
        if found is None:  # -O1: these programs take longer to compile than to run.
            options += ["-DSPARQ_BUILD_TESTS=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"]
        else:
            options += [f"-Dpoplar_DIR={found / 'lib' / 'cmake' / 'poplar'}"]
        builds.cmake(top / "emulator" / ("tests" if found else ""), top / "build", *options)
    return top / "build"


@pytest.fixture(scope="session")
def programs(built) -> Programs:
    return Programs(built if installed() else built / "tests")


@pytest.fixture(scope="session")
def toolkit(built, tmp_path_factory) -> Path:
    found = installed()
    if found:
        return found
    where = tmp_path_factory.mktemp("toolkit")
    install = [builds.tool("cmake"), "--install", str(built), "--prefix", str(where)]
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
