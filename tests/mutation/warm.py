# SPDX-License-Identifier: Apache-2.0
"""Runs pytest in forks of a process that has imported the slow libraries already: a run begins at once.

The copied tree's packages come first on the path, and the finder of an editable installation, which would
hide them, is removed (also in processes that tests start, by a `sitecustomize.py`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, NamedTuple

_NO_FINDER = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "RedirectingFinder" not in type(f).__name__]
"""
_PRELOADED = "ignore::pytest.PytestAssertRewriteWarning"
PACKAGES = ("python", "reference", "study")
#: test folders that want PyTorch
WITH_TORCH = ("tests/models", "tests/bench", "study")


class Run(NamedTuple):
    """One run of pytest."""

    #: pytest's exit status; negative: a signal ended it; None: it took too long
    status: int | None
    output: str
    seconds: float

    @property
    def killer(self) -> str:
        """The test that failed."""
        for line in self.output.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" - ")[0].split(" ", 1)[1]
        return "no result in time" if self.status is None else f"the process ended with {self.status}"


def warm_for(tree: Path) -> Callable[[list[str]], Warm]:
    """The process to fork for some tests, with PyTorch where they want it. It starts when needed."""
    started: dict[bool, Warm] = {}

    def find(tests: list[str]) -> Warm:
        torch = any(test.startswith(WITH_TORCH) for test in tests)
        if torch not in started:
            modules = ("numpy", "hypothesis", "pytest", "coverage")
            started[torch] = Warm(tree, (*modules, "torch", "transformers") if torch else modules)
        return started[torch]

    return find


class Warm:
    """A process to fork. Forks of it share the imported modules and nothing of the project.

    Args:
        modules: imported in advance, where they are installed.
    """

    def __init__(self, tree: Path, modules: tuple[str, ...]) -> None:
        self._tree = tree
        finder = tree.parent / "site"
        finder.mkdir(parents=True, exist_ok=True)
        (finder / "sitecustomize.py").write_text(_NO_FINDER)
        self._paths = [str(finder), *(str(tree / name) for name in PACKAGES)]
        self._environment = {
            "PYTHONPATH": os.pathsep.join(self._paths),
            "HYPOTHESIS_PROFILE": "mutant",
            "SPARQ_EMULATOR_ONE_BY_ONE": "1",  # a mutant is one file: the others need not be compiled again
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        (jobs, self._jobs), (self._done, done) = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._jobs)
            try:
                self._serve(modules, os.fdopen(jobs), done)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(jobs)
        os.close(done)

    def pytest(self, arguments: list[str], patience: float, output: Path, **job: Any) -> Run:
        """Run tests of the tree. `job`: `environment` to add, `record` as `recording.run` takes it."""
        begin = time.monotonic()
        line = json.dumps({"arguments": arguments, "patience": patience, "output": str(output), **job})
        os.write(self._jobs, (line + "\n").encode())
        status = json.loads(os.read(self._done, 100))
        return Run(status, output.read_text(errors="replace"), time.monotonic() - begin)

    def _serve(self, modules: tuple[str, ...], jobs: Any, done: int) -> None:
        os.environ.update(self._environment)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        sys.meta_path[:] = [f for f in sys.meta_path if "RedirectingFinder" not in type(f).__name__]
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError:
                pass
        for line in jobs:
            status = self._one(json.loads(line))
            os.write(done, json.dumps(status).encode())

    def _one(self, job: dict[str, Any]) -> int | None:
        pid = os.fork()
        if not pid:
            status = 3
            try:
                os.setsid()
                file = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, 1)
                os.dup2(file, 2)
                status = self._child(job)
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
            finally:
                if "record" in job:
                    ctypes.CDLL(None).exit(status)  # what gcov counted is written at the end of a process
                os._exit(status)
        end = time.monotonic() + job["patience"]
        while time.monotonic() < end:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                break
            time.sleep(0.01)
        else:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        try:
            os.killpg(pid, signal.SIGKILL)  # what tests left behind
        except ProcessLookupError:
            pass
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)

    def _child(self, job: dict[str, Any]) -> int:
        os.chdir(self._tree)
        os.environ.update(job.get("environment", {}))
        own = str(Path(__file__).resolve().parent)
        sys.path[:] = [*self._paths, *(p for p in sys.path if p not in ("", own, *self._paths))]
        for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(own)]:
            if name not in ("warm", "recording", "__main__"):
                del sys.modules[name]
        sys.argv = ["pytest"]
        arguments = ["-q", "-p", "no:cacheprovider", "-W", _PRELOADED, *job["arguments"]]
        if "record" in job:
            import recording

            return recording.run(arguments, **job["record"])
        import pytest

        return int(pytest.main(arguments))
