# SPDX-License-Identifier: Apache-2.0
"""How CMake finds what the SDK's popc is to be called with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("flag", ["-ffp-contract=off", "-std=c++17"])
@pytest.mark.parametrize("spelling", ["{}", "-X{}", "-X {}", None])
def test_popc_gets_the_spelling_of_a_flag_that_it_takes(
    spelling: str | None, flag: str, tmp_path: Path
) -> None:
    assert f' {flag} "' in (ROOT / "poplar_ops/CMakeLists.txt").read_text()
    taken = None if spelling is None else spelling.format(flag)
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    popc = tmp_path / "popc"
    popc.write_text(
        f'#!/bin/sh\ncase "$*" in "{taken} --target "*) exit 0;; esac\necho unknown flag >&2\nexit 1\n'
    )
    popc.chmod(0o755)
    script = tmp_path / "try.cmake"
    script.write_text(
        f"include({ROOT}/poplar_ops/popc_flags.cmake)\n"
        f'set(found -O3)\nsparq_popc_flag({popc} {tmp_path} {flag} "it has to do" found)\n'
        'list(JOIN found " " words)\nmessage(STATUS "found=${words}")\n'
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, check=True)
    assert f"found=-O3{' ' + taken if taken else ''}\n" in done.stdout
    assert ("unknown flag" in done.stderr) == ("it has to do" in done.stderr) == (taken is None)
