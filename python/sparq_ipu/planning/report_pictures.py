# SPDX-License-Identifier: Apache-2.0
"""Pictures of the report (matplotlib). Lines are modelled; hollow circles are published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from sparq_ipu.commands.extras import hint
from sparq_ipu.commands.tables import kernel_label
from sparq_ipu.kernels import BASELINE, SWEPT_BITS
from sparq_ipu.planning.report_data import (
    BATCHES,
    FEWER_BITS,
    HEAD_DIM,
    HEADLINE,
    LENGTHS,
    N_HEADS,
    SETTINGS,
    Call,
    Source,
    brief,
    dense_call,
    measured_speedups,
    sparq_call,
)
from sparq_reference.settings import SparqSettings

COLOURS = ("#0b6e99", "#c4501b", "#4a7c2f", "#7a4f9e", "#8a6d1d", "#5c6770")

OTHERS = "everything else on chip"

#: of a tile in a cycle, from vendor figures: FLOP of the fp16 matrix unit, FLOP of fp32 vector
#: multiply-accumulate, bytes loaded from SRAM
MATRIX_FLOP, VECTOR_FLOP, SRAM_BYTES = 128, 4, 16


def stage_seconds(row: dict[str, Any]) -> dict[str, float]:
    """Seconds by stage of attention, `_core.stages`; what belongs to none is in OTHERS."""
    from sparq_ipu import _core

    groups = {name: label for label, names in _core.stages().items() for name in names}
    result = dict.fromkeys(_core.stages(), 0.0)
    result[OTHERS] = 0.0
    for name, seconds in row["stages"].items():
        result[groups.get(name.split("/")[-1], OTHERS)] += seconds
    return result


def _axes(plt: Any, n: int = 1, width: float = 6.0) -> Any:
    figure, axes = plt.subplots(1, n, figsize=(width * n, 4), layout="constrained", squeeze=False)
    for axis in axes[0]:
        axis.grid(True, color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes[0]


def _lengths_axis(axis: Any) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(LENGTHS, [f"{n // 1024}k" for n in LENGTHS])
    axis.minorticks_off()
    axis.set_xlabel("cached positions")


def speedup(plt: Any, source: Source) -> Any:
    figure, (left, right) = _axes(plt, 2)
    measured = measured_speedups()
    for colour, settings in zip(COLOURS, SETTINGS):
        calls = [sparq_call(1, 32, n, settings) for n in LENGTHS]
        _speedup_line(left, source, measured, calls, brief(settings), colour)
    for style, bits in zip(("--", ":"), FEWER_BITS):
        colour = COLOURS[SETTINGS.index(HEADLINE)]
        calls = [sparq_call(1, 32, n, index_bits=bits) for n in LENGTHS]
        _speedup_line(left, source, {}, calls, f"{brief(HEADLINE)}, int{bits}", colour, style)
    left.set_title("batch 1", fontsize=10)
    for colour, batch in zip(COLOURS, BATCHES):
        calls = [sparq_call(batch, 32, n) for n in LENGTHS]
        _speedup_line(right, source, measured, calls, f"batch {batch}", colour)
    right.set_title(brief(HEADLINE), fontsize=10)
    for axis in (left, right):
        _lengths_axis(axis)
        axis.set_ylabel("speed-up over dense-streaming")
        axis.set_ylim(bottom=0)
        axis.axhline(1, color="#999999", linewidth=0.8)
        axis.plot([], [], "o", mfc="none", color="#555555", label="published, measured")
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"SparQ on one IPU, {N_HEADS} heads of {HEAD_DIM}: "
        f"lines modelled ({source.device}), circles measured (Bow)",
        fontsize=11,
    )
    return figure


def _speedup_line(
    axis: Any,
    source: Source,
    measured: dict[tuple[int, int, SparqSettings], float],
    calls: list[Call],
    label: str,
    colour: str,
    style: str = "-",
) -> None:
    points = [(call.cache.capacity, source.speedup(call)) for call in calls]
    points = [(n, s) for n, s in points if s]
    axis.plot(*zip(*points), style, color=colour, label=label + ", modelled")
    there = []
    for _, cache, settings in calls:
        if settings is not None and (cache.batch, cache.capacity, settings) in measured:
            there.append((cache.capacity, measured[cache.batch, cache.capacity, settings]))
    if there:
        axis.plot(*zip(*there), "o", mfc="none", color=colour)


def stages(plt: Any, source: Source) -> Any:
    figure, (axis,) = _axes(plt, width=9)
    shown = [(n, 16) for n in LENGTHS] + [(n, bits) for bits in FEWER_BITS for n in (4096, 16384, 65536)]
    rows = [source.row(sparq_call(1, 32, n, index_bits=bits)) for n, bits in shown]
    names = [f"{n // 1024}k" + ("" if bits == 16 else f" int{bits}") for n, bits in shown]
    totals = [row["seconds_per_query"] for row in rows]
    left = [0.0] * len(rows)
    groups = [stage_seconds(row) for row in rows]
    for colour, label in zip((*COLOURS, "#b9b9b9"), groups[0]):
        share = [100 * g[label] / total for g, total in zip(groups, totals)]
        axis.barh(range(len(rows)), share, left=left, color=colour, label=label, height=0.7)
        left = [a + b for a, b in zip(left, share)]
    axis.set_yticks(range(len(rows)), [f"{name}: {t * 1e6:.0f} us" for name, t in zip(names, totals)])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the modelled time")
    axis.set_title(f"SparQ by stage, batch 1, {brief(HEADLINE)} (modelled, {source.device})", fontsize=11)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def sram(plt: Any, source: Source) -> Any:
    figure, (axis,) = _axes(plt, width=9)
    plans = [
        (f"SparQ, batch {batch}, S={n}", source.plan(sparq_call(batch, 32, n)))
        for batch, n in ((1, 16384), (16, 16384), (64, 16384))
    ]
    plans.append((f"{BASELINE.name}, batch 1, S=16384", source.plan(dense_call(1, 32, 16384))))
    for colour, (label, plan) in zip(COLOURS, plans):
        used = [n / 1024 for n in plan.memory["bytes_per_tile"]]
        axis.plot(range(len(used)), used, color=colour, linewidth=0.9, label=label)
    limit = plans[0][1].memory["limit"] / 1024
    axis.axhline(limit, color="#333333", linewidth=1, linestyle="--", label=f"limit {limit:.0f} KiB")
    axis.set_ylim(0, limit * 1.08)
    axis.set_xlabel("tile")
    axis.set_ylabel("KiB of SRAM")
    axis.set_title("SRAM per tile, counted when the program is compiled", fontsize=11)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def roofline(plt: Any, source: Source) -> Any:
    figure, (axis,) = _axes(plt, width=9)
    model = source.plan(dense_call(1, 32, 16384)).model
    tile_cycles = model.tiles * model.clock_hz  # a second
    intensity = [10 ** (i / 20) for i in range(-20, 121)]
    for label, bytes_per_second, colour in (
        ("streaming memory", model.streaming_bytes_per_second, COLOURS[1]),
        ("SRAM", SRAM_BYTES * tile_cycles, COLOURS[0]),
    ):
        axis.plot(
            intensity,
            [min(MATRIX_FLOP * tile_cycles, i * bytes_per_second) for i in intensity],
            color=colour,
            label=label,
        )
    axis.axhline(VECTOR_FLOP * tile_cycles, color="#999999", linestyle=":", label="fp32 vector peak")
    for marker, colour, n_kv_heads in (("o", COLOURS[2], 32), ("s", COLOURS[3], 8)):
        sparq = [sparq_call(1, n_kv_heads, 16384, index_bits=bits) for bits in SWEPT_BITS]
        for call in (dense_call(1, n_kv_heads, 16384), *sparq):
            row, bits = source.row(call), call.cache.index_bits
            # Work of dense attention, whoever does it: how fast it is done, seen from outside.
            work = 4.0 * N_HEADS * 16384 * HEAD_DIM
            axis.plot(
                work / row["streamed_bytes"],
                work / row["seconds_per_query"],
                marker,
                color=colour,
                mfc="none" if call.settings is None else colour,
                linestyle="none",
                alpha=bits / 20 + 0.2,  # fainter with fewer bits
                label=f"{kernel_label(call.kernel, bits)}, {n_kv_heads} KV heads (modelled)",
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("FLOP of dense attention per byte streamed")
    axis.set_ylabel("FLOP/s")
    axis.set_title(f"Roofline of one IPU ({source.device}), one query at S=16384, batch 1", fontsize=11)
    axis.legend(frameon=False, fontsize=8)
    return figure


PICTURES: dict[str, Callable[[Any, Source], Any]] = {
    "speedup": speedup,
    "stages": stages,
    "sram": sram,
    "roofline": roofline,
}


def load_matplotlib() -> Any:
    """`matplotlib.pyplot`, which needs no display.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise RuntimeError(
            f"report: matplotlib must be installed for pictures ({hint('matplotlib')}), or use "
            f"--no-pictures, got {error}"
        ) from None
    return plt


def draw(source: Source, directory: Path) -> list[Path]:
    """All pictures as PNG files.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    plt = load_matplotlib()
    paths = []
    for name, picture in PICTURES.items():
        figure = picture(plt, source)
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=130)
        plt.close(figure)
        paths.append(path)
    return paths
