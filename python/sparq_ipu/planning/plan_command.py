# SPDX-License-Identifier: Apache-2.0
"""Plan a whole model on IPUs: what fits where, and how long a token takes. Modelled; nothing is run.

    sparq-ipu plan Llama-3-8B --ipus 32 --weights int4
    sparq-ipu plan path/to/config.json --S 65536 --ipus 16 --in-flight 16 --batch 4
    sparq-ipu plan Llama-3-8B --ipus 32 --weights int4 --page plan    # plan/plan.html, with pictures

MODEL is a name (sparq-ipu plan --models lists them), or a config.json of Hugging Face transformers.
Three plans are made: all dense attention, SparQ as published, and the best that fits (SparQ with a key index
of --index-bits, as many layers in three tiers as pay). Everything counts that is there at once: weights, the
caches of all batches in flight, the programs of attention. Not planned, and in no time here: products with
weights that lie in SRAM, norms, sampling, prefill, the host.

Exit status: 0; 1 if the best plan does not fit; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

from sparq_ipu.commands.command_line import Parser, guarded, only, output_path
from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.planning import report, report_data, report_pictures
from sparq_ipu.planning.device_model import NAMES, device_name
from sparq_ipu.planning.model_shape import MODELS, WEIGHT_BITS
from sparq_ipu.planning.whole_model import ATTENTION, SPLITS, WEIGHTS_IN, ModelPlan, plan_model
from sparq_reference.checks import INDEX_BITS, ROW_BITS

KIB = 1024


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="name, config.json, or a folder that has one")
    add("--models", action="store_true", help="list the models that have names, and stop")
    add("--S", type=int, default=16384, dest="seq_len", metavar="N", help="positions of a cache [16384]")
    add("--batch", type=int, default=1, metavar="N", help="elements of one batch [1]")
    add("--in-flight", type=int, default=1, metavar="N", help="batches that are there at once [1]")
    add("--ipus", type=int, default=1, metavar="N", dest="n_ipus", help="IPUs [1]")
    add("--split", choices=SPLITS, default="layers", help="what each IPU has a part of [layers]")
    add("--weights", choices=tuple(WEIGHT_BITS), default="fp16", help="how they are stored [fp16]")
    add(
        "--weights-in", choices=WEIGHTS_IN, default="auto", help="where they lie [auto: the faster that fits]"
    )
    add("--r", type=int, default=32, dest="rank", metavar="N", help="rank of SparQ [32, at most head_dim]")
    add("--k", type=int, default=128, dest="top_k", metavar="N", help="top_k of SparQ [128]")
    add("--local", type=int, default=0, dest="n_local", metavar="N", help="of these the most recent [0]")
    text = "of a number of the best plan's key index [4]"
    add("--index-bits", type=int, default=4, choices=INDEX_BITS[1:], help=text)
    add(
        "--index-components",
        type=int,
        default=0,
        metavar="N",
        help="of the key index in three tiers: components that it has, of which --r are read [0: all]",
    )
    add("--row-bits", type=int, default=16, choices=ROW_BITS, help="of rows in three tiers [16]")
    add("--hot-rows", type=int, default=0, metavar="N", help="of a KV head in three tiers [0: 4 k]")
    add("--hit-rate", type=float, default=0.0, metavar="P", help="share of hot rows in three tiers [0: none]")
    text = f"device model: {', '.join(NAMES)}, or a file of bench/calibrate.py --day [bow]"
    add("--device", type=device_name, default="bow", metavar="NAME", help=text)
    add("--json", type=output_path, metavar="FILE", help="append one JSON line a plan")
    add("--page", type=Path, metavar="DIRECTORY", help="write plan.html with tables and pictures there")
    add("--quiet", action="store_true", help="no progress on stderr")
    return parser


def summary(plans: Sequence[ModelPlan]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The plans beside one another: header and rows."""
    header = (
        *("attention", "fits", "weights in", "layers in three tiers"),
        *("KiB/tile", "GB streaming", "ms a token", "low", "high", "tokens/s"),
    )
    rows: list[tuple[str, ...]] = []
    for p in plans:
        needs = [ipu.need for ipu in p.ipus]
        times = (
            f"{p.seconds_per_step * 1e3:.2f}",
            f"{p.seconds_low * 1e3:.2f}",
            f"{p.seconds_high * 1e3:.2f}",
            f"{p.tokens_per_second:.1f}",
        )
        rows.append(
            (
                p.request.attention,
                "yes" if p.fits else "no",
                "SRAM" if p.weights_in == "sram" else "streaming",
                f"{sum(ipu.n_tiered for ipu in p.ipus)} of {sum(ipu.n_layers for ipu in p.ipus)}",
                f"{max(need.tile for need in needs) / KIB:.0f}",
                f"{max(need.streaming for need in needs) / 1e9:.2f}",
                *(times if p.fits else ("-",) * len(times)),
            )
        )
    return header, rows


def _bars(axis: Any, parts: dict[str, list[float]], at: Sequence[Any], limit: float | None = None) -> None:
    """Stacked bars with their sums above them, and a line for what there is, unless it is far away."""
    sums = [0.0] * len(at)
    for colour, (label, heights) in zip(report_pictures.COLOURS, parts.items()):
        axis.bar(at, heights, bottom=sums, color=colour, label=label, width=0.7)
        sums = [a + b for a, b in zip(sums, heights)]
    top = max(sums)
    if limit is not None and top > limit / 10:
        axis.axhline(limit, color="#222222", linewidth=1, linestyle="--", label="there is")
        top = max(top, limit)
    if len(at) <= 8:
        for x, total in zip(at, sums):
            axis.annotate(f"{total:.3g}", (x, total), ha="center", va="bottom", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(0, 1.35 * top)
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def draw(plans: Sequence[ModelPlan], folder: Path) -> list[Path]:
    """The pictures of the page: what is in the memories of each IPU, and where a token's time goes."""
    plt = report_pictures.load_matplotlib()
    best = plans[-1]
    needs, at = [ipu.need for ipu in best.ipus], list(range(len(best.ipus)))
    tile, streaming = best.request.model.tile_bytes / KIB, best.request.model.streaming_memory_bytes / 1e9
    in_sram = {
        "attention and caches": [n.attention_tile / KIB for n in needs],
        "weights": [n.weights_tile / KIB for n in needs],
        "kept for products": [n.products_tile / KIB for n in needs],
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
        f"{best.request.shape.name}, attention {best.request.attention}: all that is there at once",
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
        report_data.Section(
            "A token",
            "All times are modelled. Not planned, and in no time here: products with weights that lie in "
            "SRAM, norms, sampling, prefill, the host.",
            header,
            tuple(rows),
            "time",
        ),
        report_data.Section(
            "What is where",
            "Everything that is there at once: weights, the caches of all batches in flight, and the "
            "programs of attention. SRAM that is kept for products is a reserve: they are not planned.",
            ("", ""),
            tuple((line.strip(), "") for line in str(best).splitlines()),
            "memory",
        ),
    ]
    pictures = {path.stem: path.read_bytes() for path in draw(plans, folder)}
    page = folder / "plan.html"
    title = f"{best.request.shape.name} on {best.request.n_ipus} IPUs: a plan"
    page.write_text(report.as_html(sections, pictures, title), encoding="utf-8")
    return page


def _progress(quiet: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not quiet:
            print(f"planning: {line}", file=sys.stderr, flush=True)

    return say


def main(arguments: list[str] | None = None, prog: str = "sparq-ipu plan") -> int:
    """The command; returns the exit status."""
    parser = _parser(prog)
    a = parser.parse_args(arguments)
    if a.models:
        only(parser, a, "--models")
        rows = [
            (s.name, s.n_layers, s.n_heads, s.n_kv_heads, s.head_dim, f"{s.parameters / 1e9:.2f}")
            for s in MODELS.values()
        ]
        print(markdown_table(("model", "layers", "heads", "KV heads", "head_dim", "billion weights"), rows))
        return 0
    if a.model is None:
        parser.error("MODEL must be given, got none (--models lists names)")
    if a.page is not None:
        try:
            report_pictures.load_matplotlib()
            a.page.mkdir(parents=True, exist_ok=True)
        except RuntimeError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"--page must be a directory that can be written, got {a.page} ({error.strerror})")
    others = ("model", "models", "json", "page", "quiet")
    chosen = {name: value for name, value in vars(a).items() if name not in others}
    say = _progress(a.quiet)
    plans = []
    try:
        for attention in ATTENTION:
            say(f"attention {attention}")
            plans.append(plan_model(a.model, attention=attention, progress=say, **chosen))
    except ValueError as error:
        parser.error(str(error))
    header, rows_of_plans = summary(plans)
    print(plans[-1])
    print()
    print(markdown_table(header, rows_of_plans))
    if a.json is not None:
        with a.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(p.row()) + "\n" for p in plans)
    if a.page is not None:
        print(write_page(plans, a.page))
    return 0 if plans[-1].fits else 1


if __name__ == "__main__":
    sys.exit(guarded(main))
