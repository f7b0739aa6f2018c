# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from top to bottom. What they print is what they show, but for cells tagged "varies"
(times, texts of a model, devices). long_context runs with a tiny model here, not the one that it shows."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def printed(cell: Any) -> str:
    return "".join(output["text"] for output in cell["outputs"] if output.get("name") == "stdout")


def run(name: str, where: Path) -> tuple[list[Any], list[Any]]:
    """The code cells as they are kept, and as they come out."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own parts
        kept = nbformat.read(FOLDER / name, 4)
        new = nbformat.read(FOLDER / name, 4)
        client = nbclient.NotebookClient(new, timeout=120, resources={"metadata": {"path": str(where)}})
        client.execute()
    codes = [[cell for cell in book["cells"] if cell["cell_type"] == "code"] for book in (kept, new)]
    return codes[0], codes[1]


def compare(kept: list[Any], new: list[Any]) -> int:
    """How many cells print what they show."""
    fixed = [(a, b) for a, b in zip(kept, new) if "varies" not in a["metadata"].get("tags", ())]
    for a, b in fixed:
        assert printed(a) == printed(b)
    assert all(printed(a) for a, b in zip(kept, new) if printed(b)), "a cell does not show what it prints"
    return len(fixed)


def test_first_steps(tmp_path: Path) -> None:
    kept, new = run("first_steps.ipynb", tmp_path)
    assert compare(kept, new) == 5
    assert re.search(r"sparq-streaming +\d+\.\d+ ms, modelled", printed(new[-1]))


def test_long_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from tiny_models import save_checkpoint, tiny_model

    tiny_model(head_dim=64).save_pretrained(save_checkpoint(tmp_path))  # RECOMMENDED has rank=32
    monkeypatch.setenv("SPARQ_MODEL", str(tmp_path))
    monkeypatch.setenv("SPARQ_TEXT", str(tmp_path / "prompt.txt"))
    kept, new = run("long_context.ipynb", tmp_path)
    compare(kept, new)
    text = "\n".join(map(printed, new))
    assert "60 tokens" in text and "enabled: False" in text
