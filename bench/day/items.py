# SPDX-License-Identifier: Apache-2.0
"""What a part measures, one item after the other, in a process of its own.

What an item finds is written before the next begins. One that throws ends the process, so that the next has a
device that nothing was done to; one that hangs is ended by an alarm that no library can catch.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import traceback
from typing import Any, Callable, NoReturn

from .records import DiskFull, Run

#: exit statuses of such a process: an item threw, go on with the next; the disk is full
AGAIN, FULL = 75, 74


@dataclasses.dataclass(frozen=True)
class Context:
    """On what a part runs."""

    #: "ipu" or "emulator"
    device: str
    quick: bool
    #: parameters that an emulated IPU is given in place of its own; empty: its own
    as_model: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def source(self) -> str:
        """What times are."""
        return "measured" if self.device == "ipu" else "the emulator as the IPU, modelled"


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing to measure. `run` returns what goes into its record: "seconds" and "modelled" where it has a
    time, and what else there is to say."""

    name: str
    run: Callable[[], dict[str, Any]]
    #: what says it to a model, in numbers and words
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: seconds after which it is ended
    limit: int = 900


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the day. `items` is called in the process of the part."""

    name: str
    what: str
    items: Callable[[Context], list[Item]]
    #: seconds for all of it, on hardware: usual, quick
    limit: int
    quick_limit: int


def failed(error: BaseException) -> str:
    """In one line."""
    text = str(error).strip() or "without a message"
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def tell(text: str) -> None:
    """Into the log of the part, which a full disk may not take."""
    try:
        print(text, flush=True)
    except OSError:
        pass


def process(run: Run, part: Part, context: Context) -> NoReturn:
    """The process of a part: it ends with the one that started it, so that nobody else writes when that is
    started again. What Python does at its end could fail where the disk is full."""
    parent_dies = 1  # PR_SET_PDEATHSIG of Linux
    ctypes.CDLL(None).prctl(parent_dies, signal.SIGKILL)
    os._exit(measure(run, part, context))


def measure(run: Run, part: Part, context: Context) -> int:
    """All items of a part that have no result; the exit status of the process."""
    items = part.items(context)
    for i, item in enumerate(items, 1):
        if (part.name, item.name) in run.results(part.name):
            continue
        tell(f"{part.name} {i}/{len(items)}: {item.name}")
        try:
            run.add("start", part=part.name, name=item.name, of=len(items))
            status = _one(run, part, item, context)
        except DiskFull as error:
            tell(f"{part.name}: {error}")
            return FULL
        if status:
            return status
    return 0


def _one(run: Run, part: Part, item: Item, context: Context) -> int:
    common = dict(
        part=part.name, name=item.name, spec=item.spec, device=context.device, source=context.source
    )
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(item.limit)
    try:
        found, status = item.run(), 0
    except (KeyboardInterrupt, SystemExit, DiskFull):
        raise
    except BaseException as error:
        tell(traceback.format_exc())
        found = {"error": failed(error)}
        # what is refused before any work leaves the device as it was
        status = 0 if isinstance(error, ValueError) else AGAIN
    finally:
        signal.alarm(0)
    run.add("result", **{**common, "error": None, **found})
    return status
