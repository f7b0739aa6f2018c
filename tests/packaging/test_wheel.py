# SPDX-License-Identifier: Apache-2.0
"""What .ci/try_wheel asks of a wheel. .ci/run builds one and asks."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import platform
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINE = platform.machine()


@pytest.fixture(scope="module")
def try_wheel() -> Any:
    loader = importlib.machinery.SourceFileLoader("try_wheel", str(ROOT / ".ci" / "try_wheel"))
    spec = importlib.util.spec_from_loader("try_wheel", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("tag", "is_right"),
    [
        (f"cp38-cp38-manylinux_2_35_{MACHINE}", True),
        (f"cp311-cp311-manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}", True),
        (f"cp311-cp311-linux_{MACHINE}", False),  # as built, for this machine alone
        ("py3-none-any", False),
        ("cp311-cp311-manylinux_2_35_other", False),
    ],
)
def test_a_wheel_for_one_machine_is_refused(try_wheel: Any, tag: str, is_right: bool, capsys: Any) -> None:
    wheel = Path(f"sparq_ipu-0.1.0-{tag}.whl")
    assert (try_wheel.wrong_tag(wheel) is None) == is_right
    if not is_right:
        assert try_wheel.main(wheel, "no-python") == 1
        assert f"got {tag}" in capsys.readouterr().out


def test_the_snippet_is_the_readmes(try_wheel: Any) -> None:
    assert "output = sparq_ipu.sparq_attention(query, cache, rank=32" in try_wheel.snippet()


def test_ci_builds_one_and_tests_with_it_installed() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    build, tried, installed, tested = (
        run.index(text)
        for text in (
            '.ci/wheel "$work/wheels"',
            '.ci/try_wheel "$work"/wheels/*.whl',
            'install -q --no-deps "$work"/wheels/*.whl',
            "tests/codelets tests/ops tests/cpu\n",
        )
    )
    assert build < tried < installed < tested
