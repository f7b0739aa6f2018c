# SPDX-License-Identifier: Apache-2.0
"""study/alisa_device.py: phases on the emulator's tiers, and what the schedule and the model say of them."""

from __future__ import annotations

from pathlib import Path

import alisa
import alisa_device
import numpy as np
import pytest

from sparq_reference import SparqSettings, WindowSettings
from sparq_study import traces

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
if not _core.has_emulator:
    pytest.skip("built without the emulator", allow_module_level=True)


@pytest.fixture(scope="module")
def trace() -> traces.Trace:
    """60 positions, 20 steps behind those that are observed; no position gets all of the attention."""
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((52, 4, 16), *[(2, 60, 16)] * 2)
    )
    return traces.Trace({3: traces.TraceLayer(query, key, value)}, 8, "made", "synthetic", "none")


def test_predicted_rows_by_hand() -> None:
    """100 positions, 10 recent: of 90 older ones 20 are away, and 10 of these are attended to."""
    settings = WindowSettings(20, 10, 4)
    assert alisa_device.predicted_rows(100, settings, 80) == pytest.approx(10 * 20 / 90)
    assert alisa_device.predicted_rows(80, settings, 80) == 0
    assert alisa_device.predicted_rows(15, settings, 5) == pytest.approx(5)  # all of the older ones
    assert alisa_device.predicted_rows(100, SparqSettings(4, 20, 0), 40) == pytest.approx(20 * 60 / 100)


def test_phase_one_reads_nothing(trace: traces.Trace) -> None:
    """After the first step, as long as the buffer has room; what is read is what is selected and away."""
    settings = WindowSettings(16, n_recent=alisa_device.N_RECENT)

    def steps(hot_rows: int) -> list[alisa_device.Step]:
        return list(alisa_device.executed(trace, 3, settings, hot_rows, 8))

    roomy, growing, tight = steps(60), steps(52), steps(20)
    assert [s.held for s in growing] == list(range(41, 61))
    assert all(s.predicted == 0 for s in (*roomy, *growing[:12]))
    assert all(s.counted == 0 for s in (*roomy[1:], *growing[1:12])) and roomy[0].counted > 0
    assert all(s.predicted > 0 for s in growing[12:]) and any(s.counted for s in tight)
    assert all(s.counted <= 8 for s in tight[1:])  # those that are not local
    assert sum(s.counted for s in tight) < sum(s.predicted for s in tight)
    assert tight[0].seconds > max(s.seconds for s in tight if s.counted == 0)


def test_lines_and_tables(trace: traces.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "load", lambda path: trace)
    monkeypatch.setattr(alisa_device, "RUNS", (("ALISA", WindowSettings(16, n_recent=32)),))
    written = tmp_path / "lines.jsonl"
    monkeypatch.setattr(alisa_device, "SHAPES", ((4, 2),))
    monkeypatch.setattr(alisa, "PLANNED_FOR", 256)
    arguments = ["--device", "emulator", "--hot-rows", "52", "--layers", "3", "--json", str(written)]
    assert alisa.main(arguments) == 0
    (line,) = alisa.read(written)
    assert (line["I"]["steps"], line["II"]["steps"]) == (11, 8)
    assert line["I"]["predicted"] == line["I"]["counted"] == 0 < line["II"]["predicted"]
    (row,) = alisa.device([line]).splitlines()[2:]
    assert row.startswith("| synthetic | ALISA k=16 | 52 | 7 | 11 | 0.0 | 0.0 |")
    with pytest.raises(SystemExit):
        alisa.main(["--device", "emulator", "--layers", "4"])


def test_a_step_is_planned_with_the_hits_that_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alisa_device, "SHAPES", ((4, 2),))
    line = dict(kind="device", trace="made", attention="SparQ", hot_rows=64, I=[])
    line.update(of_rank=16, of_top_k=16, of_n_local=4, II={"counted": 4.0})
    roomy = {**line, "I": {"steps": 1}}
    few, many = alisa_device.plan_lines([line, roomy, {**line, "II": {"counted": 12.0}}], 256, n_tiles=8)
    assert (few["hit_rate"], many["hit_rate"]) == (0.75, 0.25)


def test_the_price_of_a_row_by_hand() -> None:
    """LLaMA-7B: 32 packets of 512 bytes, or an input of 8192 bytes and 2 * 4096 * 8192 products."""
    lines = {line["layer"]: line for line in alisa_device.recompute_lines()}
    line = lines["OPT-6.7B, LLaMA-7B"]
    model = alisa_device.device_model("bow")
    rate, packet = model.streaming_bytes_per_second, model.packet_overhead_bytes
    assert line["rows_16"] == pytest.approx(32 * (512 + packet) / rate)
    assert line["rows_8"] == pytest.approx(32 * (288 + packet) / rate)
    assert line["input"] == pytest.approx(8 * (1024 + packet) / rate)
    assert line["products"] == pytest.approx(2 * 4096 * 8192 / 175e12)
    grouped = lines["Llama-3-8B (8 KV heads)"]
    assert grouped["rows_16"] == pytest.approx(line["rows_16"] / 4) and grouped["input"] == line["input"]
