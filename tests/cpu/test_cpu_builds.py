# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels with sanitizers and on another architecture. CI runs tests/cpu with a build by Clang."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ("levels", "prompts", "products", "threads", "conversions", "weights", "allocations")

pytestmark = pytest.mark.slow


def need(*programs: str) -> None:
    """Skip, by name, where a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def build(folder: Path, *options: str) -> Path:
    """Build the driver; returns its path."""
    need("cmake")
    configure = ["cmake", "-S", str(ROOT / "poplar_ops" / "cpu"), "-B", str(folder), "-DSPARQ_CPU_PYTHON=OFF"]
    for command in (
        [*configure, "-DSPARQ_CPU_TESTS=ON", *options],
        ["cmake", "--build", str(folder), "--parallel", "2"],
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    return folder / "driver" / "sparq_cpu_driver"


def run(*command: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)


def check(*driver: str | Path, checks: tuple[str, ...] = CHECKS) -> str:
    """Run the checks; returns the digests of all results."""
    digest = ""
    for name in checks:
        done = run(*driver, name)
        assert done.returncode == 0, done.stdout + done.stderr
        digest += "".join(re.findall("digest ([0-9a-f]{16})", done.stdout))
    return digest


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sanitized"), "-DSPARQ_CPU_SANITIZE=address,undefined")


@pytest.fixture(scope="module")
def digest(sanitized: Path) -> str:
    return check(sanitized)


def test_memory_sanitized(sanitized: Path, digest: str) -> None:
    assert digest
    done = run(sanitized, "overflow")  # negative control: a read past the end must be reported
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


def test_aarch64(digest: str, tmp_path: Path) -> None:
    """Another architecture, the same bits."""
    need("aarch64-linux-gnu-g++", "qemu-aarch64")
    driver = build(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG",
    )
    assert check("qemu-aarch64", driver) == digest


def test_threads_sanitized(tmp_path: Path) -> None:
    """With the kernels in portable code alone: none of them starts a thread."""
    portable = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=any")
    driver = build(tmp_path, "-DSPARQ_CPU_SANITIZE=thread", *portable)
    check(driver, checks=("levels", "prompts", "products", "threads"))
    done = run(driver, "race")  # negative control: a race must be reported
    assert done.returncode != 0 and "data race" in done.stderr


def test_only_tables_leave_the_kernels(sanitized: Path) -> None:
    """The linker can not choose an AVX-512 copy of a function for callers elsewhere: none is visible."""
    need("nm")
    objects = sorted(sanitized.parents[1].rglob("kernels/*.o"))
    assert objects
    for path in objects:
        defined = [line.split()[-2:] for line in run("nm", "--defined-only", "-C", path).stdout.splitlines()]
        shared = {name for kind, name in defined if kind.isupper()}
        shared = {name for name in shared if not name.startswith(("__odr_asan.", "DW.ref."))}  # not ours
        assert shared == {f"sparq::cpu::{path.name.split('.')[0]}Kernels"}, (path, shared)


def test_nothing_is_contracted(sanitized: Path) -> None:
    """No fused operation outside the AVX2 and AVX-512 kernels, which use it where products are exact."""
    need("objdump")
    fused = {}
    for path in sorted(sanitized.parents[1].rglob("sparq_cpu.dir/**/*.o")):
        fused[path.name.split(".")[0]] = "vfmadd" in run("objdump", "-d", path).stdout
    assert {name for name, found in fused.items() if found} <= {"avx2", "avx512vnni"}
    assert {"attention", "portable"} <= set(fused)


#: of the compiler, and what the sources of the instruction set define; and the headers that are for it alone
ISAS = {
    "portable": ("", r"dot_codes_portable|simd_portable"),
    "avx2": ("-mavx2 -mfma -mf16c -DSPARQ_AVX2", r"simd_avx2|\w*x86"),
    "avx512vnni": (
        "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -DSPARQ_AVX512",
        r"simd_avx512|\w*x86",
    ),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for the instruction sets of x86-64")
@pytest.mark.parametrize("isa", ISAS)
def test_each_header_of_the_kernels_compiles_alone(isa: str, tmp_path: Path) -> None:
    need("g++")
    cpu = ROOT / "poplar_ops" / "cpu"
    flags, own = ISAS[isa]
    of_others = "|".join(headers for _, headers in ISAS.values())
    source, problems = tmp_path / "alone.cpp", {}
    whole = {"table", "instruction_set"}  # what others follow, and all of them
    for header in sorted({path.stem for path in (cpu / "kernels").glob("*.hpp")} - whole):
        if re.fullmatch(of_others, header) and not re.fullmatch(own, header):
            continue
        first = "table.hpp" if isa == "portable" else "immintrin.h"
        source.write_text(
            f"""#include <{first}>
            #include "table.hpp"
            namespace sparq {{ namespace cpu {{ namespace alone {{ namespace {{
            #include "{header}.hpp"
            }}}}}}}}"""
        )
        includes = (f"-I{folder}" for folder in (cpu / "kernels", cpu, cpu.parent, cpu.parent / "include"))
        warnings = "-Wall -Wextra -Werror -Wno-uninitialized -Wno-maybe-uninitialized"
        done = run("g++", "-std=c++17", "-fsyntax-only", *f"{flags} {warnings}".split(), *includes, source)
        if done.returncode:
            problems[header] = done.stderr[:500]
    assert problems == {}
