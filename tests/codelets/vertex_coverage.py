# SPDX-License-Identifier: Apache-2.0
"""Runs test files of codelets and prints, as JSON, which vertices they execute (`executed`), which of these
could do nothing without any test noticing (`unnoticed`), and which tests fail as they are (`failed`).

A program of its own, because a test can not wait for the others: they may run in another process. Hypothesis
tests try one example each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.runner import runtestprotocol


class Coverage:
    """A pytest plugin that takes the place of the test loop, and of the module that runs a vertex."""

    def __init__(self) -> None:
        self.executed: dict[str, list[pytest.Item]] = {}
        self.unnoticed: list[str] = []
        self.failed: list[str] = []
        self._idle = ""  # the vertex that does nothing
        self._names: set[str] = set()  # of the vertices that one test executed

    def pytest_sessionstart(self) -> None:
        import hypothesis

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # no smaller example of a failure
        hypothesis.settings.register_profile("once", hypothesis.settings(), max_examples=1, phases=phases)
        hypothesis.settings.load_profile("once")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        vertex: Any = sys.modules["vertex"]
        core, vertex._core = vertex._core, SimpleNamespace(run_vertex=self._run_vertex)
        self._core = core
        for item in session.items:
            if not self._passes(item):
                self.failed.append(item.nodeid)
            for name in self._names:
                self.executed.setdefault(name, []).append(item)
        for name, items in self.executed.items():
            self._idle = name
            if all(self._passes(item) for item in items):
                self.unnoticed.append(name)
        return True

    def _passes(self, item: pytest.Item) -> bool:
        self._names = set()
        item._initrequest()  # type: ignore[attr-defined]  # the item may have run before
        return not any(report.failed for report in runtestprotocol(item, log=False))

    def _run_vertex(self, name: str, fields: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        self._names.add(name)
        return fields if name == self._idle else self._core.run_vertex(name, fields, settings)


if __name__ == "__main__":
    coverage = Coverage()
    settings = str(Path(__file__).resolve().parents[2] / "pyproject.toml")  # also for tests from elsewhere
    options = ["-q", "-c", settings, "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider"]
    pytest.main([*options, *sys.argv[1:]], plugins=[coverage])
    result = dict(executed=list(coverage.executed), unnoticed=coverage.unnoticed, failed=coverage.failed)
    print(json.dumps(result))
