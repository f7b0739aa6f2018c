# SPDX-License-Identifier: Apache-2.0
"""The hooks of pre-commit check what CI checks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_hooks_are_the_checks_of_ci():
    """.ci/lint lists its checks, and every one is a hook; all hooks are local, so none needs a host."""
    checks = re.search(r"^names=\((.*)\)$", (ROOT / ".ci" / "lint").read_text(), re.MULTILINE)
    assert checks is not None
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"^ *entry: \.ci/lint (\S+)$", hooks, re.MULTILINE) == checks[1].split()
    assert re.findall(r"- repo: (.*)", hooks) == ["local"]
