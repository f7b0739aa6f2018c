# SPDX-License-Identifier: Apache-2.0
"""bench/sweep.py: the grid, resuming, refusals as rows, emulation that checks, tables."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import gzip
import json

import numpy as np
import pytest

core = pytest.importorskip("sparq_ipu._core")
if not core.has_emulator:
    pytest.skip("built without the emulator", allow_module_level=True)

import sweep  # noqa: E402
from lib import sweep_tables  # noqa: E402
from lib.common import WORKLOAD_COLUMNS, Workload, sparq_kernels  # noqa: E402

from sparq_ipu.kernels import BASELINE, DEFAULT, DENSE_SRAM, KERNELS, TIERED, Kernel  # noqa: E402
from sparq_reference import CacheSpec, SparqSettings  # noqa: E402

#: kernels that take any size of a key index
STREAMED = [name for name, kernel in sparq_kernels().items() if kernel is not TIERED]
SMALL = "--S 256 --B 1 --kv-heads 8 --r 16 --k 64".split()


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def grid(*words):
    cli = sweep.command_line()
    return sweep.grid(cli, sweep.parse(cli, list(words)))


def point_of(kernel, batch=1, seq_len=256, index_bits=16, row_bits=16):
    workload = Workload(CacheSpec(batch, 8, 128, seq_len, index_bits, row_bits), 32, SparqSettings(16, 64))
    return sweep.Point(KERNELS[kernel], workload.on(KERNELS[kernel]))


def test_the_grid_is_the_published_one():
    points = grid()
    sparq = [p for p in points if p.kernel is DEFAULT and p.workload.spec.index_bits == 16]
    for n_kv_heads in (32, 8):
        found = sum(p.workload.spec.n_kv_heads == n_kv_heads for p in sparq)
        assert found == sweep_tables.PUBLISHED_POINTS
    fewer = [p for p in points if p.workload.spec.index_bits != 16]
    assert {(p.workload.settings.rank, p.workload.settings.top_k) for p in fewer} == {(32, 128)}
    bits = [(p.kernel.name, p.workload.spec.index_bits, p.workload.spec.row_bits) for p in fewer]
    assert {each: bits.count(each) for each in bits} == {
        (DEFAULT.name, 8, 16): 2 * 28,
        (DEFAULT.name, 4, 16): 2 * 28,
        (DEFAULT.name, 2, 16): 2 * 28,
        (TIERED.name, 8, 16): 2 * 28,
        (TIERED.name, 4, 16): 2 * 28,
        (TIERED.name, 2, 16): 2 * 28,
        (TIERED.name, 4, 8): 2 * 28,
    }
    assert len({p.key("bow") for p in points}) == len(points) == 2 * (336 + 2 * 28) + len(fewer)
    sizes = [p.workload.spec.n_tasks * p.workload.seq_len for p in points]
    assert sizes == sorted(sizes)


def test_the_grid_has_every_kernel_and_value(monkeypatch):
    monkeypatch.setitem(KERNELS, "new", Kernel("new", "streaming", "sparq", "a new one"))
    words = "--S 64 --B 1 --heads 8 --kv-heads 8 2 --head-dim 16 32 --r 4 8 --k 4 --local 0 2"
    points = grid(*words.split())
    assert len({p.key("bow") for p in points}) == len(points) == 2 * 2 * (2 + 2 * 4)
    assert {p.kernel.name for p in points} == {*STREAMED, "new"}
    chosen = grid(*words.split(), "--kernel", "new", BASELINE.name)
    assert {p.kernel.name for p in chosen} == {"new", BASELINE.name}


def test_key_indices_that_are_asked_for_are_of_every_point():
    words = "--S 64 --B 1 --kv-heads 8 --r 4 32 --k 128".split()

    def found(*more):
        return [
            (p.kernel.name, p.workload.spec.index_bits, p.workload.columns()["rank"])
            for p in grid(*words, *more)
        ]

    dense = [(name, 16, None) for name in STREAMED if KERNELS[name].is_dense]
    usual = [*dense, *((DEFAULT.name, 16, r) for r in (4, 32)), *((DEFAULT.name, b, 32) for b in (8, 4, 2))]
    tiered = [(TIERED.name, b, 32) for b in (8, 4, 4, 2)]  # 4 twice: rows of 16 and of 8 bits
    assert sorted(found(), key=str) == sorted([*usual, *tiered], key=str)
    asked = [*dense, *((DEFAULT.name, b, r) for b in (4, 8) for r in (4, 32))]
    tiered = [(TIERED.name, b, r) for b in (8, 4, 4) for r in (4, 32)]
    assert sorted(found("--index-bits", "8", "4"), key=str) == sorted([*asked, *tiered], key=str)
    every = [(TIERED.name, b, 32) for b in (8, 8, 4, 4, 2, 2)]
    both = found("--row-bits", "16", "8")
    assert sorted(each for each in both if each[0] == TIERED.name) == sorted(every)


def test_a_sweep_resumes(tmp_path, capsys):
    out = tmp_path / "sweep.jsonl"
    assert sweep.main(["--json", str(out), *SMALL]) == 0
    first = rows(out)
    assert [r["kernel"] for r in first] == STREAMED
    assert all(r["error"] is None and r["time_source"] == "modelled" for r in first)
    assert "3 to do, 0 done before" in capsys.readouterr().err
    assert sweep.main(["--json", str(out), *SMALL]) == 0
    assert rows(out) == first
    assert "0 to do, 3 done before" in capsys.readouterr().err
    # Interrupted in the middle of the last line: that one is made again.
    text = out.read_text()
    out.write_text(text[:-40])
    assert sweep.main(["--json", str(out), *SMALL]) == 0
    assert "1 to do, 2 done before" in capsys.readouterr().err
    assert rows(out) == first
    # Other settings are other points.
    assert sweep.main(["--json", str(out), *SMALL, "--local", "0", "4"]) == 0
    assert "1 to do, 3 done before" in capsys.readouterr().err


def test_without_a_file_rows_go_to_stdout(capsys):
    assert sweep.main([*SMALL[: SMALL.index("--r")], "--kernel", BASELINE.name]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["kernel"] == BASELINE.name and row["seconds_per_query"] > 0


def test_refusals_are_rows(tmp_path):
    out = tmp_path / "sweep.jsonl"
    arguments = "--S 65536 --B 64 --kv-heads 32 --r 16 --k 64"
    assert sweep.main(["--json", str(out), *arguments.split()]) == 0
    found = {r["kernel"]: r for r in rows(out)}
    for kernel, resource, need, room in (
        ("dense-sram", "tile memory", 46684428, 638976),
        ("dense-streaming", "streaming memory", 2 * 2 * 64 * 32 * 65536 * 128, 64 * 10**9),
        ("sparq-streaming", "streaming memory", 3 * 2 * 64 * 32 * 65536 * 128, 64 * 10**9),
    ):
        assert found[kernel]["does_not_fit"] == {"resource": resource, "need": need, "room": room}
        assert resource in found[kernel]["error"] and found[kernel]["seconds_per_query"] is None
    assert sweep.main(["--json", str(out), *arguments.split(), "--emulate", "1e18"]) == 0
    assert len(rows(out)) == 3  # neither planned nor emulated again
    table = sweep_tables.coverage_table(rows(out))
    assert "| dense-streaming, 32 KV heads | 1 | 0 | 0 | 1 | 0 | - | 0 | 0 |" in table
    assert "| dense-sram, 32 KV heads | 1 | 0 | 1 | 0 | 0 | - | 0 | 0 |" in table


def test_only_what_does_not_fit_counts_as_refused():
    """By the row's own fact, whatever the message says."""
    base = dict(
        kernel=BASELINE.name, index_bits=16, row_bits=16, n_kv_heads=8, emulated=False, max_tile_bytes=1
    )
    lacks = dict(need=2, room=1)
    made = [
        {**base, "error": "tile memory", "does_not_fit": None},
        {**base, "error": "x", "does_not_fit": {"resource": "tile memory", **lacks}},
        {**base, "error": "x", "does_not_fit": {"resource": "streaming memory", **lacks}},
        {**base, "error": "x", "does_not_fit": {"resource": "rows of streaming memory", **lacks}},
        {**base, "error": None, "does_not_fit": None},
    ]
    table = sweep_tables.coverage_table(made)
    assert f"| {BASELINE.name}, 8 KV heads | 5 | 1 | 1 | 2 | 1 | 1 | 0 | 0 |" in table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "index_bits", "row_bits"),
    [
        *((name, 16, 16) for name in STREAMED),
        (DEFAULT.name, 8, 16),
        (DEFAULT.name, 4, 16),
        (TIERED.name, 4, 16),
        (TIERED.name, 8, 8),
    ],
)
def test_emulation_checks_bits_and_counts(kernel, index_bits, row_bits):
    pytest.importorskip("sparq_ipu._cpu")
    point = point_of(kernel, index_bits=index_bits, row_bits=row_bits)
    row = point.row("bow", 0)
    sweep.emulate([point], [row], 0)
    assert row["emulated"] and row["bit_exact"] and row["plan_equals_run"] and row["error"] is None
    assert row["checked_against"] == "CPU kernels; NumPy reference in 4 of 8 KV heads"


def test_emulation_sees_a_wrong_plan_and_a_wrong_result(monkeypatch):
    # Negative controls.
    pytest.importorskip("sparq_ipu._cpu")
    point = point_of(BASELINE.name)
    row = point.row("bow", 0)
    row["seconds_per_query"] *= 1.0001
    sweep.emulate([point], [row], 0)
    assert row["error"] == "the emulated run differs from the plan" and not row["plan_equals_run"]
    from sparq_ipu import attention

    right = attention.attention
    for device, name in (("cpu", "CPU kernels"), ("reference", "NumPy reference")):

        def of_device(query, cache, settings, device=device):
            return right(query, cache, settings) + (cache.device == device)

        monkeypatch.setattr(attention, "attention", of_device)
        sweep.emulate([point], [row], 0)
        assert row["error"] == f"the emulated result differs from that of the {name}"
        assert row["bit_exact"] is False


def test_every_kv_head_of_the_sample_is_compared(monkeypatch):
    """One wrong output in any sampled head, of any element, is seen; all are sampled where they are few."""
    point = point_of(DEFAULT.name, batch=3)
    spec = point.workload.spec
    heads = sweep.sampled_heads(spec, 0)
    assert len(set(heads)) == sweep.REFERENCE_HEADS and {(0, 0), (2, 7)} < set(heads)
    assert len({b for b, _ in heads}) > 1 and sweep.sampled_heads(spec, 1) != heads
    few = dataclasses.replace(spec, batch=1, n_kv_heads=2)
    assert sweep.sampled_heads(few, 0) == [(0, 0), (0, 1)]
    query = np.random.default_rng(0).standard_normal((3, point.workload.n_heads, 128)).astype(np.float16)
    right = sweep.expected_outputs([point], query, 0)[0]
    assert sweep.equals_reference([point, point], [right, right], query, 0) == [True, True]
    group = point.workload.n_heads // 8
    for b, h in heads:
        wrong = right.copy()
        wrong[b, h * group + group - 1, 5] += 1
        assert sweep.equals_reference([point, point], [right, wrong], query, 0) == [True, False]


def test_a_wrong_emulation_ends_with_status_1(tmp_path, monkeypatch, capsys):
    def wrong(points, rows, seed):
        for row in rows:
            row.update(emulated=True, bit_exact=False, plan_equals_run=True, error="wrong")

    class InThisProcess(concurrent.futures.ThreadPoolExecutor):
        pass

    monkeypatch.setattr(sweep, "emulate", wrong)
    monkeypatch.setattr(sweep.concurrent.futures, "ProcessPoolExecutor", InThisProcess)
    out = tmp_path / "sweep.jsonl"
    assert sweep.main(["--json", str(out), *SMALL, "--emulate", "1e9"]) == 1
    assert "wrong: python bench/sweep.py --kernel dense-sram --S 256" in capsys.readouterr().err


@pytest.mark.parametrize("kernel", STREAMED)
def test_a_cache_is_written_in_blocks(kernel, monkeypatch):
    # 100 positions in blocks of 32, in both elements: every position in its place.
    pytest.importorskip("sparq_ipu._cpu")
    point = point_of(kernel, batch=2, seq_len=100)
    monkeypatch.setattr(sweep, "BLOCK", 32)
    written = [[], []]

    class Session:
        def write(self, key, value, counts):
            assert counts == [key.shape[2]] * 2
            written[0].append(key)
            written[1].append(value)

    sweep.filled(Session(), point, 7)
    assert len(written[0]) == (1 if KERNELS[kernel].memory == "sram" else 4)
    for which in (0, 1):
        for b in range(2):
            blocks = [
                sweep.random_positions(point.workload.spec, 7, b, i, min(32, 100 - 32 * i))[which]
                for i in range(4)
            ]
            whole = np.concatenate(blocks, axis=1)
            assert np.array_equal(np.concatenate(written[which], axis=2)[b], whole)
            assert len(np.unique(whole)) > 1000
    row = point.row("bow", 7)
    sweep.emulate([point], [row], 7)
    assert row["emulated"] and row["error"] is None


def test_cache_bytes_count_keys_twice_where_they_are_kept_twice():
    rows = 8 * 256 * 128 * 2
    assert {name: point_of(name).cache_bytes // rows for name in STREAMED} == {
        "dense-sram": 2,
        "dense-streaming": 2,
        "sparq-streaming": 3,
    }


def test_parts_are_of_one_shape():
    points = grid()
    parts = list(sweep.parts(points, 4))
    assert [p for part in parts for p in part] == points and max(map(len, parts)) == 4
    assert all(len({(p.workload.spec, p.workload.n_heads) for p in part}) == 1 for part in parts)


def test_speedups_are_over_the_baseline_of_the_same_shape():
    columns = dict.fromkeys(WORKLOAD_COLUMNS)
    base = dict(columns, device="bow", n_kv_heads=8, seq_len=1, error=None, does_not_fit=None)
    made = [
        {**base, "kernel": "dense-streaming", "batch": 1, "seconds_per_query": 6.0},
        {**base, "kernel": "dense-streaming", "batch": 2, "seconds_per_query": 10.0},
        {**base, "kernel": "dense-sram", "batch": 2, "seconds_per_query": 1.0},
        {**base, "kernel": "sparq-streaming", "batch": 1, "rank": 4, "seconds_per_query": 2.0},
        {**base, "kernel": "sparq-streaming", "batch": 2, "rank": 4, "seconds_per_query": 2.0},
        {**base, "kernel": "sparq-streaming", "batch": 2, "index_bits": 4, "seconds_per_query": 1.0},
        {**base, "kernel": "sparq-streaming", "batch": 4, "rank": 4, "seconds_per_query": 2.0},
        {**base, "kernel": "sparq-streaming", "batch": 2, "n_heads": 5, "seconds_per_query": 2.0},
        {**base, "kernel": "sparq-streaming", "batch": 2, "error": "x", "seconds_per_query": 2.0},
        {**base, "kernel": "dense-streaming", "batch": 4, "error": "x", "seconds_per_query": 2.0},
    ]
    for row in made:
        row["seconds_low"], row["seconds_high"] = row["seconds_per_query"] / 2, row["seconds_per_query"] + 2.0
    found = sweep_tables.speedups(made)
    assert [r["speedup_vs_best_dense"] for r in found] == [3.0, 0.5, 1.0, None, None]
    assert [r["speedup_low"] for r in found] == [2.0, 0.75, 1.0, None, None]
    assert [r["speedup_high"] for r in found] == [3.0, 0.5, 1.0, None, None]
    assert [r["speedup_vs_dense_streaming"] for r in found] == [*(3.0, 5.0, 10.0), *(None, None)]


def cell(row, dense):
    """Time (with work on chip low and high), speed-up over the best dense plan (over the baseline)."""
    names = ("seconds_per_query", "seconds_low", "seconds_high")
    likely, low, high = (f"{row[seconds] * 1e3:.3g}" for seconds in names)
    times = [of["seconds_per_query"] for of in dense if of["seconds_per_query"]]
    best, streaming = (f"{of / row['seconds_per_query']:.3g}x" for of in (min(times), times[-1]))
    return f"{likely} ({low}-{high}) ms, {best} ({streaming})"


@pytest.mark.slow
def test_the_table_of_speedups_is_of_one_setting(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep_tables, "headline_table", lambda bits: "")  # it plans what is not in the file
    out = tmp_path / "sweep.jsonl"
    words = "--S 256 --B 1 --kv-heads 8 --r 32 16 --k 128 64"
    assert sweep.main(["--json", str(out), *words.split()]) == 0
    assert "[16 8 4 2]" in sweep.command_line().parser.format_help()
    made = rows(out)
    others = [dict(n_local=4), dict(mean_value=False)]
    sparq, *fewer = (r for r in made if r["kernel"] == DEFAULT.name and (r["rank"], r["top_k"]) == (32, 128))
    with open(out, "a") as file:
        file.writelines(json.dumps({**sparq, **o, "seconds_per_query": 1.0}) + "\n" for o in others)
    capsys.readouterr()
    assert sweep.main(["--json", str(out), "--summary"]) == 0
    text = capsys.readouterr().out
    dense = [r for name in (DENSE_SRAM.name, BASELINE.name) for r in made if r["kernel"] == name]
    assert len(dense) == 2
    assert f"| 256 | {cell(sparq, dense)} |" in text
    assert "| sparq-streaming, 8 KV heads | 6 | 6 |" in text
    assert {row["index_bits"] for row in fewer} == {8, 4, 2}
    for row in fewer:
        heading = f"a key index of {row['index_bits']} bits; in brackets"
        table = text.partition(heading)[2]
        assert f"| 256 | {cell(row, dense)} |" in table
        assert f"| sparq-streaming int{row['index_bits']}, 8 KV heads | 1 | 1 |" in text
    for label, row_bits in (("sparq-tiered int4", 16), ("sparq-tiered int4, rows int8", 8)):
        (row,) = (
            r for r in made if (r["kernel"], r["index_bits"], r["row_bits"]) == (TIERED.name, 4, row_bits)
        )
        assert f"| 256 | {cell(row, dense)} |" in text.partition(f"The same of {label}: the first query")[2]
        assert f"| {label}, 8 KV heads | 1 | 1 |" in text


def test_usage_errors(tmp_path, capsys):
    out = str(tmp_path / "x")
    for words, message in (
        (["--summary"], "--json must name a file with results, got None"),
        (["--json", out, "--write"], f"--json must name a file with results, got {out}"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--emulate", "-1"], "--emulate must be at least 0, got -1.0"),
        (["--emulate", "nan"], "--emulate must be at least 0, got nan"),
    ):
        with pytest.raises(SystemExit) as stop:
            sweep.main(words)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_published_tables_are_those_of_the_committed_rows():
    """The rows in the repository, and plans made now, give the block of the document."""
    committed = sweep.DOCUMENT.parents[1] / "bench" / "results" / "sweep.jsonl.gz"
    lines = gzip.decompress(committed.read_bytes()).decode().splitlines()
    found = sweep.latest([json.loads(line) for line in lines])
    assert len(found) == len(grid())
    document = sweep.DOCUMENT.read_text()
    block = document.split("<!-- begin plans:")[1].split("-->", 1)[1].split("<!-- end plans")[0]
    assert sweep.summary(found.values()).strip() == block.strip()
    key, row = next((k, r) for k, r in found.items() if r["kernel"] == DEFAULT.name and r["index_bits"] == 4)
    found[key] = dict(row, seconds_per_query=2 * row["seconds_per_query"])
    assert sweep.summary(found.values()).strip() != block.strip()
