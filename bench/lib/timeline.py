# SPDX-License-Identifier: Apache-2.0
"""A timeline of emulated runs for Perfetto or chrome://tracing, and a picture of what tiles do. Modelled."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from sparq_ipu.commands.extras import needed

_core: Any = importlib.import_module("sparq_ipu._core")

#: tiles in a row of the picture
ROW = 46
#: of steps, one after another; and the share of a run from which a step's name is written
COLOURS = ("#7fb3d5", "#f0b27a", "#82c99a", "#d7a4d9", "#f1948a", "#c9c27a", "#9fb0b8")
LABELLED = 0.06


def load_pyplot() -> Any:
    with needed("bench/ipu_sparq.py", is_command=True):
        import matplotlib

    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def is_picture(path: Path) -> bool:
    """A timeline becomes a picture of its lanes."""
    return path.suffix == ".png"


class OfTiles(NamedTuple):
    """What each tile of a run does: cycles in compute sets, and bytes of SRAM."""

    name: str
    cycles: list[int]
    n_bytes: list[int]


class Timeline:
    """The last runs of some sessions, each a process of its own."""

    def __init__(self) -> None:
        self._events: list[str] = []
        self.tiles: list[OfTiles] = []
        _core.emulator_record_tiles(True)  # of sessions that are made from now on

    def add(self, session: Any, name: str, model: dict[str, Any]) -> None:
        """The session's last run."""
        events, cycles = _core.emulator_trace(session, name, len(self._events) + 1, model)
        self._events.append(events)
        self.tiles.append(OfTiles(name, cycles, list(_core.emulator_memory(session)["bytes_per_tile"])))

    def write(self, path: Path) -> None:
        """The file; a name that ends with .png: a picture of its lanes."""
        text = ",\n".join(self._events)
        if is_picture(path):
            self._draw_lanes(json.loads(f"[{text}]"), path)
        else:
            path.write_text(f'{{"displayTimeUnit":"ns","traceEvents":[\n{text}\n]}}\n', encoding="utf-8")

    def _draw_lanes(self, events: list[dict[str, Any]], path: Path) -> None:
        pyplot = load_pyplot()
        runs = [e["args"]["name"] for e in events if e["name"] == "process_name"]
        figure, axes = pyplot.subplots(
            len(runs), figsize=(12, 2.6 * len(runs)), squeeze=False, layout="constrained"
        )
        for process, (axis, run) in enumerate(zip(axes.flat, runs), 1):
            of_run = [e for e in events if e["pid"] == process]
            spans = [e for e in of_run if e["ph"] == "X"]
            names = list(dict.fromkeys(e["name"] for e in spans))
            lanes = {e["tid"]: e["args"]["name"] for e in of_run if e["name"] == "thread_name"}
            lanes = {lane: name for lane, name in lanes.items() if any(e["tid"] == lane for e in spans)}
            for e in spans:
                colour = COLOURS[names.index(e["name"]) % len(COLOURS)]
                at = -list(lanes).index(e["tid"])
                axis.broken_barh([(e["ts"], e["dur"])], (at - 0.4, 0.8), color=colour)
                if at == 0 and e["dur"] > LABELLED * sum(s["dur"] for s in spans if s["tid"] == e["tid"]):
                    text = e["name"].partition("/")[2] or e["name"]
                    axis.text(e["ts"] + e["dur"] / 2, 0, text, ha="center", va="center", fontsize=7)
            axis.set_yticks([-i for i in range(len(lanes))], list(lanes.values()), fontsize=8)
            axis.set(title=run, xlabel="us")
        figure.savefig(path, dpi=110)
        pyplot.close(figure)

    def draw(self, path: Path) -> None:
        """The picture: for each run the tiles by number, row by row."""
        pyplot = load_pyplot()
        figure, axes = pyplot.subplots(
            len(self.tiles), 2, figsize=(11, 2.9 * len(self.tiles)), squeeze=False, layout="constrained"
        )
        for row, run in zip(axes, self.tiles):
            for axis, values, scale, unit in (
                (row[0], run.cycles, 1.0, "cycles in compute sets"),
                (row[1], run.n_bytes, 1 / 1024, "KiB of SRAM"),
            ):
                padded = [value * scale for value in values] + [float("nan")] * (-len(values) % ROW)
                lines = [padded[i : i + ROW] for i in range(0, len(padded), ROW)]
                shown = axis.imshow(lines, aspect="auto", vmin=0, cmap="viridis")
                axis.set(title=f"{run.name}: {unit}", xlabel="tile", ylabel=f"{ROW} tiles a row")
                axis.title.set_fontsize(9)
                figure.colorbar(shown, ax=axis)
        figure.savefig(path, dpi=100)
        pyplot.close(figure)
