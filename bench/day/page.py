# SPDX-License-Identifier: Apache-2.0
"""The page of a day: measured, modelled and their ratio, part by part; and all that went wrong, by name."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any, Sequence

from sparq_ipu.commands.tables import markdown_table

from .parts import PARTS
from .records import Record, Run

TITLE = "A day on the device"
PICTURE = "ratio"


@dataclasses.dataclass(frozen=True)
class Section:
    """One part of the page: text, a table, and perhaps the name of a picture without ending."""

    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: str | None = None


def as_markdown(parts: Sequence[Section], pictures: Sequence[str], title: str) -> str:
    """The page; pictures are files beside it."""
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [f"## {part.title}", "", part.text, ""]
        if part.picture in pictures:
            lines += [f"![{part.title}]({part.picture}.png)", ""]
        if part.rows:
            lines += [markdown_table(part.header, part.rows), ""]
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e6:.2f}"


def ratio(record: Record) -> float | None:
    """Measured over modelled."""
    if not record.get("seconds") or not record.get("modelled"):
        return None
    return float(record["seconds"]) / float(record["modelled"])


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("\n", " / ").replace("|", "\\|")[:200]


def timed_rows(found: Sequence[Record]) -> list[tuple[str, ...]]:
    rows = []
    for r in found:
        share = ratio(r)
        exact = {True: "yes", False: "NO", None: "-"}[r.get("bit_exact")]
        failed = r["error"] and f"error: {cell(r['error'])}"
        rows.append(
            (
                r["name"],
                failed or seconds(r.get("seconds")),
                seconds(r.get("modelled")),
                "-" if share is None else f"{share:.3f}",
                exact,
            )
        )
    return rows


def said_rows(found: Sequence[Record]) -> list[tuple[str, ...]]:
    """Of what has no time: what was found."""
    usual = ("event", "schema", "time", "part", "name", "spec", "device", "source", "error", "log", "output")
    rows = []
    for r in found:
        said = "; ".join(
            f"{k}: {cell(v)}" for k, v in r.items() if k not in usual and v not in (None, {}, "")
        )
        rows.append((r["name"], f"error: {cell(r['error'])}" if r["error"] else said or "yes"))
    return rows


def played_by(run: Run) -> str:
    """What times that are not the model's are."""
    return "measured" if (run.first or {}).get("device") == "ipu" else "emulated"


def sections(run: Run) -> list[Section]:
    first = run.first or {}
    played = played_by(run)
    note = (
        "Measured on an IPU by its own cycle counter."
        if played == "measured"
        else "Nothing was measured: the emulator played the IPU, so every time is modelled."
    )
    if first.get("as_model"):
        note += f" It played one with other parameters: {first['as_model']}."
    quick = ", --quick" if first.get("quick") else ""
    note += (
        f" Commit {first.get('git')}, Python {first.get('python')}{quick}; "
        f"begun {sum(r['event'] == 'run' for r in run.records)} times."
    )
    found = run.results()
    summary = []
    for part in PARTS:
        own = [r for (name, _), r in found.items() if name == part.name]
        shares = [x for x in map(ratio, own) if x is not None]
        total = max([r.get("of", 0) for r in run.records if r.get("part") == part.name], default=0)
        summary.append(
            (
                part.name,
                part.what,
                f"{len(own)} of {total}",
                str(sum(r["error"] is not None for r in own)),
                f"{statistics.median(shares):.3f}" if shares else "-",
                f"{min(shares):.3f} to {max(shares):.3f}" if shares else "-",
            )
        )
    made = [
        Section(
            "Parts",
            note,
            ("part", "what", "items", "failed", f"{played} / modelled, median", "range"),
            tuple(summary),
            PICTURE,
        )
    ]
    wrong = [(r["part"] or "the day", "-", cell(r["text"])) for r in run.notes()]
    wrong += [(part, name, cell(r["error"])) for (part, name), r in found.items() if r["error"] is not None]
    wrong += [
        (part, name, "the result has other bits")
        for (part, name), r in found.items()
        if r.get("bit_exact") is False
    ]
    made.append(
        Section(
            "What went wrong",
            "What is not here ran, or its part says that it did not." if wrong else "Nothing.",
            ("part", "item", "why") if wrong else (),
            tuple(wrong),
        )
    )
    for part in PARTS:
        own = [r for (name, _), r in found.items() if name == part.name]
        timed = [r for r in own if r.get("seconds") is not None]
        said = [r for r in own if r.get("seconds") is None]
        source = own[0]["source"] if own else "nothing ran"
        if timed:
            made.append(
                Section(
                    part.name,
                    f"{part.what}. Times: {source}; modelled: by the device model as it is shipped.",
                    ("item", f"{played} us", "modelled us", "ratio", "bits as expected"),
                    tuple(timed_rows(timed)),
                )
            )
        if said:
            made.append(
                Section(
                    f"{part.name}: found", f"Source: {source}.", ("item", "found"), tuple(said_rows(said))
                )
            )
    return made


def draw(run: Run) -> list[Path]:
    """The ratios as a picture; none without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")  # needs no display
        import matplotlib.pyplot as plt
    except ImportError:
        return []
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for part in PARTS:
        own = [r for (name, _), r in run.results().items() if name == part.name and ratio(r)]
        if own:
            axes.loglog([r["modelled"] for r in own], [ratio(r) for r in own], "o", ms=4, label=part.name)
    axes.axhline(1, color="0.6", lw=1)
    axes.set_xlabel("modelled seconds")
    axes.set_ylabel(f"{played_by(run)} / modelled")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.tight_layout()
    path = run.path / f"{PICTURE}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return [path]


def write(run: Run) -> None:
    """page.md, with the picture beside it, into the run directory."""
    parts = sections(run)
    drawn = draw(run)
    (run.path / "page.md").write_text(as_markdown(parts, [p.stem for p in drawn], TITLE))
