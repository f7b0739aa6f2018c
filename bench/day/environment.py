# SPDX-License-Identifier: Apache-2.0
"""What the day runs on: versions, what the SDK's own tools say of the device, and how popc takes its flags.

Nothing here needs the package's modules: it says why they could not be built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Sequence

from .items import Context, Item

ROOT = Path(__file__).resolve().parents[2]
CODELETS = ROOT / "poplar_ops" / "codelets"
#: what keeps a * b + c from becoming one operation, as a compiler may take it; the first is what CMake tries
#: first
CONTRACT_OFF = (["-ffp-contract=off"], ["-X-ffp-contract=off"], ["-X", "-ffp-contract=off"], [])
#: a product and a sum: with one rounding the result is another one
CONTRACTION = """#include <poplar/Vertex.hpp>
class Contraction : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<float>> in;
  poplar::Output<float> out;
  bool compute() {
    *out = in[0] * in[1] + in[2];
    return true;
  }
};
"""


def run(command: Sequence[str], seconds: float = 120) -> dict[str, Any]:
    """What a command said: its status, None where there is no such command, and its output."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False
        )
    except FileNotFoundError:
        return dict(status=None, output="")
    return dict(status=done.returncode, output=done.stdout.decode(errors="replace")[-20000:])


def popc() -> str | None:
    """The compiler of codelets: the SDK's, or the emulator's."""
    found = shutil.which("popc")
    if found is None:
        try:
            from sparq_ipu import emulator

            candidate = emulator.prefix() / "bin" / "popc"
        except (ImportError, FileNotFoundError):
            return None
        found = str(candidate) if candidate.is_file() else None
    return found


def _compiler() -> str:
    found = popc()
    if found is None:
        raise ValueError("popc: must be on the PATH, got none")
    return found


def versions() -> dict[str, Any]:
    import numpy

    try:
        import sparq_ipu
        from sparq_ipu import _core

        package = dict(sparq_ipu=sparq_ipu.__version__, has_emulator=_core.has_emulator)
        package["ipu"] = _core.device_unavailable("ipu") or "present"
    except ImportError as error:
        package = dict(sparq_ipu=f"not built: {error}")
    return dict(
        package,
        python=sys.version.split()[0],
        numpy=numpy.__version__,
        popc=_first_lines(run([popc() or "popc", "--version"])),
        sdk=re.sub(r".*/", "", os.environ.get("POPLAR_SDK_ENABLED", "")) or None,
        processor_count=os.cpu_count(),
    )


def _first_lines(answer: dict[str, Any]) -> str | None:
    return None if answer["status"] is None else "\n".join(answer["output"].splitlines()[:3])


#: of gc-info only lines that say what the device is, not whose
ABOUT_DEVICE = re.compile(
    r"(ipu|clock|architecture|type|variant|firmware|driver|tile|version|link|board)", re.I
)
PRIVATE = re.compile(r"(serial|host|address|\bip\b|mac\b|user|uuid|\d+\.\d+\.\d+\.\d+)", re.I)


def about_device() -> dict[str, Any]:
    """gc-info, without names of machines, serial numbers and addresses."""
    found: dict[str, Any] = {}
    for words in (
        ["--list-devices"],
        ["--device-id", "0", "--device-info"],
        ["--device-id", "0", "--ipu-arch"],
    ):
        answer = run(["gc-info", *words])
        lines = [x for x in answer["output"].splitlines() if ABOUT_DEVICE.search(x) and not PRIVATE.search(x)]
        found[" ".join(words)] = None if answer["status"] is None else lines[:60]
    return dict(gc_info=found)


def flag(words: list[str]) -> dict[str, Any]:
    """Whether popc takes the flag, and whether it then keeps a product and a sum apart: seen in the code,
    where popc writes assembly."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "contraction.cpp"
        source.write_text(CONTRACTION)
        target = ["--target", "ipu2,ipu21"]
        answer = run([_compiler(), "-O3", *words, *target, str(source), "-o", str(source.with_suffix(".gp"))])
        if answer["status"] != 0:
            first = next((x for x in answer["output"].splitlines() if x.strip()), "no message")
            return dict(
                error=f"popc refuses {' '.join(words) or 'no flag'}: {first}", output=answer["output"]
            )
        assembly = assembly_of(["-O3", *words], source)
        # one that is no IPU's says nothing of an IPU
        fused = bool(re.search(r"f32(v2)?(mac|axpy)", assembly)) if "f32" in assembly else None
    return dict(output=answer["output"], fused=fused)


def assembly_of(flags: list[str], source: Path) -> str:
    """Of an IPU2; empty where popc writes none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.s"
        run([_compiler(), *flags, "--target", "ipu2", "-S", str(source), "-o", str(out)], 600)
        return out.read_text(errors="replace") if out.is_file() else ""


def codelets(context: Context) -> dict[str, Any]:
    """The codelets as CMake compiles them, with the first flag that popc takes: how long, and what popc says;
    and of each vertex the instructions, where popc writes assembly."""
    with tempfile.TemporaryDirectory() as folder:
        for words in CONTRACT_OFF:
            sources = sorted(map(str, CODELETS.glob("*.cpp")))
            if context.quick:
                sources = sources[:2]  # the build compiled them all
            begin = time.monotonic()
            command = ["-O3", *words, "--target", "ipu2,ipu21", "-I", str(CODELETS.parent)]
            answer = run([_compiler(), *command, "-o", f"{folder}/all.gp", *sources], 1800)
            if answer["status"] == 0:
                break
        else:
            raise RuntimeError(f"popc: the codelets must compile, got {answer['output'][-2000:]}")
        seconds = time.monotonic() - begin
        instructions: dict[str, int] = {}
        for source in sources if context.device == "ipu" else ():
            flags = ["-O3", *words, "-I", str(CODELETS.parent)]
            instructions.update(instructions_of(assembly_of(flags, Path(source))))
    return dict(
        build_seconds=seconds,
        flags=words,
        log=answer["output"],
        instructions=instructions,
        n_sources=len(sources),
    )


def instructions_of(assembly: str) -> dict[str, int]:
    """Of each function in LLVM's assembly the number of instructions."""
    found: dict[str, int] = {}
    name = None
    for line in assembly.splitlines():
        label = re.match(r"^([A-Za-z_$][\w$.]*):", line)
        if label and not label[1].startswith("."):
            name = label[1]
            found[name] = 0
        elif name is not None and re.match(r"^\s+\{?\s*[a-z]", line):
            found[name] += 1
    return {name: n for name, n in found.items() if n}


def items(context: Context) -> list[Item]:
    def of_flag(words: list[str]) -> Item:
        name = f"popc {' '.join(words) or 'without a flag for contraction'}"
        return Item(name, lambda: flag(words), limit=300)

    return [
        Item("versions", versions),
        Item("device", about_device),
        *map(of_flag, CONTRACT_OFF),
        Item("codelets", lambda: codelets(context), limit=2400),
    ]
