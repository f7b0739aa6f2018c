# SPDX-License-Identifier: Apache-2.0
"""Counts the operations of a codelet while it runs, in issue slots of an IPU.

Clang compiles the codelets to its intermediate code, which has loads, stores and arithmetic much as an IPU
has them. Into each block of that code goes a call that adds up what the block costs, by the prices of
poplar_ops/codelets/cycles.hpp. Then a vertex runs alone in the emulator.

This file is two things: what tests import, and (as a program) the compiler that popc is told to use.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 6

#: what counts, beside the codelets; a block tells a quarter of a slot as 1
COUNTER = """
#include <stdint.h>
struct Worker { unsigned tile, id; };
extern struct Worker *(*poplar_codelet_worker)(void);
__attribute__((visibility("default"))) uint64_t operation_slots[6][2];
__attribute__((visibility("default")))
void count_operations(uint32_t arithmetic, uint32_t main, uint32_t address) {
  uint64_t *own = operation_slots[poplar_codelet_worker()->id];
  own[0] += arithmetic > main ? arithmetic : main;
  own[1] += arithmetic + main + address;
}
"""

BYTES = {"float": 4, "double": 8, "i64": 4, "i32": 4, "i16": 2, "i8": 1, "i1": 1}  # an i64 is an index
OPERATION = re.compile(r"^  (?:(%\S+) = )?(?:tail |musttail |notail )?(\w+)\s*(.*)$")
VALUE = re.compile(r"%[\w.]+")
TYPE = re.compile(r"(?:fast |nsw |nuw |exact |inbounds |volatile )*(?:<(\d+) x (\w+)>|(\S+?)(?=[,\s]|$))")
FREE = frozenset(
    "phi getelementptr zext sext trunc extractelement insertelement shufflevector ret unreachable ptrtoint"
    " inttoptr freeze alloca".split()
)
INTEGERS = ("add", "sub", "shl", "lshr", "ashr", "or", "xor", "and", "mul")
#: calls: (arithmetic, main)
CALLS = {
    "half_bits": (0.5, 0),  # a conversion of fp16: of two in one instruction
    "umin": (0, 2),
    "umax": (0, 2),
    "smin": (0, 2),
    "smax": (0, 2),
    "usub.sat": (0, 2),
    "ctpop": (0, 1),
    "ctlz": (0, 1),
    "cttz": (0, 2),
    "assume": (0, 0),
    "lifetime": (0, 0),
    "experimental.noalias": (0, 0),
}


class UnknownOperation(Exception):
    pass


def price(operation: str, text: str) -> tuple[float, float]:
    """Slots of floating point, and of all else, of one operation."""
    found = TYPE.match(text)
    n, kind = (int(found[1] or 1), found[2] or found[3]) if found else (1, "")
    pairs = (n + 1) // 2
    if operation in FREE:
        return 0, 0
    if operation in ("fadd", "fsub", "fmul", "fneg", "fcmp"):
        return pairs, 0
    if operation == "fdiv":
        return 3 * n, 0
    if operation == "select":  # of a maximum it is part of the comparison, else a mask
        kinds = re.findall(r"(?:<(\d+) x )?(float|i\d+|ptr)>? ", text)
        if "float" in text:
            return (pairs if "zeroinitializer" in text or "0.000000e+00" in text else 0), 0
        return 0, int(kinds[-1][0] or 1)
    if operation in ("load", "store"):
        size = 4 if kind.endswith("*") or kind == "ptr" else n * BYTES[kind]
        return 0, (0.25 if size == 2 else max(1, size // 8))
    if operation in INTEGERS:
        return (pairs, 0) if n > 1 and operation in ("and", "or") else (0, n)
    if operation in ("udiv", "urem", "sdiv", "srem"):
        return 0, 40 * n
    if operation == "icmp":
        return 0, n
    if operation in ("br", "switch"):
        return 0, int(kind != "label")
    if operation in ("fptoui", "fptosi", "uitofp", "sitofp"):
        return 1, 2 * n
    if operation == "bitcast":  # between the register files, or nothing
        source, _, target = text.partition(" to ")
        pointers = "*" in text
        return 0, (0 if pointers or ("float" in source) == ("float" in target) else 3 * pairs if n > 1 else 2)
    if operation == "call":
        name = re.search(r"@([\w.]+)\(", text)
        for part, cost in CALLS.items():
            if name and part in name[1]:
                return cost
        size = re.search(r"i64 (\d+), i1", text)
        if name and size and ("memcpy" in name[1] or "memset" in name[1]):
            return 0, 2 * max(1, int(size[1]) // 8)
        if name and name[1].startswith("_ZN"):
            return 0, 4  # a function of its own
    raise UnknownOperation(f"{operation} {text}")


def operations_of(lines: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Of each value the operation that makes it, and of which values."""
    result = {}
    for line in lines:
        found = OPERATION.match(line)
        if found:
            result[found[1] or line] = (
                "assume" if "@llvm.assume" in line else found[2],
                VALUE.findall(found[3]),
            )
    return result


def made_only_for(made: dict[str, tuple[str, list[str]]], uses: set[str], *by: str) -> set[str]:
    """Values that such operations make, and that nothing but such uses has in the end."""
    users: dict[str, set[str]] = {}
    for name, (_, values) in made.items():
        for value in values:
            users.setdefault(value, set()).add(name)
    result: set[str] = set()
    while True:
        more = {
            name
            for name, (operation, _) in made.items()
            if operation in by
            and name not in result
            and all(made[user][0] in uses or user in result for user in users.get(name, ()))
        }
        if not more:
            return result
        result |= more


def fields_read(lines: list[str]) -> set[str]:
    """Loads of the vertex's own fields, which may stay in registers."""
    text = "\n".join(lines)
    own = {
        "%0",
        *re.findall(r"^  (%[\w.]+) = (?:getelementptr|bitcast)[^\n]*(?:\*|ptr) %0[, ]", text + " ", re.M),
    }
    own |= {
        name
        for name, base in re.findall(r"^  (%[\w.]+) = bitcast [^\n]*\* (%[\w.]+) to", text, re.M)
        if base in own
    }
    loads = re.findall(r"^  (%[\w.]+) = load [^\n]*(?:\*|ptr) (%[\w.]+),", text, re.M)
    return {name for name, base in loads if base in own}


def masks(made: dict[str, tuple[str, list[str]]]) -> set[str]:
    """Changes of type around an AND, which floating point has too."""
    mask = made_only_for(made, {"and", "or"}, "bitcast")
    return mask | {
        name
        for name, (operation, values) in made.items()
        if operation == "bitcast" and values and made.get(values[0], ("",))[0] in ("and", "or")
    }


def counting(text: str) -> str:
    """The intermediate code, with a count in each block."""
    out: list[str] = []
    for part in re.split(r"(^define[^\n]*\{\n.*?^\}\n)", text, flags=re.MULTILINE | re.DOTALL):
        lines = part.splitlines()
        if not part.startswith("define") or "half_bits" in lines[0]:
            out += lines
            continue
        made = operations_of(lines)
        # An IPU may add addresses up in the access itself.
        addresses = made_only_for(made, {"getelementptr"}, *"add sub or mul shl zext sext trunc".split())
        addresses |= fields_read(lines)
        nothing = made_only_for(made, {"assume"}, "icmp", "and", "ptrtoint") | masks(made)
        latches = set(re.findall(r"br i1 (%[\w.]+),[^\n]*!llvm.loop", part))
        slots, place = [0.0, 0.0, 0.0], len(out) + 1
        for line in lines:
            out.append(line)
            found = OPERATION.match(line)
            if re.match(r"[\w.]+:", line):
                slots, place = [0.0, 0.0, 0.0], len(out)
            if found is None:
                continue
            name, operation, rest = found.groups()
            if operation == "phi":
                place = len(out)
            if name in nothing or (operation == "icmp" and name in latches):
                continue  # the latter is one instruction with the branch
            arithmetic, main = price(operation, rest)
            slots[0] += arithmetic
            slots[2 if name in addresses else 1] += main
            if operation in ("br", "ret", "switch", "unreachable") and any(slots):
                quarters = ", ".join(f"i32 {round(4 * n)}" for n in slots)
                out.insert(place, f"  call void @count_operations({quarters})")
    return "\n".join([*out, "declare void @count_operations(i32, i32, i32)", ""])


def compile_counting(arguments: list[str]) -> None:
    """What popc calls: the compiler, which puts counts into the unit of the codelets."""
    clang = [os.environ["COUNTED_CLANG"]]
    if "-c" not in arguments or "c++" in arguments[arguments.index("-c") + 1 :] or "-x" in arguments:
        subprocess.run([*clang, *arguments], check=True)
        return
    at = arguments.index("-o")
    target = Path(arguments[at + 1])
    code = target.with_suffix(".ll")
    rest = [*arguments[:at], *arguments[at + 2 :]]
    subprocess.run([*clang, *rest, "-S", "-emit-llvm", "-o", str(code)], check=True)
    code.write_text(counting(code.read_text()))
    subprocess.run([*clang, "-O1", "-fPIC", "-c", str(code), "-o", str(target)], check=True)


def build(emulator: Path, codelets: Path, where: Path, clang: str) -> Path:
    """The object of all codelets that count. All are one source: headers are read once."""
    for folder in ("include", "popc"):
        shutil.copytree(emulator / folder, where / folder)
    # Conversions are functions, which have a price of their own, and addresses need not be tested.
    header = where / "include" / "poplar" / "HalfFloat.hpp"
    text = re.sub(
        r"^SPARQ_HALF_CONSTEXPR (float toFloat|std::uint16_t fromFloat)",
        r"__attribute__((noinline, const)) inline \1",
        header.read_text(),
        flags=re.MULTILINE,
    )
    header.write_text(re.sub(r"^  SPARQ_HALF_CONSTEXPR ", "  ", text, flags=re.MULTILINE))
    (where / "counter.c").write_text(COUNTER)
    source = where / "all.cpp"
    source.write_text("".join(f'#include "{path}"\n' for path in sorted(codelets.glob("*.cpp"))))
    output = where / "sparq_codelets.gp"
    # No vectors that the source does not have; loops are taken apart only where that is all of them.
    options = (
        "-O2 -g0 -fno-vectorize -fno-slp-vectorize -mllvm -unroll-runtime=0 -mllvm -unroll-allow-partial=0"
    )
    command = [sys.executable, where / "popc" / "popc.py", *options.split(), "-I", codelets.parent]
    command += ["-D__builtin_trap=__builtin_unreachable", source, where / "counter.c", "-o", output]
    compiler = f"{sys.executable} {Path(__file__).resolve()}"
    environment = dict(os.environ, CXX=compiler, COUNTED_CLANG=clang)
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-8000:]
    return output


class Counts:
    """Of the workers of the last vertex that ran."""

    def __init__(self, library: Path) -> None:
        self._slots = (ctypes.c_uint64 * (2 * WORKERS)).in_dll(ctypes.CDLL(str(library)), "operation_slots")

    def clear(self) -> None:
        ctypes.memset(self._slots, 0, ctypes.sizeof(self._slots))

    def busiest(self) -> tuple[float, float]:
        """At least (the two sides of a bundle always issue together), at most (never)."""
        return max((self._slots[2 * i] / 4, self._slots[2 * i + 1] / 4) for i in range(WORKERS))


if __name__ == "__main__":
    try:
        compile_counting(sys.argv[1:])
    except subprocess.CalledProcessError as e:
        sys.exit(e.returncode)
