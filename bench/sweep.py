# SPDX-License-Identifier: Apache-2.0
"""Plan (and, where it fits this machine, emulate) attention over a grid of shapes.

    python bench/sweep.py --out sweep.jsonl                     # plan everything; run again to resume
    python bench/sweep.py --out sweep.jsonl --emulate 300e6     # and emulate caches of up to 300 MB
    python bench/sweep.py --out sweep.jsonl --summary           # tables of what the file holds

The grid is that of the published benchmark (seq_len 1024 to 65536, batch 1 to 64, rank 16 to 64, top_k 64 to
512, 32 heads of 128 components), once with 32 KV heads and once with 8. One JSON line per kernel and
configuration, with the names of bench/ipu_sparq.py. Lines that the file has are not made again. All times are
modelled.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Iterator

import numpy as np
from inputs import git_revision, random_positions
from sweep_tables import summary

from sparq_ipu import _core
from sparq_ipu.planning import plan
from sparq_ipu.planning.device_model import device_model
from sparq_ipu.tables import replace_block
from sparq_reference import checks

DOCUMENT = Path(__file__).resolve().parent.parent / "docs/device_model.md"
N_HEADS, HEAD_DIM = 32, 128
#: positions written at once
BLOCK = 2048
KEY = ("kernel", "device", "batch", "n_heads", "n_kv_heads", "head_dim", "seq_len", "rank", "top_k")


@dataclasses.dataclass(frozen=True)
class Point:
    """One kernel on one shape."""

    kernel: str
    batch: int
    n_kv_heads: int
    seq_len: int
    rank: int | None = None
    top_k: int | None = None

    def arguments(self) -> dict[str, Any]:
        sparq = {} if self.rank is None else {"rank": self.rank, "top_k": self.top_k}
        return dict(
            batch=self.batch,
            n_heads=N_HEADS,
            n_kv_heads=self.n_kv_heads,
            head_dim=HEAD_DIM,
            seq_len=self.seq_len,
            kernel=self.kernel,
            **sparq,
        )

    def key(self, device: str) -> tuple[Any, ...]:
        return (
            self.kernel,
            device,
            self.batch,
            N_HEADS,
            self.n_kv_heads,
            HEAD_DIM,
            self.seq_len,
            self.rank,
            self.top_k,
        )

    def cache_bytes(self) -> int:
        """The cache, fp16: K and V of all heads; for SparQ K once more, by component."""
        copies = 2 if self.rank is None else 3
        return copies * self.batch * self.n_kv_heads * self.seq_len * HEAD_DIM * 2


def grid(a: argparse.Namespace) -> list[Point]:
    """Small caches first."""
    points = []
    for n_kv_heads in a.kv_heads:
        for batch in a.batch:
            for seq_len in a.seq_len:
                points += [
                    Point(kernel, batch, n_kv_heads, seq_len) for kernel in ("dense-streaming", "dense-sram")
                ]
                points += [
                    Point("sparq-streaming", batch, n_kv_heads, seq_len, rank, top_k)
                    for rank in a.rank
                    for top_k in a.top_k
                ]
    return sorted(points, key=lambda p: (p.batch * p.n_kv_heads * p.seq_len, p.n_kv_heads, p.batch))


def planned_row(point: Point, device: str) -> dict[str, Any]:
    """The plan of a point, or why there is none."""
    try:
        row = plan(**point.arguments(), device=device, baseline=False).row()
        row["error"] = None
    except ValueError as error:
        row = dict(zip(KEY, point.key(device)))
        row["error"] = str(error)
    row.update(git=git_revision(), emulated=False)
    return row


def filled(session: Any, point: Point) -> Any:
    """The session with the positions of a point in its cache, a block at a time: the emulator's streaming
    memory is then all that grows with the cache."""
    block = point.seq_len if point.kernel == "dense-sram" else BLOCK  # a cache in SRAM is written at once
    for first in range(0, point.seq_len, block):
        n = min(block, point.seq_len - first)
        shape = (point.batch, point.n_kv_heads, n, HEAD_DIM)
        key, value = np.empty(shape, np.float16), np.empty(shape, np.float16)
        for b in range(point.batch):
            for at in range(0, n, BLOCK):
                part = random_positions(
                    b, (first + at) // BLOCK, point.n_kv_heads, min(BLOCK, n - at), HEAD_DIM
                )
                key[b, :, at : at + BLOCK], value[b, :, at : at + BLOCK] = part
        session.write(key, value, [n] * point.batch)
    return session


def expected_outputs(points: list[Point], query: np.ndarray) -> list[np.ndarray]:
    """What the CPU kernels make of points of one shape, one element of the batch at a time."""
    from sparq_ipu import KVCache, dense_attention, sparq_attention

    first = points[0]
    outputs = [np.empty_like(query) for _ in points]
    for b in range(first.batch):
        cache = KVCache(1, first.n_kv_heads, HEAD_DIM, first.seq_len, device="cpu")
        for at in range(0, first.seq_len, BLOCK):
            n = min(BLOCK, first.seq_len - at)
            key, value = random_positions(b, at // BLOCK, first.n_kv_heads, n, HEAD_DIM)
            cache.append(key[None], value[None])
        for point, output in zip(points, outputs):
            output[b] = (
                dense_attention(query[b : b + 1], cache)
                if point.rank is None
                else sparq_attention(query[b : b + 1], cache, rank=point.rank, top_k=point.top_k)
            )[0]
    return outputs


def emulate(points: list[Point], rows: list[dict[str, Any]]) -> None:
    """Run points of one shape on the emulator: are their bits those of the CPU kernels, their counts the
    plans'? The answers go into their rows."""
    if not points:
        return
    query = np.random.default_rng(0).standard_normal((points[0].batch, N_HEADS, HEAD_DIM), np.float32)
    query = query.astype(np.float16)
    for point, row, expected in zip(points, rows, expected_outputs(points, query)):
        is_sparq = point.kernel == "sparq-streaming"
        session = filled(
            _core.Session(
                _core.Shape(point.batch, N_HEADS, point.n_kv_heads, HEAD_DIM, point.seq_len),
                dense_sram=point.kernel == "dense-sram",
                dense_streaming=point.kernel == "dense-streaming",
                sparq=[(point.rank, point.top_k, 0, True)] if is_sparq else [],
                append=False,
                device="emulator",
            ),
            point,
        )
        output = session.sparq(0, query) if is_sparq else session.dense(query)
        counted = _core.emulator_last_run(session, device_model(row["device"]).parameters())
        bytes_of_tile = _core.emulator_memory(session)["bytes"]
        del session  # before the next one takes as much memory
        row.update(
            emulated=True,
            bit_exact=bool(np.array_equal(output.view(np.uint16), expected.view(np.uint16))),
            plan_equals_run=counted["seconds"]["total"] == row["seconds_per_query"]
            and bytes_of_tile == row["max_tile_bytes"],
        )
        if not row["bit_exact"]:
            row["error"] = "the emulated result differs from that of the CPU kernels"
        elif not row["plan_equals_run"]:
            row["error"] = "the emulated run differs from the plan"


def work(points: list[Point], device: str, emulate_bytes: float) -> list[dict[str, Any]]:
    """The rows of points of one shape."""
    rows = [planned_row(point, device) for point in points]
    chosen = [
        (point, row)
        for point, row in zip(points, rows)
        if row["error"] is None and point.cache_bytes() <= emulate_bytes
    ]
    emulate([point for point, _ in chosen], [row for _, row in chosen])
    return rows


def read(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The last line of every configuration; a line cut off by an interruption does not count."""
    rows = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[tuple(row[name] for name in KEY)] = row
    return rows


def parts(points: list[Point], size: int) -> Iterator[list[Point]]:
    """At most `size` points at a time, all of one shape."""
    for _, same in itertools.groupby(points, key=lambda p: (p.batch, p.n_kv_heads, p.seq_len)):
        group = list(same)
        for i in range(0, len(group), size):
            yield group[i : i + size]


def run(a: argparse.Namespace) -> int:
    """Make the lines that the file lacks. Exit status 1 if an emulated result was wrong."""
    done = read(a.out)

    def missing(point: Point) -> bool:
        row = done.get(point.key(a.device))
        if row is None:
            return True
        small = point.cache_bytes() <= a.emulate
        return small and row["error"] is None and not row["emulated"]

    points = [p for p in grid(a) if missing(p)]
    print(f"{len(points)} to do, {len(grid(a)) - len(points)} done before", file=sys.stderr)
    start, n, status = time.perf_counter(), 0, 0
    if a.out.exists() and a.out.stat().st_size and not a.out.read_bytes().endswith(b"\n"):
        with open(a.out, "a") as file:
            file.write("\n")  # after an interruption in the middle of a line
    with open(a.out, "a") as file, concurrent.futures.ProcessPoolExecutor(a.jobs) as pool:
        futures = [pool.submit(work, part, a.device, a.emulate) for part in parts(points, 4)]
        for future in concurrent.futures.as_completed(futures):
            for row in future.result():
                file.write(json.dumps(row) + "\n")
                n += 1
                if row["emulated"] and row["error"]:
                    status = 1
                    print(f"\n{row['error']}: {[row[name] for name in KEY]}", file=sys.stderr)
            file.flush()
            passed = time.perf_counter() - start
            left = passed / n * (len(points) - n)
            print(f"\r{n}/{len(points)}, {passed:.0f} s, about {left:.0f} s left ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return status


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines, appended to")
    for name, default, text in (
        ("seq-len", [1024 << i for i in range(7)], "cached positions"),
        ("batch", [1, 4, 16, 64], "batch sizes"),
        ("kv-heads", [32, 8], "KV heads, of 32 query heads"),
        ("rank", [16, 32, 64], "ranks"),
        ("top-k", [64, 128, 256, 512], "top-k"),
    ):
        parser.add_argument(
            f"--{name}", type=int, nargs="+", default=default, metavar="N", help=f"{text} {default}"
        )
    parser.add_argument(
        "--device", choices=("bow", "gc200"), default="bow", help="device model [%(default)s]"
    )
    parser.add_argument(
        "--emulate",
        type=float,
        default=0,
        metavar="BYTES",
        help="emulate too where the cache has at most so many bytes, K counting twice for SparQ [0]; each "
        "process needs about so much memory",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes [%(default)s]")
    parser.add_argument("--summary", action="store_true", help="only print the tables of the file")
    parser.add_argument(
        "--write", action="store_true", help=f"only put the tables of the file into docs/{DOCUMENT.name}"
    )
    a = parser.parse_args(arguments)
    if a.jobs < 1 or not a.emulate >= 0:
        parser.error(f"--jobs must be at least 1 and --emulate at least 0, got {a.jobs} and {a.emulate}")
    try:  # a line with an error counts as done: of shapes that do not fit, not of numbers mistyped
        for sizes in itertools.product(a.batch, a.kv_heads, [HEAD_DIM], a.seq_len):
            checks.check_cache("sweep", *sizes)
        for rank, top_k in itertools.product(a.rank, a.top_k):
            checks.check_sparq_settings("sweep", rank, top_k, 0, HEAD_DIM)
    except ValueError as error:
        parser.error(str(error))
    for n_kv_heads in a.kv_heads:
        if N_HEADS % n_kv_heads:
            parser.error(f"--kv-heads must divide {N_HEADS} query heads, got {n_kv_heads}")
    if (a.summary or a.write) and not a.out.exists():
        parser.error(f"--out must name a file with results, got {a.out}")
    return a


def main(arguments: list[str] | None = None) -> int:
    a = parse(arguments)
    if a.summary or a.write:
        text = summary(read(a.out))
        if a.write:
            replace_block(DOCUMENT, "plans", text)
        else:
            print(text)
        return 0
    return run(a)


if __name__ == "__main__":
    sys.exit(main())
