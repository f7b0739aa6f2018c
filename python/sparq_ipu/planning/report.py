# SPDX-License-Identifier: Apache-2.0
"""One page of tables and pictures: how fast SparQ would be on an IPU, and what that rests on.

    python -m sparq_ipu.report --out report                     # report/report.md and PNG files
    python -m sparq_ipu.report --out report --format html       # report/report.html, one file with everything
    python -m sparq_ipu.report --out report --sweep sweep.jsonl # plans from bench/sweep.py, others made here

Times of this package's programs are modelled; times of the published program were measured on a Bow IPU by
the authors of SparQ. The page says which is which.
"""

from __future__ import annotations

import argparse
import base64
import html
import sys
from pathlib import Path
from typing import Sequence

from sparq_ipu.commands.command_line import Parser, description
from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.kernels import SWEPT_BITS
from sparq_ipu.planning import report_data as data
from sparq_ipu.planning import report_pictures
from sparq_ipu.planning.device_model import NAMES

TITLE = "SparQ attention on an IPU: modelled performance"


def sections(source: data.Source) -> list[data.Section]:
    """The page, in order."""
    headline = source.plan(data.sparq_call(1, 32, 16384))
    short = source.plan(data.sparq_call(1, 32, 1024))
    return [
        data.Section(
            "Speed-up",
            f"Modelled for one IPU ({source.device}) beside the published program, measured on a Bow IPU. "
            "Both read their caches from streaming memory; batch 1 and 4, 32 heads of 128 components. "
            "Ours likely, in brackets with work on chip low and high, for none of it was measured; speed-ups "
            "are likely. int8 and int4: positions are scored from a key index of so many bits; the published "
            "program has none.",
            (
                "kernel",
                "ours, modelled us",
                "published, measured us",
                "speed-up of ours, modelled",
                "speed-up published, measured",
            ),
            tuple(data.comparison_rows(source)),
            "speedup",
        ),
        data.Section(
            "Three tiers",
            "sparq-tiered: key index (4 bits) and hot rows in SRAM, so that only selected rows that are "
            "not hot are streamed; S=16384, 32 heads, r=32, 4 * k hot rows. The hit rate is assumed: 0 is of "
            "the first step, the others are the least and the most of docs/reuse.md. Missing rows are read "
            "in whole waves, so different rates can take the same time. Speed-ups are over dense-streaming.",
            data.TIER_HEADER,
            tuple(data.tier_rows(source.device)),
        ),
        data.Section(
            "Where the time goes",
            f"At S=16384 the modelled fixed cost of a query (all but bytes and packets of remote copies) is "
            f"{headline.fixed_seconds * 1e6:.1f} us of {headline.seconds_per_query * 1e6:.1f} us; at S=1024 "
            f"{short.fixed_seconds * 1e6:.1f} us of {short.seconds_per_query * 1e6:.1f} us.",
            ("step at S=16384, r=32, k=128, modelled us", *(f"{bits} bits" for bits in SWEPT_BITS)),
            tuple(data.stage_rows(source, 16384)),
            "stages",
        ),
        data.Section(
            "SRAM",
            f"The fullest tile of the program above: {headline.max_tile_bytes} of {headline.memory['limit']} "
            "bytes. Variables, vertex state and temporaries are counted; code and stacks are estimated.",
            ("largest on that tile", "bytes"),
            tuple((name, str(n)) for name, n in headline.memory["largest"][:8]),
            "sram",
        ),
        data.Section(
            "Roofline",
            "Decode attention does so little arithmetic for each byte that streaming memory bounds it, by "
            "orders of magnitude. SparQ moves to the right: it does the work of dense attention from fewer "
            "bytes.",
            picture="roofline",
        ),
        data.Section(
            "The model against measurements",
            "Relative errors of the device model on the published program, which it was fitted on. "
            "Cross-validation and what is extrapolated: docs/device_model.md.",
            ("kernel", "points", "median %", "maximum %"),
            tuple(data.calibration_rows()),
        ),
    ]


def as_markdown(parts: Sequence[data.Section], pictures: Sequence[str], title: str = TITLE) -> str:
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [f"## {part.title}", "", part.text, ""]
        if part.picture in pictures:
            lines += [f"![{part.title}]({part.picture}.png)", ""]
        if part.rows:
            lines += [markdown_table(part.header, part.rows), ""]
    return "\n".join(lines)


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:2px 10px;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)


def as_html(parts: Sequence[data.Section], pictures: dict[str, bytes], title: str = TITLE) -> str:
    """One file: pictures are inside."""
    name = html.escape(title)
    out = [f"<!doctype html><meta charset=utf-8><title>{name}</title><style>{STYLE}</style><h1>{name}</h1>"]
    for part in parts:
        out.append(f"<h2>{html.escape(part.title)}</h2><p>{html.escape(part.text)}</p>")
        if part.picture in pictures:
            image = base64.b64encode(pictures[part.picture]).decode()
            out.append(f'<img alt="{html.escape(part.title)}" src="data:image/png;base64,{image}">')
        if part.rows:
            header = "".join(f"<th>{html.escape(cell)}</th>" for cell in part.header)
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
                for row in part.rows
            )
            out.append(f"<table><tr>{header}</tr>{body}</table>")
    return "\n".join(out) + "\n"


def main(arguments: list[str] | None = None, prog: str = "python -m sparq_ipu.report") -> int:
    """The command; returns the exit status: 0; 1 if nothing can be planned; 2 for bad usage, and without
    matplotlib, which is looked for before any work."""
    parser = Parser(
        prog=prog,
        description=description(__doc__, prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIRECTORY", help="where the page goes")
    parser.add_argument("--format", choices=("md", "html"), default="md", help="of the page [%(default)s]")
    parser.add_argument("--device", choices=NAMES, default="bow", help="device model [%(default)s]")
    parser.add_argument("--sweep", type=Path, metavar="FILE", help="JSON lines of bench/sweep.py")
    parser.add_argument("--no-pictures", dest="pictures", action="store_false", help="tables only")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    a = parser.parse_args(arguments)
    if a.sweep and not a.sweep.exists():
        parser.error(f"--sweep must name a file, got {a.sweep}")
    try:
        if a.pictures:
            report_pictures.load_matplotlib()
        a.out.mkdir(parents=True, exist_ok=True)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        parser.error(f"--out must be a directory that can be written, got {a.out} ({error.strerror})")
    try:
        source = data.Source(a.device, a.sweep, a.quiet)
    except (OSError, ValueError, KeyError, TypeError):
        parser.error(f"--sweep must be JSON lines of bench/sweep.py, got {a.sweep}")
    drawn: list[Path] = []
    try:
        parts = sections(source)
        if a.pictures:
            drawn = report_pictures.draw(source, a.out)
    except RuntimeError as error:  # no emulator to plan with
        print(error, file=sys.stderr)
        return 1
    if a.format == "md":
        page = a.out / "report.md"
        page.write_text(as_markdown(parts, [p.stem for p in drawn]))
    else:
        page = a.out / "report.html"
        page.write_text(as_html(parts, {p.stem: p.read_bytes() for p in drawn}))
    print(page)
    return 0
