# SPDX-License-Identifier: Apache-2.0
"""The rules of the device model, one by one: programs that do one thing often
(probes.cpp), timed by the device itself, beside what the model says of them."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Tuple

from sparq_ipu.device_options import DeviceOptions

from .items import Context, Item

_core: Any = importlib.import_module("sparq_ipu._core")

#: a probe, its sizes, and IPUs
Spec = Tuple[str, Dict[str, int], int]
TILES = 1472


def specs(quick: bool) -> list[Spec]:
    """What is measured. Landing rows take 256 KiB of a tile at most."""
    found: list[Spec] = [("nothing", {}, 1)]
    for kind in ("compute_set", "sync", "repeat", "repeat_while_true"):
        found.append((kind, dict(n=64), 1))
    found += [("if", dict(n=64, taken=taken), 1) for taken in (0, 1)]
    sizes = (64, 4096) if quick else (4, 64, 512, 4096, 16384, 65536)
    pieces = (1, 16) if quick else (1, 4, 16, 64, 512)
    for n_bytes in sizes:
        for n in pieces:
            for senders in dict.fromkeys((1, n)):
                if n_bytes % (4 * n) == 0 and not (quick and n != 1 and senders == 1):
                    found.append(("exchange", dict(n=8, bytes=n_bytes, pieces=n, senders=senders), 1))
    found += [("broadcast", dict(n=8, bytes=n), 1) for n in sizes[1:]]
    for n_bytes in (4096,) if quick else (512, 4096, 65536):
        found += [("local_copy", dict(n=8, bytes=n_bytes, pieces=n), 1) for n in (1, n_bytes // 4)]
    rows = (256, 8192) if quick else (64, 256, 1024, 2048, 8192)
    row_bytes = (144, 1024) if quick else (144, 288, 512, 544, 1024, 2048)
    for n_rows in rows:
        for n_bytes in row_bytes:
            for tiles in (0,) if quick else (0, 64):
                if n_rows * n_bytes <= (tiles or TILES) << 18:
                    sizes_of = dict(n=4, rows=n_rows, row_bytes=n_bytes, tiles=tiles)
                    found.append(("remote_read", sizes_of, 1))
    found.append(("remote_read", dict(n=4, rows=256, row_bytes=32768, tiles=0), 1))
    found.append(("remote_write", dict(n=4, rows=1024, row_bytes=1024, tiles=0), 1))
    if not quick:
        found.append(("remote_read", dict(n=4, rows=1024, row_bytes=32768, tiles=0), 1))
        found += [("remote_write", dict(n=4, rows=n, row_bytes=512, tiles=0), 1) for n in (64, 8192)]
    for kind in ("host_write", "host_read"):
        found += [(kind, dict(n=4, bytes=4 * TILES * n), 1) for n in ((64,) if quick else (1, 64, 1024))]
    found.append(("remote_read", dict(n=4, rows=1024, row_bytes=1024, tiles=0), 4))
    found += [("link", dict(n=8, bytes=n), 2) for n in ((4, 4096) if quick else (4, 64, 4096, 65536))]
    return found


def name_of(spec: Spec) -> str:
    kind, sizes, n_ipus = spec
    words = [kind, *(f"{name}={value}" for name, value in sizes.items())]
    return " ".join([*words, *([f"ipus={n_ipus}"] if n_ipus != 1 else [])])


def probe_of(spec: Spec, device: str) -> Any:
    """The probe, loaded."""
    kind, sizes, n_ipus = spec
    return _core.Probe(kind, sizes, options=DeviceOptions(n_ipus=n_ipus), device=device)


def as_dict(spec: Spec) -> dict[str, Any]:
    kind, sizes, n_ipus = spec
    return dict(kind=kind, sizes=sizes, n_ipus=n_ipus)


def from_dict(spec: dict[str, Any]) -> Spec:
    return spec["kind"], spec["sizes"], spec["n_ipus"]


def modelled_seconds(probe: Any, model: dict[str, Any] | None = None) -> float:
    """Of the last run of an emulated probe, all of its repeats."""
    return float(_core.emulator_last_run(probe, model or {})["seconds"]["total"])


def measured(spec: Spec, context: Context) -> dict[str, Any]:
    """Seconds of the timed part, all its repeats: the median of five runs, after one."""
    probe = probe_of(spec, context.device)
    runs = [probe.run() for _ in range(6 if context.device == "ipu" else 1)][-5:]
    found: dict[str, Any] = dict(host_seconds=sorted(host for _, host in runs)[len(runs) // 2])
    if context.device == "ipu":
        cycles = sorted(n for n, _ in runs)
        middle = cycles[len(cycles) // 2]
        return dict(found, seconds=middle / probe.clock_hz, cycles=cycles, clock_hz=probe.clock_hz)
    return dict(
        host_seconds=None,
        seconds=modelled_seconds(probe, context.as_model),
        modelled=modelled_seconds(probe),
        clock_hz=context.as_model.get("clock_hz", probe.clock_hz),
    )


def at_home(record: dict[str, Any]) -> dict[str, Any]:
    """What a record lacks that was made without an emulator."""
    probe = probe_of(from_dict(record["spec"]), "emulator")
    probe.run()
    return {**record, "modelled": modelled_seconds(probe)}


def items(context: Context) -> list[Item]:
    def item(spec: Spec) -> Item:
        return Item(name_of(spec), lambda: measured(spec, context), as_dict(spec), 300)

    return [item(spec) for spec in specs(context.quick)]
