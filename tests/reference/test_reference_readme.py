# SPDX-License-Identifier: Apache-2.0
"""The example of reference/README.md runs, its tables name functions that exist, its figures are theirs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sparq_reference import exact, ideal, transfers
from sparq_reference.twin import Twin

WHOLE = (Path(__file__).resolve().parents[2] / "reference" / "README.md").read_text(encoding="utf-8")
TEXT, _, TRANSFERS = WHOLE.partition("\n## What is read and written\n")


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict = {}
    exec(compile(code, "reference/README.md", "exec"), names)
    assert names["again"].shape == (2, 8, 64)
    assert abs(names["y"] - names["true"]).max() < 0.01 < abs(names["y"] - names["dense"]).max()


def test_the_table_is_complete() -> None:
    """Every public step of the twins, in the order of the class; neither twin has others."""
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    listed = [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]
    wholes = {"attention", "dense_attention", "dense_unchecked", "sparq_attention", "sparq_steps"}
    wholes |= {"window_attention", "window_steps"}
    own = [name for name, of in vars(Twin).items() if callable(of) and name[0] != "_"]
    assert [name for name in own if name not in wholes] == listed and set(own) - set(listed) == wholes
    for twin in (exact, ideal):
        assert {name for name, of in vars(type(twin)).items() if inspect.isfunction(of)} <= set(vars(Twin))


def test_the_table_of_transfers() -> None:
    rows = [line.split("|")[1] for line in TRANSFERS.splitlines() if line.startswith("| `")]
    assert len(rows) == 4
    for name in re.findall(r"`(\w+)`", " ".join(rows)):
        assert callable(getattr(transfers, name))
    figures = [f"{transfers.theoretical_speedup(16384, 128, 32, 128, bits):.2f}" for bits in (16, 8, 4)]
    for figure in figures:
        assert figure in TRANSFERS
    sixteen, eight, four = (transfers.index_bytes(64, 1, bits) for bits in (16, 8, 4))
    assert eight * 32 == sixteen * 17 and four * 32 == sixteen * 9  # 17/32 and 9/32 of the bytes
