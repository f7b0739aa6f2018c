# SPDX-License-Identifier: Apache-2.0
"""The name of the processor in measured rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparq_ipu.commands import processor

TWO = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC

processor\t: 1
cpu family\t: 6
model\t\t: 143
model name\t: other
"""


@pytest.mark.parametrize(
    "text, expected",
    [
        (TWO, "AMD EPYC, family 25 model 17"),
        ("model name\t: Cortex: A\n", "Cortex: A"),
        ("nothing\n", "as the system says"),
        (None, "as the system says"),
    ],
)
def test_name_family_and_model(
    text: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first processor; what is not said is left out."""
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", file)
    monkeypatch.setattr(processor.platform, "processor", lambda: "as the system says")
    processor.processor.cache_clear()
    try:
        assert processor.processor() == expected
    finally:
        processor.processor.cache_clear()
