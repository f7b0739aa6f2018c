# SPDX-License-Identifier: Apache-2.0
"""Plan (and, where it fits this machine, emulate) attention over a grid of shapes.

    python bench/sweep.py --json sweep.jsonl                     # plan everything; run again to resume
    python bench/sweep.py --json sweep.jsonl --emulate 300e6     # and emulate caches of up to 300 MB
    python bench/sweep.py --json sweep.jsonl --summary           # tables of what the file holds
    python bench/sweep.py --S 4096 --B 1 --kv-heads 8            # a few points, to stdout

The grid has every combination of the values of the flags, for every kernel. Flags of the shape and of SparQ
take one value or more. By default the grid is that of the published benchmark, once with 32 KV heads and once
with 8. With the rank and top-k of the main job (32 and 128) it has a key index of 8, 4 and 2 bits too, and a
cache in three tiers, also with rows of 8 bits. In three tiers the first query is planned and run, when no row
is hot; later queries are faster, since earlier steps selected many of their rows.

One JSON line for each kernel and shape. A sweep also resumes from the file of --json: lines that it has are
not made again. A shape that does not fit the device is a line too; it says what there is too little of. All
times are modelled.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib
import itertools
import json
import math
import sys
from typing import Any, Iterable, Iterator

import numpy as np
from lib.common import (
    ARGUMENTS,
    NEWER_OPTIONS,
    ROOT,
    WORKLOAD_COLUMNS,
    CommandLine,
    Progress,
    Row,
    Workload,
    guarded,
    new_row,
    plan_into,
)
from lib.inputs import random_positions
from lib.origin import repeat_command
from lib.sweep_tables import summary

from sparq_ipu.commands.tables import replace_block
from sparq_ipu.kernels import Attention, Kernel
from sparq_ipu.planning.device_model import NAMES, device_model
from sparq_reference.checks import INDEX_BITS, ROW_BITS
from sparq_reference.settings import CacheSpec

_core: Any = importlib.import_module("sparq_ipu._core")

DOCUMENT = ROOT / "docs/ipu_tables.md"
#: bytes that a tile has in a plan only, by the kernel's memory: how many rows are taken to be missing; and of
#: each selection, that it has no clash
ASSUMED_BYTES = {"streaming": 0, "sram": 0, "tiered": 8}
NO_CLASH_BYTES = 24
#: steps of a selection (poplar_ops/src/key_topk.cpp) that a clash runs again: not the keys, nor the branch
SELECTION = tuple(name for name in _core.stages()["top-k"] if name not in ("group_keys", "select_again"))
#: positions written at once
BLOCK = 2048
#: of an emulated point, so many KV heads are compared with the NumPy reference; all with the CPU kernels
REFERENCE_HEADS = 4
#: the published benchmark's, by argument; one value for what is not here
GRID = {
    "capacity": [1024 << i for i in range(7)],
    "batch": [1, 4, 16, 64],
    "n_kv_heads": [32, 8],
    "rank": [16, 32, 64],
    "top_k": [64, 128, 256, 512],
    "n_local": 0,
    "index_bits": list(INDEX_BITS),
    "row_bits": list(ROW_BITS),
}
#: where key indices of all sizes are in the grid, unless they are asked for
MAIN = {"rank": 32, "top_k": 128}


@dataclasses.dataclass(frozen=True)
class Point:
    """One kernel on one workload."""

    kernel: Kernel
    workload: Workload

    def key(self, device: str) -> tuple[Any, ...]:
        """What tells its row from others: see `key_of`."""
        return (self.kernel.name, device, *self.workload.columns().values())

    @property
    def cache_bytes(self) -> int:
        """The cache, in whatever memory."""
        spec = self.workload.spec
        streamed, in_sram = self.kernel.cache_bytes(spec)
        return sum(streamed.values()) + in_sram

    def row(self, device: str, seed: int) -> Row:
        """Its plan, or why there is none."""
        words = ["--kernel", self.kernel.name, *self.workload.flags(), "--device", device]
        row = new_row(
            "sweep",
            self.kernel.name,
            device,
            self.workload,
            time_source="modelled",
            seed=seed,
            command=repeat_command("sweep.py", words),
        )
        plan_into(row, self.workload, device=device, baseline=False)
        row["emulated"] = False
        return row


def key_of(row: Row) -> tuple[Any, ...]:
    """Kernel, device model, and all that describes a workload."""
    return (row["kernel"], row["device"], *(row.get(name) for name in WORKLOAD_COLUMNS))


def fits_kernel(kernel: Kernel, workload: Workload) -> bool:
    """Whether there can be such a cache: in three tiers the key index has few bits."""
    return kernel.memory != "tiered" or workload.spec.index_bits != 16


def grid(cli: CommandLine, a: argparse.Namespace) -> list[Point]:
    """Small caches first; points of one shape side by side."""

    def wanted(workload: Workload) -> bool:
        columns = workload.columns()
        is_main = all(columns[name] == value for name, value in MAIN.items())
        few_bits = workload.spec.index_bits == 4  # rows of 8 bits go with these, unless others are asked for
        if workload.spec.row_bits != 16 and not few_bits and a.row_bits is None:
            return False
        return is_main or a.index_bits is not None or workload == workload.with_plain_cache()

    points = [
        Point(kernel, workload)
        for kernel in cli.chosen(a).values()
        for workload in dict.fromkeys(w.on(kernel) for w in cli.workloads(a, not kernel.is_dense))
        if wanted(workload) and fits_kernel(kernel, workload)
    ]

    def size(point: Point) -> tuple[Any, ...]:
        spec = point.workload.spec
        return spec.n_tasks * spec.capacity, spec.n_kv_heads, spec.batch, repr(spec), point.workload.n_heads

    return sorted(points, key=size)


def filled(session: Any, point: Point, seed: int) -> Any:
    """The session with the positions of a point in its cache, a block at a time: the emulator's streaming
    memory is then all that grows with the cache."""
    spec = point.workload.spec
    at_once = (
        spec.capacity if point.kernel.memory == "sram" else BLOCK
    )  # each write of a cache in SRAM moves all
    for first in range(0, spec.capacity, at_once):
        n = min(at_once, spec.capacity - first)
        key = np.empty((spec.batch, spec.n_kv_heads, n, spec.head_dim), np.float16)
        value = np.empty_like(key)
        for b, at in itertools.product(range(spec.batch), range(0, n, BLOCK)):
            part = random_positions(spec, seed, b, (first + at) // BLOCK, min(BLOCK, n - at))
            key[b, :, at : at + BLOCK], value[b, :, at : at + BLOCK] = part
        session.write(key, value, [n] * spec.batch)
    return session


def expected_outputs(points: list[Point], query: np.ndarray, seed: int) -> list[np.ndarray]:
    """What the CPU kernels make of points of one shape, one element of the batch at a time."""
    from sparq_ipu import KVCache
    from sparq_ipu.attention import attention

    spec = dataclasses.replace(points[0].workload.spec, batch=1)
    outputs = [np.empty_like(query) for _ in points]
    for b in range(len(query)):
        cache = KVCache(**dataclasses.asdict(spec), device="cpu")
        for at in range(0, spec.capacity, BLOCK):
            key, value = random_positions(spec, seed, b, at // BLOCK, min(BLOCK, spec.capacity - at))
            cache.append(key[None], value[None])
        for point, output in zip(points, outputs):
            output[b] = attention(query[b : b + 1], cache, point.workload.settings)[0]
    return outputs


def sampled_heads(spec: CacheSpec, seed: int) -> list[tuple[int, int]]:
    """(element, KV head) that are compared with the reference: all of a small batch, else the first, the
    last, and some between."""
    every = list(itertools.product(range(spec.batch), range(spec.n_kv_heads)))
    if len(every) <= REFERENCE_HEADS:
        return every
    rng = np.random.default_rng((seed, len(every), spec.capacity))
    between = rng.choice(len(every) - 2, REFERENCE_HEADS - 2, replace=False) + 1
    return [every[i] for i in sorted({0, len(every) - 1, *map(int, between)})]


def equals_reference(
    points: list[Point], outputs: list[np.ndarray], query: np.ndarray, seed: int
) -> list[bool]:
    """Whether outputs of points of one shape have the bits of the NumPy reference in the sampled KV heads."""
    from sparq_ipu import KVCache
    from sparq_ipu.attention import attention

    shape = points[0].workload
    spec, group = shape.spec, shape.n_heads // shape.spec.n_kv_heads
    one = dataclasses.replace(spec, batch=1, n_kv_heads=1)
    equal = [True] * len(points)
    for b, of_element in itertools.groupby(sampled_heads(spec, seed), key=lambda pair: pair[0]):
        heads = [h for _, h in of_element]
        caches = [KVCache(**dataclasses.asdict(one), device="reference") for _ in heads]
        for at in range(0, spec.capacity, BLOCK):
            key, value = random_positions(spec, seed, b, at // BLOCK, min(BLOCK, spec.capacity - at))
            for h, cache in zip(heads, caches):
                cache.append(key[None, h : h + 1], value[None, h : h + 1])
        for h, cache in zip(heads, caches):
            own = slice(h * group, (h + 1) * group)
            for i, point in enumerate(points):
                expected = attention(query[b : b + 1, own], cache, point.workload.settings)[0]
                found = outputs[i][b, own]
                equal[i] &= bool(np.array_equal(found.view(np.uint16), expected.view(np.uint16)))
    return equal


def usual_seconds(steps: list[dict[str, Any]]) -> tuple[float, bool]:
    """All steps but those of a selection that began again, which is for the data to say: a plan has none; and
    whether there were any."""
    again, usual = False, []
    for step in steps:
        name = step["name"].split("/")[-1]
        again = name == "start_selection" or (again and name in SELECTION)
        if not again:
            usual.append(step["seconds"]["total"])
    return math.fsum(usual), len(usual) < len(steps)


def emulate(points: list[Point], rows: list[Row], seed: int) -> None:
    """Run points of one shape on the emulator: are their bits those of the CPU kernels, and in some heads
    those of the NumPy reference, and their counts the plans'? The answers go into their rows."""
    if not points:
        return
    shape = points[0].workload
    query = np.random.default_rng(seed).standard_normal(
        (shape.spec.batch, shape.n_heads, shape.spec.head_dim), np.float32
    )
    query = query.astype(np.float16)
    n_checked, n_tasks = len(sampled_heads(shape.spec, seed)), shape.spec.n_tasks
    outputs = []
    for point, row, expected in zip(points, rows, expected_outputs(points, query, seed)):
        session = filled(
            _core.Session(
                point.workload.spec,
                point.workload.n_heads,
                attention=[Attention(point.kernel.name, point.workload.settings)],
                append=False,
                device="emulator",
            ),
            point,
            seed,
        )
        output = session.attention(0, query)
        counted = _core.emulator_last_run(session, device_model(row["device"]).parameters())
        bytes_of_tile = _core.emulator_memory(session)["bytes"]
        del session  # before the next one takes as much memory
        outputs.append(output)
        seconds, selected_again = usual_seconds(counted["steps"])
        assumed = ASSUMED_BYTES[point.kernel.memory] + (0 if point.kernel.is_dense else NO_CLASH_BYTES)
        row.update(
            emulated=True,
            selected_again=selected_again,
            checked_against=f"CPU kernels; NumPy reference in {n_checked} of {n_tasks} KV heads",
            bit_exact=bool(np.array_equal(output.view(np.uint16), expected.view(np.uint16))),
            plan_equals_run=math.isclose(seconds, row["seconds_per_query"], rel_tol=1e-12)
            and 0 <= row["max_tile_bytes"] - bytes_of_tile <= assumed,
        )
        if not row["bit_exact"]:
            row["error"] = "the emulated result differs from that of the CPU kernels"
        elif not row["plan_equals_run"]:
            row["error"] = "the emulated run differs from the plan"
    for row, equal in zip(rows, equals_reference(points, outputs, query, seed)):
        if not equal:
            row.update(bit_exact=False, error="the emulated result differs from that of the NumPy reference")


def work(points: list[Point], device: str, emulate_bytes: float, seed: int) -> list[Row]:
    """The rows of points of one shape."""
    rows = [point.row(device, seed) for point in points]
    chosen = [
        (point, row)
        for point, row in zip(points, rows)
        if row["error"] is None and point.cache_bytes <= emulate_bytes
    ]
    emulate([point for point, _ in chosen], [row for _, row in chosen], seed)
    return rows


def latest(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    """The last row of every kernel and workload."""
    return {key_of(row): row for row in rows}


def parts(points: list[Point], size: int) -> Iterator[list[Point]]:
    """At most `size` points at a time, all of one shape."""
    for _, same in itertools.groupby(points, key=lambda p: (p.workload.spec, p.workload.n_heads)):
        group = list(same)
        for i in range(0, len(group), size):
            yield group[i : i + size]


def run(cli: CommandLine, a: argparse.Namespace) -> int:
    """Make the lines that the file lacks. Exit status 1 if an emulated result was wrong."""
    done = latest(a.json.read() if a.json else [])

    def missing(point: Point) -> bool:
        row = done.get(point.key(a.device))
        if row is None:
            return True
        return row["error"] is None and not row["emulated"] and point.cache_bytes <= a.emulate

    every = grid(cli, a)
    points = [p for p in every if missing(p)]
    progress = Progress()
    progress.line(f"{len(points)} to do, {len(every) - len(points)} done before")
    n, status = 0, 0
    with concurrent.futures.ProcessPoolExecutor(a.jobs) as pool:
        futures = [pool.submit(work, part, a.device, a.emulate, a.seed) for part in parts(points, 4)]
        for future in concurrent.futures.as_completed(futures):
            rows = future.result()
            if a.json:
                a.json.append(rows)
            else:
                print("".join(json.dumps(row) + "\n" for row in rows), end="", flush=True)
            for row in rows:
                if row["emulated"] and row["error"]:
                    status = 1
                    progress.line(f"\n{row['error']}: {row['command']}")
            n += len(rows)
            progress.count(n, len(points))
    return status


def command_line() -> CommandLine:
    """The flags; --help explains them."""
    cli = CommandLine(
        __file__,
        __doc__,
        "Exit status: 0 ok, 1 an emulated result or its counts were wrong, 2 bad usage.",
        many=ARGUMENTS,
        defaults=GRID,
        without=NEWER_OPTIONS,
    )
    cli.add_kernel(many=True)
    cli.add_run("the random inputs of --emulate")
    add = cli.run.add_argument
    add("--device", choices=NAMES, default="bow", help="device model that times are of [%(default)s]")
    text = (
        "also run, on the emulator, where the cache has at most so many bytes (SparQ keeps K twice), "
        "and compare: the result with that of the CPU kernels, the counts with the plan. Each process needs "
        "about so much memory [0: run nothing]"
    )
    add("--emulate", type=float, default=0, metavar="BYTES", help=text)
    add("--jobs", type=int, default=1, metavar="N", help="processes [1]")
    add("--summary", action="store_true", help="only print tables of what the file of --json holds")
    add("--write", action="store_true", help=f"only put these tables into docs/{DOCUMENT.name}")
    return cli


def parse(cli: CommandLine, argv: list[str] | None) -> argparse.Namespace:
    """The arguments, checked; a shape that is refused later does not fit, rather than being mistyped."""
    a = cli.parse(argv)
    cli.at_least(a, jobs=1)
    if not a.emulate >= 0:
        cli.error(f"--emulate must be at least 0, got {a.emulate}")
    if (a.summary or a.write) and not (a.json and a.json.path.exists()):
        cli.error(f"--json must name a file with results, got {a.json and a.json.path}")
    if a.summary or a.write:
        work = ("kernel", "device", "emulate", "jobs", "seed", *ARGUMENTS)
        cli.refuse(a, "with --write" if a.write else "with --summary", *work)
        if a.write:
            cli.refuse(a, "with --write", "summary")
    elif not a.emulate:
        cli.refuse(a, "without --emulate", "seed")
    cli.chosen(a)
    return a


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = parse(cli, argv)
    if not a.summary and not a.write:
        return run(cli, a)
    text = summary(latest(a.json.read()).values())
    if a.write:
        replace_block(DOCUMENT, "plans", text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
