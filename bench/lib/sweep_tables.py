# SPDX-License-Identifier: Apache-2.0
"""What the rows of bench/sweep.py say, as Markdown tables."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Sequence

from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.kernels import BASELINE, DEFAULT, KERNELS, TIERED, Kernel
from sparq_ipu.planning import plan
from sparq_ipu.planning.device_model import NAMES
from sparq_ipu.planning.record import footprint_extrapolated
from sparq_reference.checks import ROW_BITS
from sparq_reference.settings import CacheSpec, SparqSettings, settings_columns

from .common import WORKLOAD_COLUMNS, Row, kernel_label, speedups_over

#: the published benchmark ran so many of the 336 SparQ points of its grid
PUBLISHED_RAN, PUBLISHED_POINTS = 181, 336
#: settings of the tables
MAIN: dict[str, Any] = {"rank": 32, "top_k": 128, "n_local": 0}


#: columns of the tables for what devices have too little of
REFUSED = {
    "refused: SRAM": ("tile memory",),
    "refused: 64 GB": ("streaming memory", "rows of streaming memory"),
}
#: what a row and the baseline of its speed-up have in common: not what only kernels with settings read
SHAPE = (
    "device",
    *(n for n in WORKLOAD_COLUMNS if n not in settings_columns(None) and n not in CacheSpec.options()),
)


def ranged(likely: float, low: float, high: float, factor: float, form: str) -> str:
    """The likely number, and in brackets the ends of its range where they look different."""
    first, *ends = (format(value * factor, form) for value in (likely, low, high))
    return first if set(ends) == {first} else f"{first} ({'-'.join(ends)})"


def speedups(rows: Iterable[Row]) -> list[Row]:
    """Rows of kernels that take settings, each with the modelled speed-ups over dense attention on its
    shape (None without one)."""

    def shape(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in SHAPE)

    planned = [r for r in rows if r["error"] is None]
    dense: dict[tuple[Any, ...], list[Row]] = {}
    for r in planned:
        if KERNELS[r["kernel"]].is_dense:
            dense.setdefault(shape(r), []).append(r)
    sparse = [r for r in planned if not KERNELS[r["kernel"]].is_dense]
    return [{**r, **speedups_over(dense.get(shape(r), ()), r)} for r in sparse]


def coverage_table(rows: Iterable[Row]) -> str:
    rows = list(rows)
    table = []

    def group(row: Row) -> tuple[Any, ...]:
        return row["kernel"], row["index_bits"], row["row_bits"], row["n_kv_heads"]

    for each in sorted(set(map(group, rows)), key=lambda g: (g[0], -g[1], -g[2], -g[3])):
        part = [r for r in rows if group(r) == each]
        fits = [r for r in part if r["error"] is None]
        lacking = [r["does_not_fit"]["resource"] for r in part if r["does_not_fit"]]
        refused = [sum(resource in names for resource in lacking) for names in REFUSED.values()]
        emulated = [r for r in part if r["emulated"]]
        table.append(
            (
                f"{kernel_label(*each[:3])}, {each[3]} KV heads",
                len(part),
                len(fits),
                *refused,
                len(part) - len(fits) - sum(refused),
                max((r["max_tile_bytes"] for r in fits), default="-"),
                len(emulated),
                sum(bool(r["bit_exact"] and r["plan_equals_run"]) for r in emulated),
            )
        )
    return markdown_table(
        (
            "kernel",
            "points",
            "planned",
            *REFUSED,
            "failed",
            "maximum bytes per tile",
            "emulated",
            "bit-exact and as planned",
        ),
        table,
    )


def speedup_table(
    rows: Iterable[Row], kernel: Kernel, settings: SparqSettings, index_bits: int, row_bits: int = 16
) -> str:
    wanted = {
        "kernel": kernel.name,
        **settings_columns(settings),
        "index_bits": index_bits,
        "row_bits": row_bits,
    }
    chosen = [r for r in speedups(rows) if {name: r[name] for name in wanted} == wanted]
    columns = sorted({(-r["n_kv_heads"], r["batch"]) for r in chosen})
    lengths = sorted({r["seq_len"] for r in chosen})
    cell = {
        (r["seq_len"], -r["n_kv_heads"], r["batch"]): (
            ranged(r["seconds_per_query"], r["seconds_low"], r["seconds_high"], 1e3, ".3g"),
            r["speedup_vs_best_dense"] and f"{r['speedup_vs_best_dense']:.3g}x",
            r["speedup_vs_dense_streaming"] and f"({r['speedup_vs_dense_streaming']:.3g}x)",
            footprint_extrapolated(KERNELS[r["kernel"]], r["streaming_memory_bytes"]),
        )
        for r in chosen
    }

    def text(key: tuple[int, int, int]) -> str:
        if key not in cell:
            return "-"
        milliseconds, *over, extrapolated = cell[key]
        star = "*" if extrapolated else ""
        return ", ".join((f"{milliseconds} ms{star}", *filter(None, [" ".join(filter(None, over))])))

    return markdown_table(
        ("seq_len", *(f"{-heads} KV heads, batch {batch}" for heads, batch in columns)),
        [(n, *(text((n, *column)) for column in columns)) for n in lengths],
    )


def headline_table(index_bits_of: Sequence[int]) -> str:
    table = []
    for name, seq_len in itertools.product(NAMES, (16384, 1024)):
        for kernel, index_bits in ((BASELINE, 16), *((DEFAULT, bits) for bits in index_bits_of)):
            p = plan(seq_len=seq_len, kernel=kernel.name, device=name, index_bits=index_bits, **MAIN)
            t = p.seconds_by_category
            table.append(
                (
                    f"{name}, {kernel_label(kernel.name, index_bits)}, S={seq_len}",
                    f"{p.seconds_per_query * 1e6:.1f}",
                    f"{p.seconds_low * 1e6:.1f}",
                    f"{p.seconds_high * 1e6:.1f}",
                    f"{t['streaming'] * 1e6:.1f}",
                    *(f"{t[c] * 1e6:.1f}" for c in ("compute", "exchange", "sync")),
                    f"{p.fixed_seconds * 1e6:.1f}",
                    f"{p.streamed_bytes / 1e6:.2f}",
                    f"{p.max_tile_bytes / 1024:.0f}",
                    f"{p.speedup_vs_best_dense:.3g}x",
                    f"{p.speedup_vs_dense_streaming:.3g}x",
                )
            )
    return markdown_table(
        (
            "modelled, r=32, k=128",
            "us",
            "low",
            "high",
            "streaming",
            "compute",
            "exchange",
            "sync",
            "fixed",
            "MB moved",
            "KiB/tile",
            "over the best dense plan",
            f"over {BASELINE.name}",
        ),
        table,
    )


def summary(rows: Iterable[Row]) -> str:
    """All tables. `rows`: one of each kernel and workload."""
    values = list(rows)
    main = SparqSettings(**MAIN)
    swept = sorted({row["index_bits"] for row in values if row["kernel"] == DEFAULT.name}, reverse=True)
    speeds = []
    for index_bits in swept:
        of = "" if index_bits == 16 else f", a key index of {index_bits} bits"
        heading = (
            f"Time of SparQ (r=32, k=128{of}; in brackets with work on chip low and high), speed-up over the "
            f"best dense plan, and in brackets over {BASELINE.name}, modelled for a Bow IPU (*: the cache is "
            "larger than any that was measured):"
        )
        speeds += [heading, speedup_table(values, DEFAULT, main, index_bits)]
    for row_bits in ROW_BITS:
        heading = f"The same of {kernel_label(TIERED.name, 4, row_bits)}: the first query, no row is hot:"
        speeds += [heading, speedup_table(values, TIERED, main, 4, row_bits)]
    return "\n\n".join(
        (
            "One query, batch 1, 32 heads. Everything is modelled; *fixed* is all but the bytes and packets "
            "of remote copies; *low*, *high*: with work on chip at the ends of its range.",
            headline_table(swept),
            f"Coverage of the grid; the published program ran {PUBLISHED_RAN} of its {PUBLISHED_POINTS} "
            "SparQ points.",
            coverage_table(values),
            *speeds,
        )
    )
