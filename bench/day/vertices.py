# SPDX-License-Identifier: Apache-2.0
"""Every vertex alone on a tile: its cycles beside its estimate, what it grows by with each of its sizes, and
the bits that it leaves. What runs is what tests count (tests/device_model/counted_vertices.tsv)."""

from __future__ import annotations

import functools
import hashlib
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .items import Context, Item
from .rules import modelled_seconds

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "device_model"))
import vertex_cases

_core: Any = importlib.import_module("sparq_ipu._core")
#: of a quick day every so many of them, and none with larger sizes
EVERY = 4


@functools.lru_cache(maxsize=None)
def estimates() -> dict[tuple[str, str], int]:
    """As vertex_cases has them; none where this machine has no compiler."""
    try:
        return vertex_cases.estimates()
    except (AssertionError, OSError, subprocess.CalledProcessError):
        return {}


def probe_of(name: str, run: str, device: str) -> Any:
    """The vertex with its usual sizes, or one of them doubled."""
    values = dict(vertex_cases.runs(name))[run]
    fields, settings = vertex_cases.arguments_of(name, values)
    kind = f"sparq::{name.partition('#')[0]}"
    return _core.VertexProbe(kind, fields, settings, estimates().get((name, run), 0), device=device)


def bits_of(arrays: dict[str, np.ndarray]) -> str:
    """One number for all that a vertex left."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + b"\0" + arrays[name].tobytes())
    return digest.hexdigest()[:16]


def once(name: str, run: str, context: Context) -> dict[str, Any]:
    """Seconds with what a compute set takes around it, what the model says, and the bits that it left."""
    probe = probe_of(name, run, context.device)
    cycles = []
    bits = ""
    for i in range(3 if context.device == "ipu" else 1):
        probe.reset()
        cycles.append(probe.run()[0])
        if i == 0:
            bits = bits_of(probe.arrays())
    if context.device == "ipu":
        seconds = sorted(cycles)[1] / probe.clock_hz
        model = modelled(name, run) if _core.has_emulator else {}
    else:
        seconds = modelled_seconds(probe, context.as_model)
        model = dict(modelled=modelled_seconds(probe))  # its bits are what others are compared with
    return dict(seconds=seconds, bits=bits, **model)


def modelled(name: str, run: str) -> dict[str, Any]:
    """What the emulator says of it."""
    probe = probe_of(name, run, "emulator")
    probe.run()
    return dict(modelled=modelled_seconds(probe), expected_bits=bits_of(probe.arrays()))


def measured(name: str, context: Context) -> dict[str, Any]:
    runs = [""] if context.quick else [run for run, _ in vertex_cases.runs(name)]
    found = {run: once(name, run, context) for run in runs}
    first = found.pop("")
    return {**first, **judged(first), "doubled": found, "estimate": estimates().get((name, ""))}


def judged(record: dict[str, Any]) -> dict[str, Any]:
    expected = record.get("expected_bits")
    return dict(bit_exact=None if expected is None else record["bits"] == expected)


def at_home(record: dict[str, Any]) -> dict[str, Any]:
    """What a record lacks that was made without an emulator."""
    name = record["spec"]["vertex"]
    doubled = {run: {**found, **modelled(name, run)} for run, found in record["doubled"].items()}
    made = {**record, **modelled(name, ""), "doubled": doubled}
    return {**made, **judged(made)}


def growth(record: dict[str, Any]) -> dict[str, float]:
    """By size: what doubling it adds, measured over modelled, without a compute set's own time."""
    found = {}
    for run, more in record.get("doubled", {}).items():
        expected = (more.get("modelled") or 0) - (record.get("modelled") or 0)
        if expected > 0:
            found[run] = (more["seconds"] - record["seconds"]) / expected
    return found


def items(context: Context) -> list[Item]:
    names = list(vertex_cases.CASES)[:: EVERY if context.quick else 1]
    return [
        Item(name, functools.partial(measured, name, context), {"vertex": name}, limit=600) for name in names
    ]
