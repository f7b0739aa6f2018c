# SPDX-License-Identifier: Apache-2.0
"""The emulator as a toolkit for other Poplar programs: headers, libpoplar, popc, a CMake package.

eval "$(python -m sparq_ipu.emulator --env)"
g++ -std=c++11 program.cpp -lpoplar -o program
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from pathlib import Path

from sparq_ipu.commands.command_line import guarded

#: environment variable, folder of the toolkit that goes to its front
PATHS = (
    ("PATH", "bin"),
    ("CPATH", "include"),
    ("LIBRARY_PATH", "lib"),
    ("LD_LIBRARY_PATH", "lib"),
    ("CMAKE_PREFIX_PATH", "."),
)


def prefix() -> Path:
    """The toolkit's folder. FileNotFoundError where the package is used from its sources."""
    core = importlib.util.find_spec("sparq_ipu._core")
    homes = [Path(__file__).parent]
    if core is not None and core.origin is not None:
        homes.append(Path(core.origin).parent)  # an editable install has the built files there
    for home in homes:
        if (home / "toolkit" / "include" / "poplar" / "Graph.hpp").is_file():
            return home.resolve() / "toolkit"
    raise FileNotFoundError(
        f"sparq_ipu.emulator: the toolkit must lie beside {' or '.join(map(str, homes))}, got no folder "
        "'toolkit': install the package, or build emulator/ with CMake and `cmake --install` it"
    )


def environment(toolkit: Path) -> dict[str, str]:
    """Variables with which compilers, CMake and the shell find the toolkit, before what they hold now."""
    found = {"POPLAR_SDK_ENABLED": str(toolkit), "SPARQ_PYTHON": sys.executable}  # which popc runs with
    for name, folder in PATHS:
        now = os.environ.get(name)
        found[name] = os.pathsep.join([str(toolkit / folder), *([now] if now else [])])
    found["LIBRARY_PATH"] += os.pathsep + str(toolkit / "lib" / "absent")  # last: others come first
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m sparq_ipu.emulator", description="Where the toolkit is.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prefix", action="store_true", help="print the toolkit's folder")
    what.add_argument("--env", action="store_true", help="print shell commands that make it found")
    arguments = parser.parse_args()
    try:
        toolkit = prefix()
    except FileNotFoundError as e:
        print(e, file=sys.stderr)
        return 1
    if arguments.prefix:
        print(toolkit)
    else:
        for name, value in environment(toolkit).items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
