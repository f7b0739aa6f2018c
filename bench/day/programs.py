# SPDX-License-Identifier: Apache-2.0
"""Whole programs beside their plans, by bench/ipu_sparq.py: every kernel; three tiers cold and at hit rates;
steps of a recorded trace, each stamped; a stack of layers over several IPUs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

import ipu_sparq

from sparq_ipu import traces
from sparq_ipu.kernels import KERNELS, TIERED

from .items import Context, Item

_core: Any = importlib.import_module("sparq_ipu._core")
#: steps of a real model's attention
TRACE = Path(__file__).resolve().parents[2] / "tests" / "data" / "smollm2_steps.npz"


#: caches and settings: as long as what was published, and with grouped heads; of a quick day
SHAPES = (
    ("--S 16384 --heads 32", "--r 32 --k 128"),
    ("--S 16384 --heads 32 --kv-heads 8", "--r 32 --k 256 --local 64"),
)
QUICK = ("--S 2048 --heads 8 --kv-heads 2 --head-dim 64", "--r 16 --k 64")
#: around where another wave of misses begins too
RATES = (0.5, 0.7, 0.8, 0.87, 0.88, 0.95, 1)


def commands(quick: bool) -> list[str]:
    """Command lines of ipu_sparq.py, each of one row."""
    found = []
    for cache, settings in (QUICK,) if quick else SHAPES:
        for name, kernel in KERNELS.items():
            if kernel.is_dense:
                found.append(f"{cache} --kernel {name}")
            elif kernel.takes == "sparq" and kernel.memory == "streaming":
                bits = (4,) if quick else (16, 8, 4)
                found += [f"{cache} {settings} --kernel {name} --index-bits {n}" for n in bits]
        tiered = f"{cache} {settings} --kernel {TIERED.name} --index-bits 4"
        found += [tiered, *(f"{tiered} --hit-rate {p}" for p in ((0.75,) if quick else RATES))]
        found.append(f"{tiered} --row-bits 8")
        if not quick:
            found.append(f"{tiered} --row-bits 8 --hit-rate 0.88")
    return found


def stacks(quick: bool) -> list[str]:
    """Layers of one program over several IPUs."""
    cache, settings = QUICK if quick else SHAPES[1]
    ways = [(2, "layers")] if quick else [(2, "layers"), (4, "layers"), (2, "heads"), (4, "heads")]
    tiered = f"{cache} {settings} --kernel {TIERED.name} --index-bits 4"
    return [f"{tiered} --layers 4 --ipus {n} --split {split}" for n, split in ways]


def steps(quick: bool) -> list[str]:
    """Of the recorded trace."""
    tiered = f"--steps {4 if quick else 16} --r 16 --k 24 --local 4 --kernel {TIERED.name} --index-bits 4"
    return [tiered] if quick else [tiered, f"{tiered} --row-bits 8"]


def row_of(words: list[str]) -> dict[str, Any]:
    """What ipu_sparq.py says of one command line.

    Raises:
        RuntimeError: it has an error, but for other bits.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                ipu_sparq.main([*words, "--json", str(file)])
            except SystemExit as end:
                raise ValueError(f"ipu_sparq: the command line must be good, got {' '.join(words)}") from end
        (row,) = map(json.loads, file.read_text().splitlines())
    if row["error"] and row["bit_exact"] is not False:
        raise (ValueError if row["does_not_fit"] else RuntimeError)(row["error"])
    assert isinstance(row, dict)
    return row


@contextlib.contextmanager
def played_by(context: Context) -> Iterator[None]:
    """On the emulator: with the parameters of the IPU that it plays."""
    if not context.as_model:
        yield
        return
    last_run = _core.emulator_last_run

    def other(session: Any, model: dict[str, Any]) -> Any:
        return last_run(session, {**model, **context.as_model})

    with mock.patch.object(_core, "emulator_last_run", other):
        yield


#: of a row, what is kept beside its time
KEPT = (
    "bit_exact",
    "seconds_min",
    "seconds_max",
    "host_seconds_per_query",
    "hit_rate",
    "max_tile_bytes",
    "streamed_bytes",
    "seconds_per_step",
    "misses_per_step",
)


def measured(words: str, context: Context) -> dict[str, Any]:
    """One row, and its plan where there is one."""
    given = ["--input", str(TRACE)] if "--steps" in words else []
    with played_by(context):
        row = row_of([*words.split(), *given, "--device", context.device])
    # of a stack on the emulator seconds_per_token is its plan
    of_stack = "seconds_per_token" if context.device == "ipu" else "emulated_seconds_per_token"
    seconds = row.get(of_stack if "--layers" in words else "seconds_per_query")
    if seconds is None:
        raise ValueError(f"ipu_sparq: it must run on this machine, got {words} without a time")
    found = {name: row[name] for name in KEPT if row.get(name) is not None}
    found.update(seconds=seconds)
    if _core.has_emulator:
        found["modelled"] = modelled(words, found.get("hit_rate"))
    return found


def modelled(words: str, hit_rate: float | None) -> float:
    """By the plan; of a trace with as many rows hot as its steps had."""
    if "--steps" in words:
        trace = traces.load(TRACE)
        n_steps, _, rest = words.partition("--steps ")[2].partition(" ")
        words = (
            f"--S {trace.start + int(n_steps)} --heads {trace.n_heads} --kv-heads {trace.n_kv_heads} "
            f"--head-dim {trace.head_dim} {rest} --hit-rate {hit_rate or 0}"
        )
    row = row_of([*words.split(), "--plan-only"])
    of_token = row.get("seconds_per_token")
    return float(of_token if of_token is not None else row["seconds_per_query"])


def at_home(record: dict[str, Any]) -> dict[str, Any]:
    """What a record lacks that was made without an emulator."""
    return {**record, "modelled": modelled(record["spec"]["words"], record.get("hit_rate"))}


def items(context: Context) -> list[Item]:
    all_words = [*commands(context.quick), *steps(context.quick), *stacks(context.quick)]
    return [
        Item(words, functools.partial(measured, words, context), {"words": words}, 1800)
        for words in all_words
    ]
