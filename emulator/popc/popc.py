#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles codelets for the host: finds the vertices of C++ sources and builds an object a graph can load."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from objects import append_objects, extract_objects, read  # noqa: E402
from registration import registration_source, tables_source, unit_name  # noqa: E402
from vertices import PopcError, find_vertices  # noqa: E402

VERSION = "popc 3.3 (host codelets)"
C_UNIT = "c_"  # begins the name of a C source's unit, which has no vertices
#: what a parser says of a vector type that no header has declared
VECTOR_TYPE = re.compile(r"(?:type name|identifier) '(?:u?(?:char|short|int|longlong)|long|half|float)[24]'")
WORKER = b"poplar_codelet_worker"  # the symbol that builtins ask for the worker
OVERFLOW = b"poplar_codelet_half_overflow"  # the symbol that all objects name that show floating-point events


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="popc",
        description=__doc__,
        epilog="Example: popc -O3 -I include codelets.cpp -o codelets.gp. The host compiler is $CXX, "
        "else clang++ (as popc itself is a Clang), else c++. Flags not listed here go to it.",
    )
    events = os.environ.get("SPARQ_POPC_EVENTS") or "0"
    if events not in ("0", "1"):
        p.error(f"SPARQ_POPC_EVENTS must be 0 or 1, got '{events}'")
    p.add_argument("sources", nargs="*", help="C++ files with vertex classes, C files, and .gp objects")
    p.add_argument("-o", dest="output", help="the object to write (.gp)")
    p.add_argument("-O", dest="optimise", default="3", help="optimisation level (default 3)")
    p.add_argument(
        "-I", dest="includes", action="append", default=[], metavar="DIR", help="include directory"
    )
    p.add_argument(
        "-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro"
    )
    p.add_argument(
        "-target", "--target", default="cpu", help="accepted; objects are for the host whatever it says"
    )
    p.add_argument(
        "--floating-point-events",
        action="store_true",
        default=events == "1",
        help="make codelets, at most at -O1, for programs that switch floating-point exceptions on "
        "(SPARQ_POPC_EVENTS=1 asks for the same)",
    )
    p.add_argument("-MF", dest="depfile", help="write a make rule with the headers the object depends on")
    p.add_argument("-X", metavar="FLAG", help="for the IPU's own compiler: ignored")
    p.add_argument("--verbose", action="store_true", help="print the commands")
    p.add_argument("--list-vertices", action="store_true", help="print vertices and fields; compile nothing")
    p.add_argument("--list-targets", action="version", version="cpu", help="print the targets")
    p.add_argument("--version", action="version", version=VERSION)
    args, extra = p.parse_known_args(without_ipu_flags(argv))
    # what names an IPU's architecture means nothing to a host's compiler
    args.extra = [e for e in extra if e.startswith("-") and not e.startswith(("-march=ipu", "-mcpu=ipu"))]
    args.sources += [e for e in extra if not e.startswith("-")]
    args.widths_are_errors = "-Werror=width" in args.extra  # popc's own warning; no compiler knows it
    args.extra = [e for e in args.extra if e != "-Werror=width"]
    if not args.sources:
        p.error("no source file")
    if not args.output and not args.list_vertices:
        p.error("-o is needed")
    return args


def without_ipu_flags(argv: Sequence[str]) -> list[str]:
    """Without `-X FLAG` and `-XFLAG`: what they hand to the IPU's compiler means nothing to a host's."""
    return [a for i, a in enumerate(argv) if not a.startswith("-X") and (i == 0 or argv[i - 1] != "-X")]


def event_flags(compiler: Sequence[str]) -> list[str]:
    """What makes the host's flags tell of the events that the source has, and of no others.

    By default Clang also computes what a branch leaves out. GCC does not; neither does with these.
    """
    try:
        version = subprocess.run([*compiler, "--version"], stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError as e:
        raise PopcError(f"the host compiler must be installed, got '{compiler[0]}' (set CXX)") from e
    return ["-ffp-exception-behavior=maytrap"] if "clang" in version else ["-ftrapping-math"]


def run(command: list[str], verbose: bool) -> None:
    if verbose:
        print(" ".join(shlex.quote(c) for c in command), file=sys.stderr)
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError as e:
        raise PopcError(f"the host compiler must be installed, got '{command[0]}' (set CXX)") from e
    if result.stdout:
        sys.stderr.write(result.stdout)
    if result.returncode:
        raise PopcError(f"{command[0]} failed with status {result.returncode}")


def main(argv: Sequence[str]) -> int:
    args = parse_arguments(argv)
    compiler = shlex.split(os.environ.get("CXX", "")) or ["clang++" if shutil.which("clang++") else "c++"]
    # `half` and `quarter` are types of the IPU's compiler, so codelets use them without a header
    headers = os.path.join(HERE, "..", "include")
    common = [f"-I{d}" for d in args.includes]
    for own in (headers, HERE):
        common += ["-isystem", own]  # where a program's own warnings do not look
    common += ["-idirafter", os.path.join(headers, "poplar")]  # codelets leave the folder out
    common += ["-D__POPC__", *(f"-D{d}" for d in args.defines)]
    common.append("-fno-math-errno")  # a tile has none: what a loop does not change can leave the loop
    # and so do the functions that are built into it
    language = ["-std=c++17", "-include", "poplar/QuarterFloat.hpp", "-include", "builtins.hpp", *common]
    # the IPU's standard library is Clang's, whose <cmath> has abs(float) and the like outside std too
    language += ["-include", "math.h"]
    code = [f"-O{args.optimise}", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden"]
    if any("clang" in os.path.basename(c) for c in compiler):
        code.append("-Wno-unknown-attributes")  # poplar::constraint and others are the IPU's compiler's
    code.append("-Wno-psabi")  # vectors wider than the baseline's registers do not cross objects
    try:
        if args.floating_point_events:
            common.append("-DSPARQ_FLOATING_POINT_EVENTS")
            language.append("-DSPARQ_FLOATING_POINT_EVENTS")
            code += event_flags(compiler)
            if args.optimise != "0":
                code[0] = "-O1"  # a vectoriser would compute what no element asks for
        flags = [*language, *code]
        with tempfile.TemporaryDirectory(prefix="popc-") as tmp:
            objects: dict[str, str] = {}  # by the names of their units
            depfiles: list[str] = []
            for i, source in enumerate(args.sources):
                if not os.path.isfile(source):
                    raise PopcError(f"source file must exist, got '{source}'")
                if source.endswith(".gp"):
                    objects.update(extract_objects(source, tmp))
                    continue
                source = os.path.abspath(source)
                if source.endswith(".c"):
                    if args.list_vertices:
                        continue
                    name = C_UNIT + unit_name(source, args.defines)
                    objects[name] = os.path.join(tmp, f"{name}.o")
                    depfiles.append(os.path.join(tmp, f"{name}.d"))
                    where = ["-MMD", "-MF", depfiles[-1], "-x", "c", "-c", source, "-o", objects[name]]
                    extra = [e for e in args.extra if not e.startswith("-std=c++")]
                    run(compiler + common + code + extra + where, args.verbose)
                    continue
                standard = [e for e in args.extra if e.startswith("-std")]
                warnings: list[str] = []
                known: list[str] = []  # beyond what its headers declare
                try:
                    vertices = find_vertices(source, compiler, language + standard, warnings)
                except PopcError as e:
                    if not VECTOR_TYPE.search(str(e)):
                        raise
                    # The IPU's compiler has them. A model's has not, and codelets for both define them there.
                    known = ["-include", "ipudef.h"]
                    vertices = find_vertices(source, compiler, language + known + standard, warnings)
                if warnings and args.widths_are_errors:
                    raise PopcError("\n".join(warnings))
                for warning in warnings:
                    print(f"popc: warning: {warning}", file=sys.stderr)
                if args.list_vertices:
                    for v in vertices:
                        print(v.name + ": " + ", ".join(v.fields))
                    continue
                name = unit_name(source, args.defines)
                unit = os.path.join(tmp, f"registration{i}.cpp")
                with open(unit, "w") as f:
                    f.write(registration_source(source, vertices, name))
                objects[name] = os.path.join(tmp, f"{name}.o")
                depfiles.append(os.path.join(tmp, f"{name}.d"))
                where = [*known, "-I", os.path.dirname(source), "-MD", "-MF", depfiles[-1]]
                run(compiler + flags + args.extra + where + ["-c", unit, "-o", objects[name]], args.verbose)
            if args.list_vertices:
                return 0
            tables = os.path.join(tmp, "tables.cpp")
            with open(tables, "w") as f:
                units = [name for name in objects if not name.startswith(C_UNIT)]
                asks_worker = any(WORKER in read(path) for path in objects.values())
                shows_events = {name: OVERFLOW in read(objects[name]) for name in units}
                if len(set(shows_events.values())) > 1:
                    raise PopcError(
                        "codelets of one object must all have --floating-point-events or none, got both"
                    )
                f.write(tables_source(units, asks_worker, all(shows_events.values())))
            partial = args.output + ".tmp"
            linked = [tables, *objects.values(), "-o", partial]
            # The tables need none of what codelets have without a header, which takes long to read.
            own = ["-std=c++17", "-isystem", HERE, *code]
            run([*compiler, *own, *args.extra, "-shared", *linked], args.verbose)
            append_objects(partial, objects)
            os.replace(partial, args.output)
            if args.depfile:
                linked = [s for s in args.sources if s.endswith(".gp")]
                write_depfile(args.depfile, args.output, depfiles, linked, tmp)
    except PopcError as e:
        print(f"popc: {e}", file=sys.stderr)
        return 1
    return 0


def write_depfile(path: str, target: str, parts: Sequence[str], linked: Sequence[str], tmp: str) -> None:
    """One make rule: the object depends on every source, header and object, the generated ones left out."""
    files = list(linked)
    for part in parts:
        with open(part) as f:
            words = f.read().replace("\\\n", " ").split(":", 1)[1].split()
        files += [w for w in words if not w.startswith(tmp) and w not in files]
    with open(path, "w") as f:
        f.write(f"{target}: " + " \\\n  ".join(files) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
