# SPDX-License-Identifier: Apache-2.0
"""The main job: what it prints and writes, and that it tells a wrong result from a right one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
REAL = str(Path(__file__).resolve().parents[1] / "data" / "smollm2_hamlet.npz")

import ipu_sparq  # noqa: E402
from lib import steps  # noqa: E402
from lib.common import Workload, sparq_kernels  # noqa: E402

from sparq_ipu import devices  # noqa: E402
from sparq_ipu.kernels import BASELINE, DEFAULT, KERNELS, TIERED  # noqa: E402
from sparq_ipu.planning.device_model import FACTORS, ON_CHIP_COLUMNS, on_chip_range  # noqa: E402
from sparq_reference import CacheSpec, SparqSettings  # noqa: E402

SMALL = (
    "--device emulator --S 200 --heads 4 --kv-heads 2 --head-dim 64 --r 16 --k 32 --local 4 --tiles 32"
).split()
FIELDS = {
    "streamed_bytes", "theoretical_speedup", "seconds_by_category",
    "speedup_vs_best_dense", "speedup_vs_dense_streaming", "speedup_low", "speedup_high", "max_tile_bytes",
    "tile_bytes_by_kind", "max_abs_error_vs_float64", "input",
    "streaming_memory_bytes", "extended_memory", "footprint_extrapolated",
}  # fmt: skip


#: labels of a run of everything, in order
LABELS = [
    *(name for name in sparq_kernels() if name != TIERED.name),
    *(f"{kernel.name} {index}" for kernel in (DEFAULT, TIERED) for index in ("int8", "int4", "int2")),
]


def run(*arguments: str, tmp_path: Path) -> tuple[int, list[dict[str, Any]]]:
    file = tmp_path / "rows.jsonl"
    status = ipu_sparq.main([*arguments, "--json", str(file)])
    return status, [json.loads(line) for line in file.read_text().splitlines()]


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run(*SMALL, tmp_path=tmp_path)
    assert status == 0
    assert [ipu_sparq.label(row) for row in rows] == LABELS
    assert [row["index_bits"] for row in rows] == [16, 16, 16, 8, 4, 2, 8, 4, 2]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["bit_exact"] is True and row["checked_against"] == "reference" and row["error"] is None
        assert row["time_source"] == "modelled" and row["seconds_per_query"] > 0
        assert 0 < row["max_abs_error_vs_float64"] < 1e-2
        assert sum(row["tile_bytes_by_kind"].values()) == row["max_tile_bytes"]
        assert row["extended_memory"] is row["footprint_extrapolated"] is False
    sram, dense, sparq, int8, int4, int2, *tiered = rows
    assert [row["theoretical_speedup"] > 1 for row in rows] == [False, False, *[True] * 7]
    assert sram["theoretical_speedup"] == dense["theoretical_speedup"] == 1
    assert sram["streaming_memory_bytes"] == 0
    assert dense["streaming_memory_bytes"] >= 2 * 2 * 256 * 64 * 2  # KV heads, K and V, whole chunks
    assert sram["streamed_bytes"] == 0
    assert dense["streamed_bytes"] >= 2 * 200 * 64 * 2 * 2  # whole blocks of the cache, K and V
    # K by chunks of 256 (and the tail in SRAM), then rows of K and V
    assert sparq["streamed_bytes"] == 2 * (256 * 16 + 2 * 32 * 64) * 2
    assert sparq["speedup_vs_dense_streaming"] == dense["seconds_per_query"] / sparq["seconds_per_query"]
    assert sparq["seconds_low"] < sparq["seconds_per_query"] < sparq["seconds_high"]
    for speedup, seconds in (("speedup_low", "seconds_high"), ("speedup_high", "seconds_low")):
        assert sparq[speedup] == sram[seconds] / sparq[seconds]
    assert sparq["speedup_vs_best_dense"] == sram["seconds_per_query"] / sparq["seconds_per_query"]
    for row, bits in (
        (int8, 8),
        (int4, 4),
        (int2, 2),
    ):  # a chunk is 4 blocks, each with its codes, low and step
        assert row["streamed_bytes"] == 2 * (16 * (256 * bits // 8 + 4 * 4) + 2 * 2 * 32 * 64)
    for row in tiered:  # the selected rows, none of them hot
        assert row["streamed_bytes"] == 2 * 2 * 32 * 64 * 2 and row["theoretical_speedup"] == 200 / 32
    out = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.out.splitlines()[3:12]] == LABELS
    assert "modelled" in out.out and "nothing was measured on an IPU" in out.out
    assert "[3/9] sparq-streaming: check against the reference" in out.err
    assert "[5/9] sparq-streaming int4: check against the reference" in out.err


def test_wrong_results_get_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference that differs in one bit of one output."""
    right = ipu_sparq.exact.attention

    def wrong(query: Any, key: Any, value: Any, settings: Any, cache: Any) -> np.ndarray:
        output = right(query, key, value, settings, cache)
        if settings is None or cache.index_bits == 4:
            output.view(np.uint16)[0, 1, 2] ^= 1
        return output

    monkeypatch.setattr(ipu_sparq.exact, "attention", wrong)
    status, rows = run(*SMALL, tmp_path=tmp_path)
    assert status == 1
    for row in (*rows[:2], rows[4]):
        assert row["bit_exact"] is False and row["seconds_per_query"] is None
        assert row["error"] == "1 of 256 outputs differ from the reference"
        assert row["seconds_by_category"] is None
    assert rows[2]["bit_exact"] is rows[3]["bit_exact"] is True
    assert rows[2]["speedup_vs_dense_streaming"] is None
    assert "NO" in capsys.readouterr().out


def test_unchecked_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--no-check", "--kernel", DEFAULT.name, "--index-bits", "8"]
    status, rows = run(*SMALL, *words, tmp_path=tmp_path)
    assert status == 0 and len(rows) == 1 and rows[0]["checked_against"] is None
    assert rows[0]["bit_exact"] is None and rows[0]["max_abs_error_vs_float64"] is None
    assert "unchecked" in capsys.readouterr().out


def test_a_kernel_that_does_not_fit_is_a_row(tmp_path: Path) -> None:
    shape = "--S 40000 --heads 2 --head-dim 128 --device emulator --tiles 8 --no-check --kernel dense-sram"
    status, rows = run(*shape.split(), tmp_path=tmp_path)
    assert status == 1
    assert rows[0]["does_not_fit"]["resource"] == "tile memory" and rows[0]["seconds_per_query"] is None
    assert rows[0]["does_not_fit"]["need"] > rows[0]["does_not_fit"]["room"] == 638976
    assert "638976" in rows[0]["error"]


def as_ipu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Device "ipu" is played by the emulator; returns what is to be the misses of each timed call."""
    misses: list[int] = []

    class Session:
        def __init__(self, *arguments: Any, device: str, **options: Any) -> None:
            assert options.get("stacked") or options["timed"] == (device == "ipu")
            self._session = real(*arguments, device="emulator", **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        def cycles(self) -> int:
            if options_tiered(self._session):
                misses.append(sum(self._session.misses()))
            return int(self._session.cycles())

    def options_tiered(session: Any) -> bool:
        try:
            session.misses()
        except ValueError:
            return False
        return True

    real = ipu_sparq._core.Session
    monkeypatch.setattr(ipu_sparq._core, "Session", Session)
    monkeypatch.setattr(ipu_sparq._core, "device_unavailable", lambda device: "")
    # what is said of it here is not remembered
    monkeypatch.setattr(devices, "why_unavailable", devices.why_unavailable.__wrapped__)
    return misses


def test_measured_times_are_those_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one call, as the device counts it; warm-up is not counted."""
    as_ipu(monkeypatch)
    words = [*SMALL[2 : SMALL.index("--r")], "--device", "ipu", "--kernel", BASELINE.name]
    status, (row,) = run(*words, *"--reps 3 --warmup 2".split(), tmp_path=tmp_path)
    (tmp_path / "x").mkdir()
    modelled = run(*words[:-4], "--kernel", BASELINE.name, "--device", "emulator", tmp_path=tmp_path / "x")[
        1
    ][0]
    assert status == 0 and row["time_source"] == "measured" and row["n_runs"] == len(row["seconds"]) == 3
    assert row["seconds_per_query"] == pytest.approx(modelled["seconds_per_query"], rel=0.01)
    assert row["host_seconds_per_query"] > 0 and row["bit_exact"] and row["hit_rate"] is None


@pytest.mark.parametrize("rate", [0, 0.75, 1])
def test_as_many_rows_are_hot_before_every_call_as_asked_for(
    rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    misses = as_ipu(monkeypatch)
    shape = f"--S 300 --heads 4 --kv-heads 2 --head-dim 16 --r 8 --k 16 --kernel {TIERED.name} --index-bits 4"
    words = [*shape.split(), "--hit-rate", str(rate)]
    status, (row,) = run(*words, *"--device ipu --reps 2 --warmup 1".split(), tmp_path=tmp_path)
    assert status == 0 and row["hit_rate"] == rate and row["bit_exact"]
    assert misses == [round((1 - rate) * 16 * 2)] * 2
    assert (
        "no row is hot" if rate == 0 else f"{rate:.1%} of the selected rows are hot"
    ) in capsys.readouterr().out


def test_a_build_against_the_sdk_runs_stacks_and_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an emulator there are no plans: what is measured is there all the same."""
    as_ipu(monkeypatch)
    monkeypatch.setattr(ipu_sparq._core, "has_emulator", False)
    monkeypatch.setattr(ipu_sparq._core, "emulator_last_run", None)
    monkeypatch.setattr(ipu_sparq._core, "emulator_plan", None)
    tiered = f"--device ipu --kernel {TIERED.name} --index-bits 4"
    stack = (
        "--S 100 --heads 4 --kv-heads 2 --head-dim 16 --r 8 --k 16 --layers 2 --ipus 2 --reps 2 --warmup 1"
    )
    status, (row,) = run(*stack.split(), *tiered.split(), tmp_path=tmp_path)
    assert status == 0 and row["bit_exact"] and row["time_source"] == "measured" and row["n_runs"] == 2
    assert row["seconds_per_token"] > 0
    trace = f"--input {TRACE} --steps 3 --r 16 --k 24 --local 4 --layer 20".split()
    status, rows = run(*trace, *tiered.split(), tmp_path=tmp_path)
    row = rows[-1]
    assert status == 0 and row["bit_exact"] and row["time_source"] == "measured"
    assert len(row["seconds_per_step"]) == 3 and min(row["seconds_per_step"]) > 0
    assert row["misses_per_step"][0] > row["misses_per_step"][1] and row["streamed_bytes"] is None


def test_a_call_that_gives_other_bits_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_ipu(monkeypatch)
    calls = []
    kind = ipu_sparq._core.Session

    class Session(kind):  # type: ignore[misc,valid-type]
        def attention(self, *arguments: Any) -> np.ndarray:
            calls.append(1)
            return np.asarray(self._session.attention(*arguments) * np.float16(1 + (len(calls) == 4)))

    monkeypatch.setattr(ipu_sparq._core, "Session", Session)
    words = [*SMALL[2 : SMALL.index("--r")], "--device", "ipu", "--kernel", BASELINE.name]
    status, (row,) = run(*words, *"--reps 3 --warmup 1".split(), tmp_path=tmp_path)
    assert status == 1 and row["seconds_per_query"] is None
    assert row["error"] == "RuntimeError: call 3 gave another result than the first"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--tiles -1", "--tiles must be in [0, 1472], got -1"),
        ("--layers 2 --ipus 0", "--ipus must be at least 1, got 0"),
        ("--input x.npz --head-dim=64", "--head-dim must be left out with --input, got 64"),
        ("--input x.npz --plan-only", "--input must not be given with --plan-only, got x.npz"),
        ("--input x.npz", "--input must be a file that can be read, got x.npz (No such file or directory)"),
        (f"--input {__file__}", f"--input must be an .npz file, got {__file__}"),
        (f"--input {REAL} --layer 1", "--layer must be one of [2, 23], got 1"),
        (f"--input {REAL} --S 769", f"--S must be in [1, 768], the positions in {REAL}, got 769"),
        (f"--input {REAL} --r 65", "--rank must be in [1, --head-dim=64], got 65"),
        (f"--input {REAL} --index-bits 3", "--index-bits must be one of 16, 8, 4, 2, got 3"),
        ("--tiles 1473", "--tiles must be in [0, 1472], got 1473"),
    ],
)
def test_usage_errors(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ipu_sparq.main(arguments.split())
    assert stop.value.code == 2 and text in capsys.readouterr().err


def test_no_more_than_all_positions_are_read() -> None:
    cli = ipu_sparq.command_line()
    a = ipu_sparq.parse(cli, "--S 64 --r 32 --k 128".split())
    wide, *fewer = (
        Workload(CacheSpec(1, 32, 128, 64, bits), 32, SparqSettings(32, 128, 32)) for bits in (16, 8, 4, 2)
    )
    assert a.workloads == [wide, *fewer]
    row = ipu_sparq.first_row(DEFAULT, "emulator", wide, a)
    assert row["theoretical_speedup"] == 2 * 64 * 128 / (64 * 32 + 2 * 64 * 128)
    for workload, block in zip(fewer, (64 + 4, 32 + 4, 16 + 4)):  # one block
        row = ipu_sparq.first_row(DEFAULT, "emulator", workload, a)
        assert row["theoretical_speedup"] == 4 * 64 * 128 / (32 * block + 4 * 64 * 128)
    assert row["top_k"] == 128  # as asked for


@pytest.mark.slow
def test_examples_of_plans_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ipu_sparq.main(["--help"])
    examples = [line.split()[2:] for line in capsys.readouterr().out.splitlines() if "--plan-only --" in line]
    assert [ipu_sparq.main(example) for example in examples] == [0]


def test_real_inputs(tmp_path: Path) -> None:
    status, rows = run(
        "--input", REAL, "--layer", "23", "--r", "16", "--k", "64", "--device", "emulator", tmp_path=tmp_path
    )
    assert status == 0
    assert [row["bit_exact"] for row in rows] == [True] * 9
    assert (rows[0]["n_heads"], rows[0]["n_kv_heads"], rows[0]["seq_len"]) == (9, 3, 768)


def test_plan_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, planned = run(*SMALL, "--plan-only", tmp_path=tmp_path)
    assert status == 0 and [ipu_sparq.label(row) for row in planned] == LABELS
    out = capsys.readouterr().out
    assert "SRAM" in out and "seq_len 200, index_bits 8, rank 16" in out
    (tmp_path / "rows.jsonl").unlink()
    _, rows = run(*SMALL, "--no-check", tmp_path=tmp_path)
    for plan, row in zip(planned, rows):
        for field in ("seconds_per_query", "streamed_bytes", "max_tile_bytes"):
            if field != "max_tile_bytes" or KERNELS[row["kernel"]].is_dense:
                assert plan[field] == row[field], (row["kernel"], field)
        # constants: no selection begins again, and how many rows are missing
        assert 0 <= plan["max_tile_bytes"] - row["max_tile_bytes"] <= 24 + 8


def test_plan_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--S 65536 --B 4 --kernel dense-sram --plan-only"
    status, (row,) = run(*arguments.split(), tmp_path=tmp_path)
    assert status == 1 and row["does_not_fit"]["room"] == 638976
    assert "638976" in capsys.readouterr().out


def test_one_key_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dense attention is run once, whatever the key index."""
    status, rows = run(*SMALL, "--index-bits", "4", "--no-check", tmp_path=tmp_path)
    assert status == 0 and [(row["kernel"], row["index_bits"]) for row in rows] == [
        *((name, 16) for name in KERNELS if KERNELS[name].is_dense),
        (DEFAULT.name, 4),
        (TIERED.name, 4),
    ]
    assert "index_bits" not in capsys.readouterr().out  # the heading is of all rows, a label of one


def test_the_share_on_chip() -> None:
    seconds = dict(total=8e-3, streaming=6e-3, compute=1.5e-3, exchange=0.25e-3, sync=0.25e-3)
    modelled = dict(seconds_per_query=8e-3, **on_chip_range(seconds))
    measured = dict(dict.fromkeys(ON_CHIP_COLUMNS), seconds_per_query=8e-3)
    assert ipu_sparq.share_on_chip(modelled) == pytest.approx(0.25)
    column, names = {c.heading: c for c in ipu_sparq.COLUMNS}, ("on chip", "low", "high")
    ends = [f"{8 + sum((f[end] - 1) * seconds[c] for c, f in FACTORS.items()) * 1e3:.4f}" for end in (0, 1)]
    assert [column[name].text(modelled) for name in names] == ["25%", *ends]
    assert [column[name].text(measured) for name in names] == ["-"] * 3


def test_dense_attention_has_no_rank(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL[: SMALL.index("--r")], "--tiles", "32", "--kernel", BASELINE.name, "--no-check"]
    assert ipu_sparq.main(words) == 0
    assert "seq_len 200\n" in capsys.readouterr().out  # and the heading has none


@pytest.mark.slow
def test_the_documents_show_what_the_main_job_prints(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    readme, page = (root / "README.md").read_text(), (root / "docs/benchmarks.md").read_text()
    command = next(
        line for line in readme.splitlines() if "bench/ipu_sparq.py" in line and "pip install" in line
    )
    assert ipu_sparq.main(command.split("bench/ipu_sparq.py")[1].split()) == 0
    printed = capsys.readouterr().out
    table = page[page.index("device emulator, batch 1,") :].split("```")[0]
    assert len(table.splitlines()) > 10
    assert table in printed
    assert table.replace("yes", "no", 1) not in printed  # negative control


TRACE = str(Path(__file__).resolve().parents[1] / "data" / "smollm2_steps.npz")
STEPS = f"--input {TRACE} --steps 5 --tiles 24 --device emulator --r 16 --k 24 --local 4".split()


def test_steps_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--index-bits", "4", "--layer", "20"]
    status, rows = run(*STEPS, *words, "--kernel", TIERED.name, tmp_path=tmp_path)
    assert status == 0
    (row,) = rows
    assert row["bit_exact"] and row["n_steps"] == 5 and row["layer"] == 20 and row["n_heads"] == 6
    # the first step finds nothing but the token that was appended
    assert row["misses_per_step"][0] == 2 * (24 - 1)
    assert row["hit_rate"] == pytest.approx(1 - sum(row["misses_per_step"][1:]) / 4 / (2 * 24))
    assert 0 < row["hit_rate"] < 1
    assert row["seconds_per_query"] == sorted(row["seconds_per_step"])[2]
    assert row["seconds_per_step"][0] == max(row["seconds_per_step"])
    assert row["streamed_bytes_per_step"][0] >= row["misses_per_step"][0] * 2 * 64 * 2
    assert row["speedup_vs_dense_streaming"] > row["speedup_vs_best_dense"] > 0
    out = capsys.readouterr().out
    assert "every step" in out and f"{row['hit_rate']:.1%}" in out
    # more rows are hot in a larger buffer, and other kernels have none
    _, rows = run(*STEPS, *words, "--hot-rows", "400", tmp_path=tmp_path)
    assert [r["kernel"] for r in rows] == [row["kernel"], *sparq_kernels()]
    assert rows[-1]["hit_rate"] >= row["hit_rate"] and rows[-1]["hot_rows"] == 400
    assert all(r["hit_rate"] is None and r["bit_exact"] for r in rows[1:-1] if not r["error"])


def test_steps_see_a_wrong_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = steps.exact.attention

    def wrong(query: Any, key: Any, *rest: Any) -> np.ndarray:
        output = right(query, key, *rest)
        if key.shape[2] == 512 + 3:
            output.view(np.uint16)[0, 1, 2] ^= 1
        return output

    monkeypatch.setattr(steps.exact, "attention", wrong)
    status, (row,) = run(*STEPS, "--index-bits", "8", "--kernel", TIERED.name, tmp_path=tmp_path)
    assert status == 1 and row["bit_exact"] is False
    assert row["error"] == "outputs of 1 of 5 steps differ from the reference"
    assert "NO" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["--steps", "3"], "--steps must be given together with --input, got 3 alone"),
        (["--input", TRACE, "--steps", "65"], f"--steps must be at most 64, those of {TRACE}, got 65"),
        (
            ["--input", TRACE, "--steps", "1", "--layer", "3"],
            f"--layer must be one of [2, 20] of {TRACE}, got 3",
        ),
        (["--steps", "-1"], "--steps must be at least 0, got -1"),
        (["--hit-rate", "1.5"], "--hit-rate must be in [0, 1], got 1.5"),
        (["--hot-rows", "-1"], "--hot-rows must be in [0, 65536], got -1"),
    ],
)
def test_bad_steps_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        ipu_sparq.main([*words, "--device", "emulator"])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chrome's format: steps follow one another, lanes add up to the report, and tiles are beside them."""
    path = tmp_path / "trace.json"
    status, rows = run(*SMALL, "--index-bits", "4", "--trace", str(path), tmp_path=tmp_path)
    trace = json.loads(path.read_text())
    assert status == 0 and set(trace) == {"displayTimeUnit", "traceEvents"}
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert list(names.values()) == [f"{ipu_sparq.label(row)} (modelled)" for row in rows] and len(rows) == 4
    for process, row in zip(names, rows):
        events = [e for e in trace["traceEvents"] if e["pid"] == process]
        lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
        assert sorted(lanes, key=order.__getitem__) == list(lanes)
        spans = [e for e in events if e["ph"] == "X"]
        assert all(set(e) == {"ph", "name", "pid", "tid", "ts", "dur", "args"} for e in spans)
        steps = [e for e in spans if lanes[e["tid"]] == "steps"]
        end = 0.0
        for step in steps:
            assert step["ts"] == pytest.approx(end, abs=1e-9)
            end = step["ts"] + step["dur"]
        assert end == pytest.approx(row["seconds_per_query"] * 1e6)
        assert any(step["args"]["executions"] >= 1 and step["args"]["vertices"] for step in steps)
        for lane, category in (
            *(("sync", "sync"), ("exchange", "exchange"), ("compute", "compute")),
            ("streaming memory", "streaming"),
        ):
            total = sum(e["dur"] for e in spans if lanes[e["tid"]] == lane)
            assert total == pytest.approx(row["seconds_by_category"][category] * 1e6)
            assert total > 0 or (row["kernel"], category) == ("dense-sram", "streaming")
        of_tiles = [lane for lane, name in lanes.items() if name.startswith("tile ")]
        busiest = [sum(e["args"]["cycles"] for e in spans if e["tid"] == lane) for lane in of_tiles]
        assert len(busiest) == 4 and busiest == sorted(busiest, reverse=True) and busiest[-1] > 0
        of_step = {e["ts"]: e for e in spans if lanes[e["tid"]] == "compute"}
        assert all(e["dur"] <= of_step[e["ts"]]["dur"] for e in spans if e["tid"] in of_tiles)
    with pytest.raises(SystemExit):
        ipu_sparq.main([*SMALL, "--trace", str(tmp_path / "no/such/folder.json")])
    assert "--trace must be a file that can be written" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--heat-map", "--trace"])
def test_a_picture_that_can_not_be_drawn_ends_before_the_runs(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise SystemExit("no matplotlib")

    monkeypatch.setattr(ipu_sparq, "load_pyplot", missing)
    monkeypatch.setattr(ipu_sparq, "runs", lambda *_: pytest.fail("it ran"))
    with pytest.raises(SystemExit, match="no matplotlib"):
        ipu_sparq.main([*SMALL, flag, str(tmp_path / "x.png")])


def test_a_heat_map(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "tiles.png"
    lanes = tmp_path / "lanes.png"
    words = ["--index-bits", "4", "--heat-map", str(path), "--trace", str(lanes)]
    status, _ = run(*SMALL, "--kernel", DEFAULT.name, *words, tmp_path=tmp_path)
    assert status == 0 and all(of.read_bytes().startswith(b"\x89PNG") for of in (path, lanes))
