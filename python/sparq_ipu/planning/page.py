# SPDX-License-Identifier: Apache-2.0
"""The plans of a model beside one another: a table, and a page with pictures (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

from sparq_ipu.commands.pages import Section, as_html, load_matplotlib
from sparq_ipu.planning.model_plan import ModelPlan

KIB = 1024
COLOURS = ("#0b6e99", "#c4501b", "#4a7c2f", "#7a4f9e", "#8a6d1d", "#5c6770")


def summary(plans: Sequence[ModelPlan]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The plans beside one another: header and rows."""
    header = (
        *("attention", "fits", "weights in", "layers on chip"),
        *("KiB/tile", "GB streaming", "ms per token", "low", "high", "tokens/s"),
        *("over dense", "over dense-streaming"),
    )
    seconds = {p.request.attention: p.seconds_per_step for p in plans if p.fits}
    rows: list[tuple[str, ...]] = []
    for p in plans:
        needs = [ipu.need for ipu in p.ipus]
        over = (seconds.get(name) for name in ("dense", "dense-streaming"))
        times = (
            f"{p.seconds_per_step * 1e3:.2f}",
            f"{p.seconds_low * 1e3:.2f}",
            f"{p.seconds_high * 1e3:.2f}",
            f"{p.tokens_per_second:.1f}",
            *("-" if of is None else f"{of / p.seconds_per_step:.2f}x" for of in over),
        )
        rows.append(
            (
                p.request.attention,
                "yes" if p.fits else "no",
                "SRAM" if p.weights_in == "sram" else "streaming",
                "{} of {}".format(*p.layers_on_chip),
                f"{max(need.tile for need in needs) / KIB:.0f}",
                f"{max(need.streaming for need in needs) / 1e9:.2f}",
                *(times if p.fits else ("-",) * len(times)),
            )
        )
    return header, rows


def _bars(axis: Any, parts: dict[str, list[float]], at: Sequence[Any], limit: float | None = None) -> None:
    """Stacked bars with their sums above them, and a line at the limit unless it is far away."""
    sums = [0.0] * len(at)
    for colour, (label, heights) in zip(COLOURS, parts.items()):
        axis.bar(at, heights, bottom=sums, color=colour, label=label, width=0.7)
        sums = [a + b for a, b in zip(sums, heights)]
    top = max(sums)
    if limit is not None and top > limit / 10:
        axis.axhline(limit, color="#222222", linewidth=1, linestyle="--", label="limit")
        top = max(top, limit)
    if len(at) <= 8:
        for x, total in zip(at, sums):
            axis.annotate(f"{total:.3g}", (x, total), ha="center", va="bottom", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(0, 1.35 * top)
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def draw(plans: Sequence[ModelPlan], folder: Path) -> list[Path]:
    """The pictures of the page: the memories of each IPU, and where the time of a token goes."""
    plt = load_matplotlib("plan")
    best = plans[-1]
    needs, at = [ipu.need for ipu in best.ipus], list(range(len(best.ipus)))
    tile, streaming = best.request.model.tile_bytes / KIB, best.request.model.streaming_memory_bytes / 1e9
    in_sram = {
        "attention and caches": [n.attention_tile / KIB for n in needs],
        "weights": [n.weights_tile / KIB for n in needs],
        "reserved for products": [n.products_tile / KIB for n in needs],
    }
    streamed = {
        "caches": [n.cache_streaming / 1e9 for n in needs],
        "weights": [n.weights_streaming / 1e9 for n in needs],
    }
    figure, axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    _bars(axes[0], in_sram, at, tile)
    axes[0].set(title=f"SRAM of the fullest tile, of {tile:.0f} KiB", xlabel="IPU", ylabel="KiB")
    _bars(axes[1], streamed, at, streaming)
    axes[1].set(title=f"streaming memory, of {streaming:.0f} GB", xlabel="IPU", ylabel="GB")
    figure.suptitle(
        f"{best.request.shape.name}, attention {best.request.attention}: everything that is stored at once",
        fontsize=11,
    )
    written = [folder / "memory.png"]
    figure.savefig(written[0], dpi=120)
    plt.close(figure)
    fitting = [p for p in plans if p.fits]
    if not fitting:
        return written
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    parts = [p.milliseconds for p in fitting]
    _bars(
        axis, {name: [ms[name] for ms in parts] for name in parts[0]}, [p.request.attention for p in fitting]
    )
    axis.set(title="a token, modelled", ylabel="ms")
    written.append(folder / "time.png")
    figure.savefig(written[-1], dpi=120)
    plt.close(figure)
    return written


def write_page(plans: Sequence[ModelPlan], folder: Path) -> Path:
    """plan.html, one file with everything."""
    best = plans[-1]
    header, rows = summary(plans)
    sections = [
        Section(
            "A token",
            "All times are modelled. Not planned, and in no time here: products with weights that lie in "
            "SRAM, norms, sampling, prefill, the host.",
            header,
            tuple(rows),
            "time",
        ),
        Section(
            "Memory",
            "Everything that is stored at once: weights, the caches of all batches in flight, and the "
            "programs of attention. SRAM reserved for products is a flat reserve: products are not planned.",
            ("", ""),
            tuple((line.strip(), "") for line in str(best).splitlines()),
            "memory",
        ),
    ]
    layer = best.ipus[0].on_chip or best.ipus[0].others
    if layer is not None:
        times = [(name, f"{seconds * 1e6:.2f}") for name, seconds in layer.stages_by_name().items()]
        text = f"The steps of {layer.request.kernel.name} in one layer of IPU 0."
        sections.append(Section("Where the time of attention goes", text, ("step", "us"), tuple(times)))
    pictures = {path.stem: path.read_bytes() for path in draw(plans, folder)}
    page = folder / "plan.html"
    title = f"{best.request.shape.name} on {best.request.n_ipus} IPUs: a plan"
    page.write_text(as_html(sections, pictures, title), encoding="utf-8")
    return page
