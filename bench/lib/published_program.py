# SPDX-License-Identifier: Apache-2.0
"""The published Poplar benchmark of SparQ attention, as counts: what the device model is calibrated on.

Its remote copies follow from its source (see bench/data/ORIGIN.md): results of a gather are laid out linearly
over all tiles, in pieces that neither respect rows nor packets. Its work on chip is that of PopLibs: the
steps and comparisons of its top-k are counted, the rest is a few constants, fitted together with the device's
parameters, and of no further use.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path
from typing import Iterable, Mapping

from sparq_ipu.planning.device_model import DeviceModel

N_HEADS, HEAD_DIM, ITEM = 32, 128, 2
#: its three programs, as the measurements name them
SRAM, DENSE, SPARQ = "dense-sram", "dense-streaming", "sparq-streaming"
#: positions that dense-streaming reads at a time
CHUNK = 128
PACKET = 1024
MEASUREMENTS = Path(__file__).resolve().parents[1] / "data" / "bow_measurements.csv"
#: of that file, what is read
COLUMNS = ("kernel", "B", "S", "r", "k", "seconds_per_query", "seconds_stderr")


@dataclasses.dataclass(frozen=True)
class Measurement:
    kernel: str
    batch: int
    seq_len: int
    rank: int  # 0: dense
    top_k: int
    seconds: float
    stderr: float


def measurements(path: Path = MEASUREMENTS) -> list[Measurement]:
    """All rows of bench/data/bow_measurements.csv, or of another file with its columns.

    Raises:
        ValueError: another column, a row with too few, no row.
        OSError: the file can not be read.
    """
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
        if not rows or any(None in (r.get(name) for name in COLUMNS) for r in rows):
            raise ValueError(f"measurements: file must have rows of {', '.join(COLUMNS)}, got others")
        return [
            Measurement(
                r["kernel"],
                int(r["B"]),
                int(r["S"]),
                int(r["r"] or 0),
                int(r["k"] or 0),
                float(r["seconds_per_query"]),
                float(r["seconds_stderr"]),
            )
            for r in rows
        ]


@dataclasses.dataclass(frozen=True)
class RemoteCopy:
    """`executions` remote copies of `rows` rows of `row_bytes`."""

    rows: int
    row_bytes: int
    executions: int = 1

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@functools.lru_cache(maxsize=None)
def packets(rows: int, row_bytes: int, tiles: int = 1472) -> int:
    """Packets of at most 1 KiB when rows land linearly on the tiles: none spans two rows or two tiles."""
    total = rows * row_bytes
    share = -(-total // tiles)
    share += -share % 8  # whole 64-bit words to a tile
    count, at = 0, 0
    while at < total:
        end = min(at - at % row_bytes + row_bytes, at - at % share + share, total)
        count += -(-(end - at) // PACKET)
        at = end
    return count


def remote_copies(kernel: str, batch: int, seq_len: int, rank: int = 0, top_k: int = 0) -> list[RemoteCopy]:
    """What one query reads from streaming memory.

    Raises:
        ValueError: an unknown kernel.
    """
    row = HEAD_DIM * ITEM
    if kernel == SRAM:
        return []
    if kernel == DENSE:  # a row: a chunk of all heads, of K and then of V
        return [RemoteCopy(1, batch * N_HEADS * CHUNK * row, 2 * seq_len // CHUNK)]
    if kernel == SPARQ:
        return [
            RemoteCopy(N_HEADS * batch * rank, seq_len * ITEM),  # K by components
            RemoteCopy(N_HEADS * batch * top_k, row, 2),  # K and V by positions
            RemoteCopy(1, N_HEADS * batch * row),  # the mean value
        ]
    raise ValueError(f"published_program: kernel must be {SRAM}, {DENSE} or {SPARQ}, got {kernel!r}")


@dataclasses.dataclass(frozen=True)
class SortingNetwork:
    """A bitonic top-k: how many steps, and how many comparisons the busiest tile makes in all of them."""

    steps: int
    comparisons: int


@functools.lru_cache(maxsize=None)
def sorting_network(batch: int, seq_len: int, top_k: int, tiles: int = 1472) -> SortingNetwork:
    """The top-k of popops (bitonic) over `batch` rows of `seq_len` scores at once.

    Sequences of `top_k` are sorted first, in log2(top_k) rounds of 1, 2, ... steps; then pairs of them are
    merged, the smaller half dropped, and the rest sorted again, until one is left. A step is an exchange and
    a compute set that compares and swaps all elements at one distance; its comparisons are split evenly over
    the tiles. `seq_len` and `top_k` count as the next power of two.
    """
    if top_k >= seq_len:  # nothing to choose
        return SortingNetwork(0, 0)
    rounds_to_sort, rounds = (top_k - 1).bit_length(), (seq_len - 1).bit_length()
    kept, steps, comparisons = 1 << rounds, 0, 0
    for i in range(rounds):
        comparisons += -(-batch * (kept // 2) // tiles)
        if i >= rounds_to_sort:
            kept //= 2
        sort_steps = min(i, rounds_to_sort)
        comparisons += sort_steps * -(-batch * (kept // 2) // tiles)
        steps += 1 + sort_steps
    return SortingNetwork(steps, comparisons)


def on_chip_features(kernel: str, batch: int, seq_len: int, top_k: int = 0) -> dict[str, float]:
    """How often each fitted constant of the program counts in one query (constants in seconds)."""
    chunks = 2 * seq_len // CHUNK
    if kernel == DENSE:
        return {
            "dense_query": 1,
            "dense_chunk": chunks,  # one remote copy and one matrix product
            "dense_chunk_of_batches": chunks if batch > 1 else 0,
        }
    if kernel == SPARQ:
        # Of its two top-k only that over positions: the other, over components, is of 25 to 28 steps whatever
        # the rank, and so part of sparq_query.
        network = sorting_network(N_HEADS * batch, seq_len, top_k)
        return {"sparq_query": 1, "sparq_sort_step": network.steps, "sparq_comparison": network.comparisons}
    return {"sram_query": 1, "sram_per_position": batch * seq_len}


def transfer_seconds(model: DeviceModel, copies: Iterable[RemoteCopy]) -> float:
    """Time of these copies without their fixed cost, which the program's constants contain."""
    return sum(
        c.executions
        * (
            model.streaming_seconds(c.bytes, packets(c.rows, c.row_bytes, model.tiles), c.rows)
            - model.remote_copy_seconds
        )
        for c in copies
    )


def modelled_seconds(
    model: DeviceModel,
    constants: Mapping[str, float],
    kernel: str,
    batch: int,
    seq_len: int,
    rank: int = 0,
    top_k: int = 0,
) -> float:
    """Modelled seconds of one query of the published program. Kernels and settings as in the data; 32 heads
    of 128 components. constants: "published_program" of device_models.json of the package."""
    features = on_chip_features(kernel, batch, seq_len, top_k)
    return transfer_seconds(model, remote_copies(kernel, batch, seq_len, rank, top_k)) + sum(
        constants[name] * count for name, count in features.items()
    )
