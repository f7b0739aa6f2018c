# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: where the Python packages are, and the Hypothesis profiles. What tests share is in
tests/helpers/, which pyproject.toml puts on the path.

HYPOTHESIS_PROFILE chooses how much is tried: dev (default: small, fast), ci (derandomised, moderate), random
(small, other examples each time), few (random, for a build by another compiler or with sanitizers: few
examples, and one case of each test) or nightly (random, large). A failure of the last three prints the blob
that reproduces it, and --hypothesis-seed repeats a run.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path
from typing import Any, Iterator

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent

# without an installation, the packages that need no build come from the tree
for folder, package in (("reference", "sparq_reference"), ("python", "sparq_ipu"), ("study", "sparq_study")):
    if importlib.util.find_spec(package) is None:
        sys.path.append(str(ROOT / folder))

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

#: where the six workers of a vertex run in both orders too, and what one sees of another is an error
#: (emulator/reference.md): the folders that have each vertex and each builder
WORKERS_ARE_CHECKED = ("emulator/", "tests/codelets/", "tests/ops/", "tests/popart/")


@pytest.fixture(scope="module", autouse=True)
def order_of_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Elsewhere they run in random orders, which costs nothing. The environment may ask for another order or
    check, as a step of CI does."""
    check, order = "SPARQ_EMULATOR_CHECK_WORKERS", "SPARQ_EMULATOR_WORKER_ORDER"
    with pytest.MonkeyPatch.context() as patch:
        if not {check, order} & set(os.environ):
            patch.setenv(check if request.node.nodeid.startswith(WORKERS_ARE_CHECKED) else order, "1")
        yield


#: parameters each value of which has code of its own
OF_EACH = ("isa", "device")


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the profile "few": one of a test's cases, by chance."""
    if os.environ.get("HYPOTHESIS_PROFILE") != "few":
        return
    tests: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        of = (item.nodeid.partition("[")[0], *(id(params.get(name)) for name in OF_EACH))
        tests.setdefault(of, []).append(item)
    chance = random.Random(config.getoption("--hypothesis-seed", None) or 0)
    kept = {chance.choice(cases) for cases in tests.values()}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


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
