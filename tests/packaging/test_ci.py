# SPDX-License-Identifier: Apache-2.0
"""CI does not skip in silence: .ci/check_skips holds a log of .ci/run against .ci/skips. The hooks of
pre-commit check what CI checks."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".ci"
RULES = [
    line.split(" | ") for line in (CI / "skips").read_text().splitlines() if line and not line.startswith("#")
]
NO_IPU = "SKIPPED [2] tests/ops/test_ipu_hardware.py:13: no IPU: rounding on silicon was not checked\n"
NO_TORCH = "SKIPPED [1] tests/models/test_generate.py:13: could not import 'torch': No module named 'torch'\n"
LOG = (
    "=== tests: the README's command (1 s so far)\n{first}12 passed\n\n=== slow tests (90 s so far)\n{second}"
)


def check(tmp_path: Path, first: str, second: str) -> subprocess.CompletedProcess:
    (tmp_path / "log").write_text(LOG.format(first=first, second=second))
    command = [sys.executable, str(CI / "check_skips"), str(tmp_path / "log")]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True)


def test_what_is_allowed_passes_and_is_listed(tmp_path: Path) -> None:
    done = check(tmp_path, NO_IPU + NO_TORCH, NO_IPU)
    assert done.returncode == 0, done.stdout
    assert (
        done.stdout.count("CI has no IPU") == 2 and "3 tests or files, 0 of them not allowed" in done.stdout
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", "SKIPPED [1] tests/cpu/test_cpu_builds.py:23: qemu-aarch64 is not installed\n"),
        ("", "SKIPPED [1] tests/ops/test_api_fidelity.py:64: no libclang: no such file\n"),
        ("SKIPPED [9] tests/ops/test_append.py:16: the extension module is not built\n", ""),
        ("", NO_TORCH),  # allowed in the other step only
    ],
)
def test_what_is_not_fails(tmp_path: Path, first: str, second: str) -> None:
    done = check(tmp_path, first, second)
    assert done.returncode == 1 and "NOT ALLOWED by .ci/skips" in done.stdout


def test_every_rule_names_a_step_and_tests_that_exist() -> None:
    run = (CI / "run").read_text()
    steps = re.findall(r'^step "(.*)"$', run, re.MULTILINE)
    assert run.rstrip().splitlines()[-3].startswith(".ci/check_skips ")
    for step, test, why in RULES:
        assert why and (step == "." or any(step in name for name in steps)), step
        for file in re.findall(r"(?:tests/\w+|emulator/tests|study/tests/\w+)/\w+\.py", test):
            assert (ROOT / file).exists(), file


def test_another_python_than_the_oldest_is_said(tmp_path: Path) -> None:
    def said_with(minor: int) -> str:
        program = tmp_path / str(minor) / f"python3.{minor}"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        said = tmp_path / f"said_{minor}"
        said.touch()
        path = f"{program.parent}:/usr/bin:/bin"
        environment = {"PATH": path, "PYENV_ROOT": str(tmp_path / "none"), "HOME": str(tmp_path)}
        command = [str(CI / "oldest_python"), str(said)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == f"{program}\n"
        return said.read_text()

    assert said_with(8) == ""
    assert said_with(9) == "Python 3.8: not on this machine; 3.9 in its place\n"


def test_what_tests_want_is_installed_before_them() -> None:
    run = (CI / "run").read_text()
    for program in ("clang++", "aarch64-linux-gnu-g++", "qemu-aarch64"):
        assert run.index(f"command -v {program}") < run.index("pytest -q")


def test_what_runs_beside_a_step_that_fails_ends_with_its_children(tmp_path: Path) -> None:
    of_run = ("declare -A beside", "begin() ", "trap ")
    lines = [line for line in (CI / "run").read_text().splitlines() if line.startswith(of_run)]
    step = f"step() {{ sleep 60 & touch {tmp_path}/begun; wait; }}; begin one step"
    fails = f"until [ -e {tmp_path}/begun ]; do sleep 0.01; done; false"
    read, write = os.pipe()
    script = "\n".join(("set -euo pipefail", f"work={tmp_path}", *lines, step, fails))
    done = subprocess.run(["bash", "-c", script], pass_fds=[write])
    os.close(write)
    assert len(lines) == 3 and done.returncode == 1
    assert select.select([read], [], [], 10)[0]  # its end: no process is left that could write
    os.close(read)


#: collects the cases of a test for profiles and seeds one after another: imports take longest
COLLECT = """
import os, sys, pytest
for words in sys.argv[1:]:
    profile, seed = words.split()
    os.environ["HYPOTHESIS_PROFILE"] = profile
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}",
                 "tests/reference/test_reference_key_index.py", "-k", "test_equal_keys"])
    print("end of a run")
"""


def test_few_cases_are_one_of_each_test() -> None:
    runs = ("dev 1", "few 1", "few 1", "few 2")
    command = [sys.executable, "-c", COLLECT, *runs]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    texts = done.stdout.split("end of a run\n")[:-1]
    found = (re.findall(r"::(test_equal_keys\w+)\[(.*)\]$", text, re.MULTILINE) for text in texts)
    every, few, again, other = map(set, found)
    assert few < every and len(few) == len({test for test, _ in every}) < len(every)
    assert few == again != other


@pytest.mark.slow
def test_one_process_has_the_tests_that_share_a_build() -> None:
    """In a parallel run: else both wait for the build, or do the same work twice."""
    tests = ("emulator/fidelity", "emulator/tests/test_standalone.py")
    command = [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert "2/2 workers" in done.stdout, done.stdout[-2000:]
    processes = re.findall(r"^\[(gw\d)\] .* emulator/", done.stdout, re.MULTILINE)
    assert len(processes) == 8 and len(set(processes)) == 1


def test_hooks_are_the_checks_of_ci() -> None:
    """.ci/lint lists its checks, and every one is a hook; all hooks are local, so none needs a host."""
    checks = re.search(r"^names=\((.*)\)$", (CI / "lint").read_text(), re.MULTILINE)
    assert checks is not None
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"^ *entry: \.ci/lint (\S+)$", hooks, re.MULTILINE) == checks[1].split()
    assert re.findall(r"- repo: (.*)", hooks) == ["local"]
