# SPDX-License-Identifier: Apache-2.0
"""The figures of drafts in docs/models.md are those of the committed rows."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_figures_of_the_rows() -> None:
    lines = (ROOT / "bench/results/drafts.jsonl").read_text().splitlines()
    rows = {row["text"]: row for row in map(json.loads, lines)}
    assert set(rows) == {"edit", "prose"}
    page = " ".join((ROOT / "docs/models.md").read_text().split())
    for text, words in (
        ("edit", "{gain:.2f} times as fast as without ({right} of {drafted} drafted tokens were right)"),
        ("prose", "{gain:.2f} times as fast ({right} of {drafted})"),
    ):
        row = rows[text]
        gain = row["tokens_per_second"] / row["tokens_per_second_without"]
        assert words.format(gain=gain, right=row["n_accepted"], drafted=row["n_drafted"]) in page
        assert row["cpu"] in page and row["command"].startswith("python bench/drafts.py")
