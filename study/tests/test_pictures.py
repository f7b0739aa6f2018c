# SPDX-License-Identifier: Apache-2.0
"""Pictures of the documents are not older than the lines that they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pictures_shown import digest_in

from sparq_ipu.commands import pictures

ROOT = Path(__file__).resolve().parents[2]
#: picture -> the lines, and what draws it anew
PICTURES = {
    "accuracy_curves": ("accuracy_smollm2_135m", "accuracy.py --report-only --out FILE --plots docs"),
    "accuracy_needles": ("accuracy_smollm2_135m", "accuracy.py --report-only --out FILE --plots docs"),
    "alisa_throughput": ("alisa", "alisa.py --plots docs"),
    "alisa_phases": ("alisa", "alisa.py --plots docs"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_of_the_published_lines(name: str) -> None:
    file, command = PICTURES[name]
    lines = [
        json.loads(line) for line in (ROOT / f"study/results/{file}.jsonl").read_text("utf-8").splitlines()
    ]
    shown = digest_in(ROOT / f"docs/{name}.png")
    assert shown == pictures.digest(lines), f"python study/{command}"
    assert shown != pictures.digest(lines[:-1])  # negative control
