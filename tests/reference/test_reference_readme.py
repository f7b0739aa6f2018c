# SPDX-License-Identifier: Apache-2.0
"""The example of reference/README.md runs, and its table names the functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

from sparq_reference import exact, ideal

TEXT = (Path(__file__).resolve().parents[2] / "reference" / "README.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict = {}
    exec(compile(code, "reference/README.md", "exec"), names)
    assert names["again"].shape == (2, 8, 64)
    assert abs(names["y"] - names["true"]).max() < 0.01 < abs(names["y"] - names["dense"]).max()


def test_the_table_is_complete() -> None:
    """Every public step of both twins, in the order of the files."""
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    listed = [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]
    wholes = {"dense_attention", "dense_unchecked", "sparq_attention", "sparq_steps"}
    for twin in (exact, ideal):
        own = [
            n for n, f in vars(twin).items() if getattr(f, "__module__", "") == twin.__name__ and n[0] != "_"
        ]
        assert [n for n in own if n not in wholes] == listed and set(own) - set(listed) == wholes
