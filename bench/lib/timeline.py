# SPDX-License-Identifier: Apache-2.0
"""A timeline of emulated runs for Perfetto or chrome://tracing, and a picture of what tiles do. Modelled."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from sparq_ipu.commands.extras import needed

_core: Any = importlib.import_module("sparq_ipu._core")

#: tiles in a row of the picture
ROW = 46


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
        """The file."""
        text = ",\n".join(self._events)
        path.write_text(f'{{"displayTimeUnit":"ns","traceEvents":[\n{text}\n]}}\n', encoding="utf-8")

    def draw(self, path: Path) -> None:
        """The picture: for each run the tiles by number, row by row."""
        with needed("bench/ipu_sparq.py", is_command=True):
            import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

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
