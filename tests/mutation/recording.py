# SPDX-License-Identifier: Apache-2.0
"""Runs pytest under coverage.py: which lines each test executes, and how long each takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: the test's name, for the coverage of processes that a test starts
VARIABLE = "SPARQ_MUTATION_TEST"
SETTINGS = """
[run]
branch = False
parallel = True
source = {sources}
context = ${{SPARQ_MUTATION_TEST-}}
data_file = {data}
patch = subprocess
"""


def run(arguments: list[str], settings: str, times: str) -> int:
    """pytest's status.

    Args:
        settings: the file with coverage.py's settings.
        times: JSON, the seconds of each test that passed, is written to this file.
    """
    import coverage
    import pytest

    seconds: dict[str, float] = {}
    failed: set[str] = set()
    covered = coverage.Coverage(config_file=settings)

    class Plugin:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            os.environ[VARIABLE] = nodeid
            covered.switch_context(nodeid)

        def pytest_runtest_logreport(self, report: Any) -> None:
            seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
            if report.outcome != "passed":
                failed.add(report.nodeid)

    covered.start()
    try:
        status = int(pytest.main(arguments, plugins=[Plugin()]))
    finally:
        covered.stop()
        covered.save()
        good = {test: round(s, 3) for test, s in seconds.items() if test not in failed}
        Path(times).write_text(json.dumps(good))
    return status
