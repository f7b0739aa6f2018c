# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: where the Python packages are, and the Hypothesis profiles. What tests share is in
tests/helpers/, which pyproject.toml puts on the path.

HYPOTHESIS_PROFILE chooses how much is tried: dev (default: small, fast), ci (derandomised, moderate), random
(small, other examples each time), few (as random, for another compiler or library of the same tests)
or nightly (random, large). A failure of the last three prints the blob that reproduces it, and
--hypothesis-seed repeats a run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent

# without an installation, the packages that need no build come from the tree
for folder, package in (("reference", "sparq_reference"), ("python", "sparq_ipu"), ("study", "sparq_study")):
    if importlib.util.find_spec(package) is None:
        sys.path.append(str(ROOT / folder))

# The six workers of a vertex run in both orders, and what one sees of another is an error
# (emulator/reference.md); SPARQ_EMULATOR_CHECK_WORKERS=0 turns that off, as
# one step of CI does, with random orders in its place.
os.environ.setdefault("SPARQ_EMULATOR_CHECK_WORKERS", "1")

_ALWAYS = dict(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.register_profile("dev", max_examples=25, derandomize=True, **_ALWAYS)
hypothesis.settings.register_profile("ci", max_examples=75, derandomize=True, **_ALWAYS)
hypothesis.settings.register_profile("few", max_examples=6, database=None, **_ALWAYS)
hypothesis.settings.register_profile("random", max_examples=25, database=None, **_ALWAYS)
hypothesis.settings.register_profile("nightly", max_examples=3000, **_ALWAYS)
# dev, but a failure is not made small: for a mutant, that it fails is all
_PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
hypothesis.settings.register_profile("mutant", max_examples=25, derandomize=True, phases=_PHASES, **_ALWAYS)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

#: where tests share a build, or large plans
TOGETHER = (
    "emulator/",
    "tests/popart/",
    "tests/device_model/test_counted_cycles.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In a parallel run (-n), one process has the tests of such a place: two would wait for one build, or do
    the same work twice. Another --dist than "load" is left as it is.

    A scheduler of our own, for the groups of --dist loadgroup are lost with pytest 9.2.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return ByFolder(config, log)
