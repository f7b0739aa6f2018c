# SPDX-License-Identifier: Apache-2.0
"""One command for whoever has an IPU for a day: it measures what is modelled here, and makes one file of it.

    python bench/hardware_day.py --out day.tar.gz            # some hours; --quick: a quarter of an hour
    python bench/hardware_day.py --out day.tar.gz            # once more, after an interruption: it goes on
    python bench/hardware_day.py --out day.tar.gz --pack     # or makes the file of what is there
    python bench/hardware_day.py --read sent.tar.gz --out day.tar.gz    # its page, with what the model says

What is measured is written to the folder day.run, beside the file, before the next thing begins. Each part
runs in a process of its own with a limit; what fails is recorded, and the next one runs. The file has the
records, a page of measured, modelled and ratio (page.md), and what compilers said; no name of a machine or
user.

Without an IPU everything runs on the emulator as the IPU: times are then modelled, and every line says so.
`python bench/calibrate.py --day day.tar.gz` fits the device model to it. More: docs/hardware_day.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from day import conduct, pack, records
from day.items import Context, Part, process
from day.parts import BY_NAME, PARTS
from lib.common import ROOT, Parser, guarded
from lib.origin import git_revision


def parser() -> Parser:
    made = Parser(
        prog="hardware_day.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--out", type=Path, metavar="FILE.tar.gz", help="what to send; the folder FILE.run is beside it")
    add("--quick", action="store_true", help="a quarter of an hour on an IPU: few sizes of everything")
    text = f"some of {', '.join(BY_NAME)} [all]"
    add("--parts", nargs="+", choices=tuple(BY_NAME), default=list(BY_NAME), metavar="PART", help=text)
    add("--list", action="store_true", help="the parts and their limits, and stop")
    text = "auto: an IPU if there is one, else the emulator [auto]"
    add("--device", choices=("auto", "ipu", "emulator"), default="auto", help=text)
    add("--pack", action="store_true", help="measure nothing: page and file of what is there")
    add("--read", type=Path, metavar="FILE.tar.gz", help="the page of a file that was sent, beside --out")
    add("--limits", type=float, default=1.0, metavar="X", help="times the usual limits of parts [1]")
    text = (
        "on the emulator: device parameters that it plays the IPU with, in place of its own. A day so "
        "made tells whether calibrate.py finds them"
    )
    add("--as-model", type=Path, metavar="FILE.json", help=text)
    add("--run-part", nargs=2, help=argparse.SUPPRESS)  # folder and part: its process
    return made


def listing() -> str:
    lines = [
        f"{p.name:<12} at most {p.limit // 60:>3} min, quick {p.quick_limit // 60} min: {p.what}"
        for p in PARTS
    ]
    return "\n".join(lines)


def choose_device(wanted: str) -> str:
    """Where the modules are not built it is said by each part that needs them."""
    if wanted != "auto":
        return wanted
    try:
        from sparq_ipu import _core
    except ImportError:
        return "ipu"
    return "emulator" if _core.device_unavailable("ipu") and _core.has_emulator else "ipu"


def context_of(first: records.Record) -> Context:
    return Context(first["device"], first["quick"], first["as_model"])


def begin(run: records.Run, a: argparse.Namespace, made: Parser) -> Context:
    """The first line of a day, or that it goes on.

    Ends with a message where the folder is of another kind of day.
    """
    as_model: dict[str, Any] = {}
    if a.as_model is not None:
        try:
            as_model = json.loads(a.as_model.read_text())
        except (OSError, ValueError) as error:
            made.error(f"--as-model must be a JSON file of parameters, got {a.as_model} ({error})")
    device = choose_device(a.device)
    if as_model and device != "emulator":
        made.error(f"--as-model must be left out on device {device}, got {a.as_model}")
    wanted = Context(device, a.quick, as_model)
    first = run.first
    common = dict(git=git_revision(), python=platform.python_version(), command=sys.argv[1:])
    if first is None:
        run.keep_room()
        run.add("run", device=device, quick=a.quick, as_model=as_model, **common)
        return wanted
    if context_of(first) != wanted:
        text = f"{first['device']}{' --quick' if first['quick'] else ''}"
        made.error(f"--out must be new or of the same kind of day, got {a.out} of a day on {text}")
    if not (run.path / records.RESERVE).exists():
        run.keep_room()
        run.add("note", part="", text="the disk was full: the run before stopped there")
    run.add("run", device=device, quick=a.quick, as_model=as_model, **common)
    return wanted


def part_command(folder: Path, part: Part) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--run-part", str(folder), part.name]


def read(archive: Path, out: Path, made: Parser) -> int:
    """A file that was sent: with what the model says here, and its page."""
    folder = out.with_name(out.name[: -len(".tar.gz")] + ".run")
    if (folder / records.FILE).exists():
        made.error(f"--out must be new with --read, got {out}")
    try:
        found = pack.records_of(archive)
    except OSError as error:
        made.error(f"--read must be a file that can be read, got {archive} ({error.strerror})")
    except ValueError as error:
        made.error(f"--read: {str(error).partition(': ')[2]}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / records.FILE).write_text("".join(json.dumps(record) + "\n" for record in found))
    pack.pack(records.Run(folder, ROOT), out)
    conduct.say(f"{folder / 'page.md'}")
    return 0


def main(argv: list[str] | None = None) -> int:
    made = parser()
    a = made.parse_args(argv)
    if a.run_part is not None:
        run = records.Run(Path(a.run_part[0]), ROOT)
        assert run.first is not None
        process(run, BY_NAME[a.run_part[1]], context_of(run.first))
    if a.list:
        print(listing())
        return 0
    if a.out is None or not a.out.name.endswith(".tar.gz"):
        made.error(f"--out must be a file that ends in .tar.gz, got {a.out}")
    if a.limits <= 0:
        made.error(f"--limits must be above 0, got {a.limits:g}")
    if a.read is not None:
        return read(a.read, a.out, made)
    folder = a.out.with_name(a.out.name[: -len(".tar.gz")] + ".run")
    if a.pack and not (folder / records.FILE).exists():
        made.error(f"--pack must be given for a day that has begun, got no {folder}")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a lost connection ends nothing
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # and what it started ends with it
    try:
        run = records.Run(folder, ROOT)
        complete = True
        if not a.pack:
            with run.locked():
                context = begin(run, a, made)
                parts = [part for part in PARTS if part.name in a.parts]
                complete = conduct.conduct(run, parts, lambda p: part_command(folder, p), context, a.limits)
    except ValueError as error:
        made.error(f"--out: {str(error).partition(': ')[2]}")
    except records.DiskFull as error:
        print(f"hardware_day.py: the disk is full: {error}", file=sys.stderr)
        return 1
    if complete:
        pack.pack(run, a.out)
        conduct.say(f"{a.out}: send this file. {folder / 'page.md'}: what is in it")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(guarded(main))
