# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a day: each in a process, and a process group, of its own, with a limit; begun again
after an item that threw or ended it; stopped, with all that it started, when its time is over.

Nothing here touches the device, so nothing that a device does ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List, Sequence

from .items import AGAIN, FULL, Context, Part
from .records import MOST_STARTS, DiskFull, Run

#: seconds that a process has to end after it was told to
GRACE = 10
#: what ended a process, by signal
WHY = {
    signal.SIGALRM: "it took longer than its limit",
    signal.SIGKILL: "the process was killed (signal 9): often the machine ran out of memory",
}
Command = Callable[[Part], List[str]]


def say(text: str) -> None:
    """Progress. A terminal that has gone away is no reason to stop."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:  # what it started may not have listened
            continue
    process.wait()


def status_of(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """The exit status of a command, or None where its time was over. Its output goes to the log."""
    with open(log, "ab", buffering=0) as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            stop(process)


def why_ended(status: int) -> str:
    if status >= 0:
        return f"the process ended with status {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"the process was ended by signal {-status}"
    return WHY.get(number, f"the process was ended by {number.name}")


def conduct(run: Run, parts: Sequence[Part], command: Command, context: Context, scale: float = 1) -> bool:
    """Run these parts. False where the disk is full, and the rest did not run."""
    as_ipu = "" if context.device == "ipu" else f" ({context.source})"
    for number, part in enumerate(parts, 1):
        limit = scale * (part.quick_limit if context.quick else part.limit)
        say(f"[{number}/{len(parts)}] {part.name}: {part.what}, at most {limit / 60:.0f} min{as_ipu}")
        begin = time.monotonic()
        try:
            if not _part(run, part, command, context, begin + limit):
                return False
        except DiskFull as error:
            say(f"disk full: {error}")
            return False
        done = run.results(part.name).values()
        n_failed = sum(r["error"] is not None for r in done)
        say(f"    {len(done)} items, {n_failed} failed, {time.monotonic() - begin:.0f} s{as_ipu}")
    return True


def _part(run: Run, part: Part, command: Command, context: Context, end: float) -> bool:
    log = run.path / f"log_{part.name}.txt"
    while True:
        name = run.unfinished(part.name)
        if name is not None and run.starts(part.name, name) >= MOST_STARTS:
            _give_up(run, part, name, context, f"the run ended {MOST_STARTS} times while it was measured")
        before = len(run.records)
        left = end - time.monotonic()
        status = None if left <= 0 else status_of(command(part), log, left)
        run.reload()
        if status == 0:
            return True
        if status == FULL:
            say(f"the disk is full: free some room and give the same command again; {run.path} is whole")
            try:
                run.add("note", part=part.name, text="the disk was full; the run was to be started again")
            except DiskFull:
                pass
            return False
        name = run.unfinished(part.name)
        if status is None:
            run.add("note", part=part.name, text="its time was over; what is left of it did not run")
            if name is not None:
                _give_up(run, part, name, context, "stopped: the time of its part was over")
            return True
        if status == AGAIN:
            continue
        if name is not None:
            _give_up(run, part, name, context, why_ended(status))
        elif len(run.records) == before:  # it can not even begin
            run.add("note", part=part.name, text=f"{why_ended(status)}: {last_lines(log)}")
            return True


def _give_up(run: Run, part: Part, name: str, context: Context, why: str) -> None:
    run.add(
        "result",
        part=part.name,
        name=name,
        spec={},
        device=context.device,
        source=context.source,
        error=f"no result: {why}",
    )


def last_lines(log: Path, n: int = 3) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " / ".join(line.strip() for line in lines[-n:])
