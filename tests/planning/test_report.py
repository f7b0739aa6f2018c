# SPDX-License-Identifier: Apache-2.0
"""The report: its numbers are those of plans and measurements, its page holds what it promises."""

from __future__ import annotations

import builtins
import json

import pytest

core = pytest.importorskip("sparq_ipu._core")
if not core.has_emulator:
    pytest.skip("built without the emulator", allow_module_level=True)

from sparq_ipu import plan  # noqa: E402
from sparq_ipu.commands import tables  # noqa: E402
from sparq_ipu.planning import report  # noqa: E402
from sparq_ipu.planning import report_data as data  # noqa: E402
from sparq_ipu.planning import report_pictures as pictures  # noqa: E402
from sparq_reference import SparqSettings  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A source whose time lines are made up, so that only a few plans are made."""
    path = tmp_path_factory.mktemp("report") / "sweep.jsonl"
    stages = {"x/read_key_columns": 1e-3, "x/read_rows": 2e-4, "x/softmax_weights": 1e-5, "x/query": 1e-6}
    with open(path, "w") as file:
        for batch in data.BATCHES:
            for n_kv_heads in (32, 8):
                for seq_len in data.LENGTHS:
                    for kernel, settings, bits in (
                        ("dense-streaming", None, 16),
                        *(("sparq-streaming", *variant) for variant in data.VARIANTS),
                    ):
                        seconds = (1e-6 if settings is None else 1.25e-8 * bits) * seq_len
                        row = {
                            "kernel": kernel,
                            "device": "bow",
                            "batch": batch,
                            "n_heads": 32,
                            "n_kv_heads": n_kv_heads,
                            "head_dim": 128,
                            "seq_len": seq_len,
                            "rank": settings and settings.rank,
                            "top_k": settings and settings.top_k,
                            "index_bits": bits,
                            "seconds_per_query": seconds,
                            "seconds_low": 0.75 * seconds,
                            "seconds_high": seconds + 1e-7 * seq_len,
                            "streamed_bytes": 1000 * seq_len,
                            "stages": stages,
                            "error": None,
                        }
                        file.write(json.dumps(row) + "\n")
    return data.Source("bow", path, quiet=True)


def test_rows_come_from_the_file_or_from_a_plan(source):
    assert source.seconds(data.dense_call(1, 32, 1024)) == pytest.approx(1.024e-3)
    assert source.speedup(data.sparq_call(4, 32, 2048)) == pytest.approx(5)
    assert source.speedup(data.sparq_call(4, 32, 2048, index_bits=8)) == pytest.approx(10)
    assert source.seconds(data.sparq_call(1, 8, 320, SparqSettings(16, 64), 4)) == (
        plan(1, 32, 8, 128, 320, rank=16, top_k=64, index_bits=4).seconds_per_query
    )
    assert source.seconds(data.dense_call(1, 8, 320)) == (
        plan(1, 32, 8, 128, 320, kernel="dense-streaming").seconds_per_query
    )
    assert source.row(data.dense_call(64, 32, 65536))["error"] is None  # from the file
    refused = data.Source("bow", None, quiet=True)
    assert "streaming memory" in refused.row(data.dense_call(64, 32, 65536))["error"]
    assert refused.seconds(data.dense_call(64, 32, 65536)) is None
    assert refused.speedup(data.sparq_call(64, 32, 65536)) is None


def test_measured_speedups_are_the_published_ones():
    measured = data.measured_speedups()
    assert measured[1, 16384, data.HEADLINE] == pytest.approx(7.41, abs=0.005)
    assert measured[1, 16384, SparqSettings(32, 64)] == pytest.approx(40.43 / 5.278, abs=0.005)


@pytest.mark.parametrize("index_bits", [16, 8, 4])
def test_every_step_of_the_program_is_in_one_group(index_bits):
    planned = plan(baseline=False, index_bits=index_bits)  # at this size the tail has steps of its own
    groups = pictures.stage_seconds(planned.row())
    assert sum(groups.values()) == pytest.approx(planned.seconds_per_query)
    labels = (
        "key columns streamed",
        "rows of keys and values streamed",
        "approximate scores",
        "softmax",
        "top-k",
    )
    for label in labels:
        assert groups[label] > 0  # a renamed step would drop out
    steps = {name.split("/")[-1] for name in planned.stages_by_name()}
    known = {ending for endings in core.stages().values() for ending in endings}
    scoring = {name for name in steps if "coefficients" in name or "scores" in name}
    assert len(scoring) == (3 if index_bits == 16 else 5) and scoring - known == {"row_scores"}
    assert groups[pictures.OTHERS] < 0.5 * (
        planned.seconds_per_query - planned.seconds_by_category["streaming"]
    )


def test_the_table_of_comparison_has_a_row_for_each_key_index(source):
    table = {row[0]: row[1:] for row in data.comparison_rows(source)}
    at = "batch 4, S=4096, r=32, k=128"

    def between(us: float) -> str:
        return f"{us * 4096:.0f} ({0.75 * us * 4096:.0f}-{(us + 0.1) * 4096:.0f})"

    assert table[f"sparq-streaming, {at}"][0] == between(0.2)
    assert table[f"sparq-streaming int8, {at}"] == (between(0.1), "-", "10.00x", "-")
    assert table[f"sparq-streaming int4, {at}"] == (
        between(0.05),
        "-",
        "20.00x",
        "-",
    )
    assert table[f"sparq-streaming, {at}"][3] != "-"  # published
    assert len(table) == 2 * 3 * (1 + len(data.VARIANTS))


def test_the_table_of_steps_has_every_key_index():
    real = data.Source("bow", None, quiet=True)
    rows = {row[0]: row[1:] for row in data.stage_rows(real, 1024)}
    plans = [real.plan(data.sparq_call(1, 32, 1024, index_bits=bits)) for bits in (16, 8, 4)]
    assert rows["all"] == tuple(f"{p.seconds_per_query * 1e6:.2f}" for p in plans)
    for end in ("low", "high"):
        of_end = tuple(f"{getattr(p, f'seconds_{end}') * 1e6:.2f}" for p in plans)
        assert rows[f"all, work on chip {end}"] == of_end
    assert rows["sparq0/block_coefficients"][0] == "-" != rows["sparq0/block_coefficients"][1]
    for i, p in enumerate(plans):
        names = [name for name, cells in rows.items() if cells[i] != "-" and not name.startswith("all")]
        assert names == list(p.stages_by_name())  # in the order of each program


def test_calibration_rows_cover_every_measurement():
    rows = list(data.calibration_rows())
    assert sum(int(row[1]) for row in rows) == 108
    assert all(float(median) <= float(largest) for _, _, median, largest in rows)


def test_the_table_of_three_tiers(monkeypatch):
    """Plans as a caller would make them: the first and the last of the table."""
    points = data.TIER_POINTS[0], data.TIER_POINTS[-1]
    assert points == ((32, 128, 16, 0.0), (8, 256, 8, 0.96))
    monkeypatch.setattr(data, "TIER_POINTS", points)
    first, last = (
        plan(1, 32, heads, kernel="sparq-tiered", top_k=k, row_bits=bits, hit_rate=rate)
        for heads, k, bits, rate in points
    )

    def cells(p):
        return (
            f"{p.seconds_per_query * 1e6:.1f}",
            f"{p.seconds_low * 1e6:.1f}",
            f"{p.seconds_high * 1e6:.1f}",
            f"{p.on_chip_seconds * 1e6:.1f}",
            f"{p.speedup_vs_dense_streaming:.0f}x",
            f"{p.speedup_low:.0f}x",
            f"{p.speedup_high:.0f}x",
        )

    assert list(data.tier_rows("bow")) == [
        ("32", "128", "fp16", "0.00", *cells(first)),
        ("8", "256", "int8", "0.96", *cells(last)),
    ]


def test_pages(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "Source", lambda *a: source)
    monkeypatch.setattr(data, "TIER_POINTS", data.TIER_POINTS[:1])
    assert report.main(["--out", str(tmp_path), "--no-pictures"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text()
    assert "modelled" in page and "measured" in page and "![" not in page
    for part in report.sections(source):
        assert f"## {part.title}" in page
    pytest.importorskip("matplotlib")
    assert report.main(["--out", str(tmp_path), "--format", "html"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(pictures.PICTURES)
    assert "<script" not in page


def test_what_a_page_shows_is_text():
    part = data.Section("a < b", "x & y", ("<head>",), (("<cell>",),))
    page = report.as_html([part], {}, "<title>")
    for text in ("a &lt; b", "x &amp; y", "&lt;head&gt;", "&lt;cell&gt;", "&lt;title&gt;"):
        assert text in page
    assert "<head>" not in page and "<cell>" not in page


def test_without_matplotlib(tmp_path, monkeypatch, capsys):
    """It is refused before anything is planned or written."""
    monkeypatch.setattr(data, "Source", None)
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert report.main(["--out", str(tmp_path / "page")]) == 2
    error = capsys.readouterr().err
    assert (
        "report: matplotlib must be installed for pictures (pip install '.[plot]' in a checkout of sparq-ipu)"
        in error
    )
    assert not (tmp_path / "page").exists()


def test_a_file_is_no_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "Source", None)
    (tmp_path / "page").touch()
    with pytest.raises(SystemExit):
        report.main(["--out", str(tmp_path / "page"), "--no-pictures"])
    assert "--out must be a directory that can be written, got " in capsys.readouterr().err


def test_replace_block(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- begin x: how -->\nold\n<!-- end x -->\nb\n")
    tables.replace_block(path, "x", "new\\1")
    assert path.read_text() == "a\n<!-- begin x: how -->\nnew\\1\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match=r"replace_block: page\.md must have a block 'y', got none"):
        tables.replace_block(path, "y", "")
