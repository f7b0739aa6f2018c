# SPDX-License-Identifier: Apache-2.0
"""bench/headline.py: README's picture and table are those of the committed rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import headline
import pytest
from lib.decode_tables import PEERS, read_rows
from pictures_shown import digest_in

from sparq_ipu.commands import pictures


def row(method: str, speed: float, first: float | None = None, dtype: str = "int4", **more: Any) -> Any:
    values = dict(method=method, tokens_per_second=speed, first_token_seconds=first, dtype=dtype, seq_len=8)
    of_all = dict(model="m.gguf", cpu="here", error=None, git="abcdef01", n_threads=2, top_k=256)
    return {**values, **of_all, **more}


def rows() -> list[Any]:
    return [
        row("recommended", 1.0, cpu="elsewhere"),
        row("dense", 20.0, 3.0),
        row("recommended", 40.0),
        row("recommended", 99.0, dtype="bfloat16"),
        row("openvino", 10.0, 2.0, "gguf"),
        row("llama.cpp", 5.0, 9.0, "gguf", kv_type="f16"),
        row("llama.cpp", 8.0, 20.0, "gguf", kv_type="q8_0"),
        row("openvino-xattention", 9.0, 1.0, "gguf"),
        row("plain-sdpa", 4.0, None, "bfloat16"),
        row("plain-eager", 50.0, None, "int4"),
    ]


def test_what_is_compared() -> None:
    """Of one processor the rows of each way, none mixed; our two ways have one time of the prompt."""
    found = headline.points(headline.comparable(rows()))
    assert found["m.gguf"][8]["llama.cpp"] == [(5.0, 9.0), (8.0, 20.0)]
    assert found["m.gguf"][8]["plain"] == [(4.0, None)] and found["m.gguf"][8]["openvino"] == [(10.0, 2.0)]
    assert found["m.gguf"][8]["recommended"] == [(40.0, 3.0)]
    (line,) = headline.lines_of(found)
    assert line.gains() == (4.0, 2.0, 2.0) and line.best == ("OpenVINO", 10.0)
    assert line.soonest == ("OpenVINO", 2 + 255 / 10) and line.ours.total == 3 + 255 / 40
    assert "| m | 8 | 10.0 (OpenVINO) | 20.0 | 40.0 | 4.00 = 2.00 x 2.00 | 27.5 s (OpenVINO) | 9.4 s |" in (
        headline.table([line])
    )
    assert headline.shown(found)[1]["llama.cpp"] == [(8, (8.0, 20.0 + 255 / 8))]
    # OpenVINO: we are 1 s late, and 1/10 - 1/40 s sooner with each token after the first
    assert headline.of_prompts(found) == (
        "SparQ does not speed up prefill: to read a prompt we take 1.50 to 1.50 times as long as OpenVINO "
        "and 3.00 to 3.00 times as long as OpenVINO with XAttention. After 8 tokens these are done sooner: "
        "OpenVINO with answers of under 15 tokens, OpenVINO with XAttention with answers of under 25 tokens."
    )
    slower = headline.least_answer(headline.Point(5.0, 3.0), headline.Point(10.0, 2.0))
    sooner = headline.least_answer(headline.Point(5.0, 1.0), headline.Point(10.0, 2.0))
    assert (slower, sooner) == (float("inf"), 1)
    with pytest.raises(ValueError, match=r"^headline: rows must have the method 'recommended', got none$"):
        headline.comparable(rows()[3:2])


def test_sparsity_gains_less_in_larger_models() -> None:
    """And more after longer texts."""
    rows = read_rows(headline.SIZES)
    small, large = (headline.sparsity_of(model, rows) for model in ("llama-3.2-3b", headline.LARGE))
    assert small.keys() == large.keys() and all(small[case] > large[case] > 1.1 for case in small)
    assert large[1, 32768] > large[1, 8192] and large[8, 8192] > large[1, 8192]


def test_readme_is_what_the_rows_say() -> None:
    made = headline.comparable(read_rows(PEERS))
    found = headline.points(made)
    lines = headline.lines_of(found)
    text = headline.README.read_text()
    for name, block in (
        ("gain", headline.sentence(lines, made[-1]["cpu"])),
        ("headline", f"{headline.caption(made)}\n\n{headline.table(lines)}\n\n{headline.of_prompts(found)}"),
    ):
        shown = text.partition(f"<!-- begin {name}: ")[2].partition(f"<!-- end {name} -->")[0]
        assert shown.partition("\n")[2] == block + "\n", name


def test_readme_compares_with_transformers() -> None:
    found = headline.points(headline.comparable(read_rows(PEERS)))["smollm2"][8192]
    plain = headline.fastest(found["plain"]).tokens_per_second
    bfloat16 = [
        row["tokens_per_second"]
        for row in read_rows(PEERS)
        if (row["method"], row["dtype"], row["seq_len"]) == ("recommended", "bfloat16", 8192)
    ]
    words = " ".join(headline.README.read_text().split())
    assert (
        f"decodes {found['recommended'][0].tokens_per_second / plain:.1f} times as fast as transformers"
        in words
    )
    assert f"""without `weights="int4"` {max(bfloat16) / plain:.1f} times""" in words


def test_the_picture_is_not_older_than_its_rows() -> None:
    """If this fails: python bench/headline.py --write."""
    found = headline.points(headline.comparable(read_rows(PEERS)))
    assert digest_in(headline.PICTURE) == pictures.digest(headline.shown(found)[1])


def test_other_rows_make_another_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = headline.points(headline.comparable(rows()))
    path = headline.draw(found, "here", tmp_path / "picture.png")
    assert digest_in(path) == pictures.digest(headline.shown(found)[1])
    more = [*rows(), row("openvino", 11.0, 2.0, "gguf")]
    again = headline.points(headline.comparable(more))
    assert digest_in(path) != pictures.digest(headline.shown(again)[1])
    assert pictures.digest(json.loads('{"a": 1}')) != pictures.digest({"a": 2})
