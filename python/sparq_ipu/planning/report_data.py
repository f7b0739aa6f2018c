# SPDX-License-Identifier: Apache-2.0
"""What the report shows: plans (of a sweep's file, or made when first needed), measurements."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from sparq_ipu.commands.tables import kernel_label
from sparq_ipu.kernels import BASELINE, DEFAULT, SWEPT_BITS, TIERED
from sparq_ipu.planning import published_program as published
from sparq_ipu.planning.device_model import device_model, parameters_file
from sparq_ipu.planning.planner import plan
from sparq_ipu.planning.record import Plan
from sparq_reference import DoesNotFit
from sparq_reference.settings import CacheSpec, SparqSettings

N_HEADS, HEAD_DIM = 32, 128
LENGTHS = tuple(1024 << i for i in range(7))
BATCHES = (1, 4, 16, 64)
#: of the pictures
SETTINGS = (SparqSettings(16, 64), SparqSettings(32, 128), SparqSettings(64, 256))
HEADLINE = SparqSettings(32, 128)
#: sizes of the key index that are shown beside 16 bits, at HEADLINE
FEWER_BITS = tuple(bits for bits in SWEPT_BITS if bits != 16)
#: settings and index_bits of the table
VARIANTS = (*((settings, 16) for settings in SETTINGS), *((HEADLINE, bits) for bits in FEWER_BITS))


class Call(NamedTuple):
    """What a plan is of."""

    kernel: str
    cache: CacheSpec
    settings: SparqSettings | None = None


def dense_call(batch: int, n_kv_heads: int, seq_len: int) -> Call:
    return Call(BASELINE.name, CacheSpec(batch, n_kv_heads, HEAD_DIM, seq_len))


def sparq_call(
    batch: int, n_kv_heads: int, seq_len: int, settings: SparqSettings = HEADLINE, index_bits: int = 16
) -> Call:
    return Call(DEFAULT.name, CacheSpec(batch, n_kv_heads, HEAD_DIM, seq_len, index_bits), settings)


def brief(settings: SparqSettings) -> str:
    """Settings as pictures and tables call them."""
    return f"r={settings.rank}, k={settings.top_k}"


@dataclasses.dataclass(frozen=True)
class Section:
    """One part of the page."""

    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: str | None = None  # file name without ending


class Source:
    """Rows of plans by shape; those that a sweep's file lacks are planned, and reported on stderr."""

    def __init__(self, device: str = "bow", sweep: Path | None = None, quiet: bool = False):
        self.device = device
        self._quiet = quiet
        self._plans: dict[Call, Plan] = {}
        self._rows: dict[Call, dict[str, Any]] = {}
        lines = sweep.read_text().splitlines() if sweep else []
        for row in map(json.loads, lines):
            if (row["device"], row["n_heads"], row["head_dim"]) == (device, N_HEADS, HEAD_DIM):
                self._rows[_call_of(row)] = row

    def row(self, call: Call) -> dict[str, Any]:
        """As `Plan.row()`; "error" says why there is no plan, and is None where there is one."""
        if call not in self._rows:
            try:
                row = self.plan(call).row()
                row["error"] = None
            except DoesNotFit as error:
                row = {"error": str(error)}
            self._rows[call] = row
        return self._rows[call]

    def plan(self, call: Call) -> Plan:
        if call not in self._plans:
            cache = call.cache
            if not self._quiet:
                label = f"{kernel_label(call.kernel, cache.index_bits)}, batch {cache.batch}"
                print(f"planning {label}, seq_len {cache.capacity}", file=sys.stderr, flush=True)
            self._plans[call] = plan(
                cache.batch,
                N_HEADS,
                cache.n_kv_heads,
                cache.head_dim,
                cache.capacity,
                kernel=call.kernel,
                device=self.device,
                baseline=False,
                **cache.option_values,
                **({} if call.settings is None else call.settings.arguments()),
            )
        return self._plans[call]

    def seconds(self, call: Call) -> float | None:
        row = self.row(call)
        return None if row["error"] else row["seconds_per_query"]

    def microseconds(self, call: Call) -> str:
        """For people: likely, and in brackets with work on chip low and high."""
        row = self.row(call)
        if row["error"]:
            return "-"
        return ranged(row["seconds_per_query"], row["seconds_low"], row["seconds_high"], 1e6, ".0f")

    def speedup(self, call: Call) -> float | None:
        """Modelled, over dense-streaming of the same shape; None where one of them does not fit."""
        dense = self.seconds(dense_call(call.cache.batch, call.cache.n_kv_heads, call.cache.capacity))
        sparq = self.seconds(call)
        return dense / sparq if dense and sparq else None


def _call_of(row: dict[str, Any]) -> Call:
    """Of a row of a sweep, which may lack what has a default."""
    sizes = (row[name] for name in ("batch", "n_kv_heads", "head_dim", "seq_len"))
    cache = CacheSpec(*sizes, **CacheSpec.take(dict(row)))
    settings = None if row["rank"] is None else SparqSettings(**SparqSettings.take(dict(row)))
    return Call(row["kernel"], cache, settings)


def measured_speedups() -> dict[tuple[int, int, SparqSettings], float]:
    """Published: by (batch, seq_len, settings)."""
    rows = published.measurements()
    dense = {(m.batch, m.seq_len): m.seconds for m in rows if m.kernel == published.DENSE}
    return {
        (m.batch, m.seq_len, SparqSettings(m.rank, m.top_k)): dense[m.batch, m.seq_len] / m.seconds
        for m in rows
        if m.kernel == published.SPARQ and (m.batch, m.seq_len) in dense
    }


def stage_rows(source: Source, seq_len: int) -> Iterator[tuple[str, ...]]:
    """Steps of SparQ at HEADLINE, in program order, with the time of each for every size of the key index."""
    plans = [source.plan(sparq_call(1, 32, seq_len, index_bits=bits)) for bits in SWEPT_BITS]
    times = [p.stages_by_name() for p in plans]
    for name in _in_order([list(t) for t in times]):
        yield (name, *(number(t.get(name), 1e6, ".2f") for t in times))
    yield ("all", *(number(p.seconds_per_query, 1e6, ".2f") for p in plans))
    yield ("all, work on chip low", *(number(p.seconds_low, 1e6, ".2f") for p in plans))
    yield ("all, work on chip high", *(number(p.seconds_high, 1e6, ".2f") for p in plans))


def _in_order(lists: list[list[str]]) -> list[str]:
    """Every name once; each list's names in the order of that list, as far as the lists agree."""
    merged: list[str] = []
    for names in lists:
        at = 0
        for name in names:
            if name in merged:
                at = merged.index(name) + 1
            else:
                merged.insert(at, name)
                at += 1
    return merged


def calibration_rows() -> Iterator[tuple[str, ...]]:
    """The shipped model against the published measurements, by kernel and length."""
    model, constants = device_model("bow"), parameters_file()["published_program"]
    rows = published.measurements()
    for kernel, seq_len in sorted({(m.kernel, m.seq_len) for m in rows}):
        part = [m for m in rows if (m.kernel, m.seq_len) == (kernel, seq_len)]
        errors = sorted(
            abs(
                published.modelled_seconds(model, constants, kernel, m.batch, seq_len, m.rank, m.top_k)
                / m.seconds
                - 1
            )
            for m in part
        )
        yield (
            f"{kernel}, S={seq_len}",
            str(len(part)),
            f"{100 * errors[len(errors) // 2]:.2f}",
            f"{100 * errors[-1]:.2f}",
        )


def comparison_rows(source: Source) -> Iterator[tuple[str, ...]]:
    """Ours, modelled, beside the published program, measured, where both exist."""
    measured: dict[Call, float] = {}
    for m in published.measurements():
        settings = SparqSettings(m.rank, m.top_k) if m.rank else None
        measured[Call(m.kernel, CacheSpec(m.batch, 32, HEAD_DIM, m.seq_len), settings)] = m.seconds
    speedups = measured_speedups()
    for batch in (1, 4):
        for seq_len in (1024, 4096, 16384):
            for settings, index_bits in ((None, 16), *VARIANTS):  # None: dense attention
                speedup = published_speedup = None
                call = dense_call(batch, 32, seq_len)
                if settings is not None:
                    call = sparq_call(batch, 32, seq_len, settings, index_bits)
                    speedup = source.speedup(call)
                    if index_bits == 16:  # all that was published
                        published_speedup = speedups.get((batch, seq_len, settings))
                label = f"{kernel_label(call.kernel, index_bits)}, batch {batch}, S={seq_len}"
                yield (
                    label if settings is None else f"{label}, {brief(settings)}",
                    source.microseconds(call),
                    number(measured.get(call), 1e6, ".0f"),
                    number(speedup, 1, ".2f", "x"),
                    number(published_speedup, 1, ".2f", "x"),
                )


#: of tables of caches in three tiers, and what they are about: KV heads, top_k, bits of rows, share of the
#: selected rows that is hot
TIER_HEADER = (
    *("KV heads", "k", "rows", "hit rate"),
    *("us", "low", "high", "on chip us", "speed-up", "low", "high"),
)
#: the first step, then the least and the most of the texts in docs/reuse.md, with 4 * k hot rows
_HIT_RATES = {128: (0.0, 0.87, 0.93), 256: (0.0, 0.92, 0.96)}
TIER_POINTS = tuple(
    (n_kv_heads, top_k, row_bits, hit_rate)
    for n_kv_heads, top_k, row_bits in itertools.product((32, 8), (128, 256), (16, 8))
    for hit_rate in _HIT_RATES[top_k]
)


def tier_rows(device: str) -> Iterator[tuple[str, ...]]:
    """Plans of caches in three tiers at S=16384, 32 heads, rank 32, with a key index of 4 bits."""
    for n_kv_heads, top_k, row_bits, hit_rate in TIER_POINTS:
        p = plan(
            *(1, N_HEADS, n_kv_heads, HEAD_DIM, 16384),
            kernel=TIERED.name,
            rank=HEADLINE.rank,
            top_k=top_k,
            n_local=0,
            index_bits=4,
            row_bits=row_bits,
            hit_rate=hit_rate,
            device=device,
        )
        yield (
            str(n_kv_heads),
            str(top_k),
            "fp16" if row_bits == 16 else f"int{row_bits}",
            f"{hit_rate:.2f}",
            number(p.seconds_per_query, 1e6, ".1f"),
            number(p.seconds_low, 1e6, ".1f"),
            number(p.seconds_high, 1e6, ".1f"),
            number(p.on_chip_seconds, 1e6, ".1f"),
            number(p.speedup_vs_dense_streaming, 1, ".0f", "x"),
            number(p.speedup_low, 1, ".0f", "x"),
            number(p.speedup_high, 1, ".0f", "x"),
        )


def ranged(likely: float, low: float, high: float, factor: float, form: str) -> str:
    """The likely number, and in brackets the ends of its range where they look different."""
    first, *ends = (number(value, factor, form) for value in (likely, low, high))
    return first if set(ends) == {first} else f"{first} ({'-'.join(ends)})"


def number(value: float | None, factor: float, form: str, unit: str = "") -> str:
    return "-" if value is None else format(value * factor, form) + unit
