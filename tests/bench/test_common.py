# SPDX-License-Identifier: Apache-2.0
"""What benches share: flags and the workload they describe, rows and their file, tables. And that all benches
that write rows agree."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lib import common

from sparq_ipu.kernels import BASELINE, DEFAULT, KERNELS, TIERED, Kernel
from sparq_ipu.transformers import RECOMMENDED
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings

BENCH = common.ROOT / "bench"
#: benches that write rows, the extension module each needs, and what makes its run a quick one
SIZE = "--S 100 --B 1 --heads 4 --kv-heads 2 --head-dim 16 --r 4 --k 8 --local 2"
BENCHES = {
    "cpu_sparq": ("sparq_ipu._cpu", "--reps 1 --warmup 0 --kernels ours --threads 1"),
    "ipu_sparq": ("sparq_ipu._core", "--device emulator --tiles 8"),
    "sweep": ("sparq_ipu._core", ""),
}


@pytest.fixture(params=list(BENCHES))
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A bench that writes rows; with `size`, the words of a small run."""
    needs, words = BENCHES[request.param]
    extension = pytest.importorskip(needs, reason=f"{needs} is not built")
    if not getattr(extension, "has_emulator", True):
        pytest.skip("built without the emulator")
    module = importlib.import_module(request.param)
    monkeypatch.setattr(module, "size", [*SIZE.split(), *words.split()], raising=False)
    if request.param == "cpu_sparq":
        monkeypatch.setattr(module, "STREAM_BYTES", 1 << 20)
    return module


def command_line(**options: Any) -> common.CommandLine:
    cli = common.CommandLine("bench/some.py", "What it does.", "Notes.", **options)
    cli.add_kernel()
    cli.add_run("inputs", reps=3, warmup=1)
    return cli


def refused(cli: common.CommandLine, words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.workloads(cli.parse(words.split()), takes_settings=True)
    assert stop.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# ---- flags


def test_flags_describe_a_workload() -> None:
    cli = command_line()
    words = "--S 256 --B 2 --heads 8 --kv-heads 4 --head-dim 64 --rank 16 --top-k 32 --n-local 3"
    words += " --no-mean-value --index-bits 4 --row-bits 8"
    a = cli.parse([*words.split(), "--seed", "5", "--reps", "7"])
    expected = common.Workload(CacheSpec(2, 4, 64, 256, 4, 8), 8, SparqSettings(16, 32, 3, False))
    assert cli.workloads(a, takes_settings=True) == [expected]
    assert (a.seed, a.reps, a.warmup, a.json) == (5, 7, 1, None)
    assert expected.flags() == words.split()
    assert str(expected) == (
        "batch 2, 8 heads, 4 KV heads, head_dim 64, seq_len 256, index_bits 4, row_bits 8, rank 16, "
        "top_k 32, n_local 3, without the mean value"
    )
    dense = cli.workloads(a, takes_settings=False)[0]
    assert dense == common.Workload(CacheSpec(2, 4, 64, 256), 8, None) == expected.on(BASELINE)
    assert expected.on(TIERED) == expected
    spec = dataclasses.replace(expected.spec, row_bits=16)  # rows of 8 bits are in three tiers alone
    assert expected.on(DEFAULT) == dataclasses.replace(expected, spec=spec)
    plain = expected.with_plain_cache()
    assert plain == common.Workload(CacheSpec(2, 4, 64, 256), 8, expected.settings) != expected
    assert "index_bits" not in str(plain) and plain.columns()["index_bits"] == 16
    assert dense.flags() == words.split()[:10]


def test_defaults_are_the_recommended_settings() -> None:
    """Of a smaller head the rank is half; another top_k has a quarter of local rows."""
    cli = command_line()
    spec = CacheSpec(1, 32, 128, 16384, 2)
    for words, settings in (
        ("", SparqSettings(RECOMMENDED["rank"], RECOMMENDED["top_k"], RECOMMENDED["n_local"])),
        ("--k 128", SparqSettings(32, 128, 32)),
        ("--k 128 --local 5", SparqSettings(32, 128, 5)),
        ("--rank 16", SparqSettings(16, 256, 64)),
    ):
        made = cli.workloads(cli.parse(words.split()), takes_settings=True)
        assert made == [common.Workload(spec, 32, settings)], words
    (small,) = cli.workloads(cli.parse(["--head-dim", "16"]), takes_settings=True)
    assert small.settings == SparqSettings(8, 256, 64)


def test_lists_give_every_combination() -> None:
    cli = command_line(many=common.ARGUMENTS, defaults={"batch": [1, 2]})
    made = cli.workloads(cli.parse("--S 64 128 --r 8 16 --k 4".split()), takes_settings=True)
    found = [(w.spec.batch, w.seq_len, w.settings.rank) for w in made if w.settings]
    assert sorted(found) == [(b, s, r) for b in (1, 2) for s in (64, 128) for r in (8, 16)]


def test_short_forms_are_the_same_flags() -> None:
    cli = command_line()
    short, long = (
        cli.workloads(cli.parse(words.split()), takes_settings=True)
        for words in ("--r 5 --k 7 --local 2", "--rank 5 --top-k 7 --n-local 2")
    )
    assert short == long


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--r 0", "--rank must be in [1, --head-dim=128], got 0"),
        ("--rank 129", "--rank must be in [1, --head-dim=128], got 129"),
        ("--k 0", "--top-k must be in [1, 16777216], got 0"),
        ("--k 4 --local 5", "--n-local must be in [0, --top-k=4], got 5"),
        ("--S 0", "--S must be in [1, 16777216], got 0"),
        ("--B -1", "--B must be in [1, 16777216], got -1"),
        ("--head-dim 12", "--head-dim must be a multiple of 8, got 12"),
        ("--heads 0", "--heads must be in [1, 16777216], got 0"),
        ("--kv-heads 0", "--kv-heads must be in [1, 16777216], got 0"),
        ("--index-bits 5", "--index-bits must be one of 16, 8, 4, 2, got 5"),
        ("--kv-heads 3", "--heads must be a multiple of --kv-heads=3, got 32"),
        ("--B 9999999 --kv-heads 2", "--B * --kv-heads must be at most 16777216, got 19999998"),
        ("--seed -1", "--seed must be at least 0, got -1"),
        ("--reps 0", "--reps must be at least 1, got 0"),
        ("--warmup -1", "--warmup must be at least 0, got -1"),
    ],
)
def test_messages_name_flags(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(command_line(), words, capsys) == f"some.py: error: {message}"


def test_every_argument_of_the_library_has_a_flag() -> None:
    described = [f.name for kind in (CacheSpec, SparqSettings) for f in dataclasses.fields(kind)]
    # rows are older than it: those without it have all components
    assert "index_components" not in common.WORKLOAD_COLUMNS and "index_bits" in common.WORKLOAD_COLUMNS
    assert sorted(common.ARGUMENTS) == sorted([*described, "n_heads"])


def test_kernels_are_those_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Kernel("new", "streaming", "sparq", "a new one")
    monkeypatch.setitem(KERNELS, "new", new)
    cli = command_line()
    assert list(cli.chosen(cli.parse([]))) == [n for n in KERNELS if not n.startswith("window")]
    assert cli.chosen(cli.parse(["--kernel", "new"])) == {"new": new}
    assert "new: a new one" in " ".join(cli.parser.format_help().split())
    assert {name: k.op for name, k in common.attention_functions().items()} == {
        "dense": "dense_attention",
        "sparq": "sparq_attention",
    }


def test_no_bench_names_a_kernel() -> None:
    for path in BENCH.glob("*.py"):
        text = path.read_text()
        assert not [name for name in KERNELS if name in text], path.name


# ---- rows and their file


def new_row(**changes: Any) -> common.Row:
    workload = common.Workload(CacheSpec(1, 2, 8, 100), 2, SparqSettings(4, 8))
    row = common.new_row(
        "some", "dense", "cpu", workload, time_source="measured", seed=0, command="python bench/some.py"
    )
    return {**row, **changes}


def test_timing() -> None:
    assert common.timing([4.0, 1.0, 2.0]) == {
        "seconds_per_query": 2.0,
        "seconds_min": 1.0,
        "seconds_max": 4.0,
        "seconds_mad": 1.0,
        "seconds": [4.0, 1.0, 2.0],
        "n_runs": 3,
    }
    assert set(common.timing([1.0])) == set(common.NO_TIMES) <= set(new_row())


def test_failures_say_what_does_not_fit() -> None:
    assert common.failure(DoesNotFit("plan: too much", "tile memory", 7, 5)) == {
        "error": "plan: too much",
        "does_not_fit": {"resource": "tile memory", "need": 7, "room": 5},
    }
    assert common.failure(ValueError("plan: x")) == {"error": "plan: x", "does_not_fit": None}
    assert common.failure(KeyError("tile memory"))["error"] == "KeyError: 'tile memory'"


def test_rows_are_appended_and_read(tmp_path: Path) -> None:
    file = common.JsonLines(tmp_path / "rows.jsonl", "some")
    file.check()
    assert file.read() == [] and not file.path.exists()  # looking leaves nothing
    file.append([new_row(seed=1), new_row(seed=2)])
    file.append([new_row(seed=3)])
    file.check()
    assert [row["seed"] for row in file.read()] == [1, 2, 3]


@pytest.mark.parametrize("kept", [0, 1, 2, 10, 40, -2, -1])
def test_a_row_that_was_cut_off_is_taken_away(tmp_path: Path, kept: int) -> None:
    file = common.JsonLines(tmp_path / "rows.jsonl", "some")
    file.append([new_row(seed=1), new_row(seed=2)])
    first, second = file.path.read_text().splitlines(keepends=True)
    file.path.write_text(first + second[:kept])
    whole = kept == -1  # only the line end is missing
    file.check()
    assert [row["seed"] for row in file.read()] == ([1, 2] if whole else [1])
    file.append([new_row(seed=3)])
    assert [json.loads(line)["seed"] for line in file.path.read_text().splitlines()] == (
        [1, 2, 3] if whole else [1, 3]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "line 1 is not JSON"),
        ("hello", "line 1 is not JSON"),
        (json.dumps(new_row()) + "\n\n", "line 2 is not JSON"),
        ('{"schema": 5, "bench": "some"\n', "line 1 is not JSON"),  # cut off in the middle of the file
        ("[1]\n", "line 1 has schema None, bench None"),
        (json.dumps(new_row(bench="sweep")), "line 1 has schema 5, bench 'sweep'"),
        (json.dumps(new_row(schema=2)) + "\n", "line 1 has schema 2, bench 'some'"),
        ('{"kernel": "dense", "repro": "python bench/some.py"}\n', "line 1 has schema None, bench None"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    error = refused(command_line(), f"--json {path}", capsys)
    assert (
        f"--json must be a file that can be written, new or with rows of some.py (schema 5), got '{path}'"
        in (error)
    )
    assert message in error
    assert path.read_text() == text


def test_paths_that_can_not_be_written_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in (
        (tmp_path / "none" / "x", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        assert reason in refused(command_line(), f"--json {path}", capsys)
        with pytest.raises(SystemExit):
            common.check_output(argparse.ArgumentParser(), "--plot", path)
        assert f"--plot must be a file that can be written, got '{path}': {reason}" in capsys.readouterr().err


# ---- for people


def test_tables() -> None:
    columns = (
        common.Column("name", -6, lambda r: r["kernel"]),
        common.Column("s", 5, lambda r: common.number(r["seconds_per_query"], ".1f", 10, "x")),
    )
    rows = [new_row(seconds_per_query=0.25), new_row(kernel="b", error="too large")]
    assert common.text_table(columns, rows).splitlines() == [
        "name       s",
        "------------",
        "dense   2.5x",
        "b          -",
        "  error: too large",
    ]


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = common.Progress()
    progress.step("one")
    progress.step("two")
    progress.line("done")
    progress.count(1, 2)
    progress.count(2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("one ...\rone 0.") and "two ...\rtwo 0." in err and " s\ndone\n" in err
    assert "\r1/2, 0 s, about 0 s left " in err and err.endswith("\r2/2, 0 s, about 0 s left \n")


# ---- all benches agree


def run(bench: ModuleType, words: list[str], path: Path) -> list[common.Row]:
    assert bench.main([*words, "--json", str(path)]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_have_the_same_columns(bench: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = run(bench, bench.size, path)
    for row in rows:
        assert list(row)[: len(new_row())] == list(new_row())
        assert (row["schema"], row["bench"]) == (common.SCHEMA, bench.__name__)
        assert (row["batch"], row["n_heads"], row["n_kv_heads"], row["seq_len"]) == (1, 4, 2, 100)
        assert row["seconds_per_query"] > 0 and row["error"] is row["does_not_fit"] is None
        assert row["time_source"] in ("measured", "modelled")
        assert row["time_source"] == "modelled" or row["n_runs"] == 1
    settings = [tuple(row[name] for name in ("rank", "top_k", "n_local", "mean_value")) for row in rows]
    assert set(settings) == {(None, None, None, None), (4, 8, 2, True)}
    assert all(row["index_bits"] in ((16, 8, 4, 2) if row["rank"] else (16,)) for row in rows)
    assert len(run(bench, bench.size, path)) in (2 * len(rows), len(rows))  # appended; a sweep is done


def test_the_command_of_a_row_repeats_it(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    row = run(bench, bench.size, Path("rows.jsonl"))[-1]
    words = shlex.split(row["command"])
    assert words[:2] == ["python", f"bench/{bench.__name__}.py"]
    capsys.readouterr()
    assert bench.main(words[2:]) == 0
    if "--json" in words:
        again = json.loads(Path("rows.jsonl").read_text().splitlines()[-1])
    else:
        (again,) = map(json.loads, capsys.readouterr().out.splitlines())  # that row, and no other
    assert again["command"] == row["command"]
    assert (again["time_source"] == "measured") or again == row


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--r 17", "--rank must be in [1, --head-dim=16], got 17"),
        ("--local 9", "--n-local must be in [0, --top-k=8], got 9"),
        ("--heads 5", "--heads must be a multiple of --kv-heads=2, got 5"),
        ("--json none/rows.jsonl", "--json must be a file that can be written"),
        ("--index-bits 12", "--index-bits must be one of 16, 8, 4, 2, got 12"),
        ("--json other.jsonl", "line 1 has schema 5, bench 'some'"),
    ],
)
def test_bad_usage_is_refused_before_any_work(
    bench: ModuleType,
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.jsonl").write_text(json.dumps(new_row()) + "\n")

    def no_work(*_: Any, **__: Any) -> None:
        raise AssertionError("work was begun")

    for name in ("random_inputs", "work", "parts"):
        monkeypatch.setattr(bench, name, no_work, raising=False)
    with pytest.raises(SystemExit) as stop:
        bench.main([*bench.size, *words.split()])
    assert stop.value.code == 2 and message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["other.jsonl"]


def test_help_names_every_shared_flag(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    has_not = {  # only an index on chip has some components
        "cpu_sparq": ["--index-components"],
        "sweep": ["--index-components"],
    }.get(bench.__name__, [])
    for flag in [*(f.flag for f in common.FLAGS), "--seed", "--json"]:
        assert (f"  {flag}" in text) is (flag not in has_not)
    assert "Exit status: 0 ok, 1 " in text


@pytest.mark.parametrize(("folder", "least"), [(BENCH, 9), (BENCH.parent / "study", 5)])
def test_the_readme_lists_the_programs(folder: Path, least: int) -> None:
    """Of the files of a folder, those that are run and no other."""
    listed = re.findall(r"^\| `(\w+\.py)` \|", (folder / "README.md").read_text(), re.MULTILINE)
    programs = [path.name for path in folder.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    assert sorted(listed) == sorted(programs) and len(programs) >= least
