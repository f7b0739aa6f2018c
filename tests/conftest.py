# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: where the Python packages are, and the Hypothesis profiles. What tests share is in
helpers/, which pyproject.toml puts on the path.

HYPOTHESIS_PROFILE chooses how much is tried: dev (default: small, fast), ci (derandomised, moderate) or
nightly (random, large; a failure prints the blob that reproduces it).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import hypothesis

ROOT = Path(__file__).resolve().parents[1]

# without an installation, the packages that need no build come from the tree
for folder, package in (("reference", "sparq_reference"), ("python", "sparq_ipu")):
    if importlib.util.find_spec(package) is None:
        sys.path.append(str(ROOT / folder))

# The six workers of a vertex run in both orders, and what one sees of another is an error
# (poplar_ops/emulator/README.md); SPARQ_EMULATOR_CHECK_WORKERS=0 turns that off.
os.environ.setdefault("SPARQ_EMULATOR_CHECK_WORKERS", "1")

_ALWAYS = dict(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.register_profile("dev", max_examples=25, derandomize=True, **_ALWAYS)
hypothesis.settings.register_profile("ci", max_examples=150, derandomize=True, **_ALWAYS)
hypothesis.settings.register_profile("nightly", max_examples=3000, **_ALWAYS)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
