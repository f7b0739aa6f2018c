# SPDX-License-Identifier: Apache-2.0
"""bench/hardware_day.py, from end to end on the emulator: what is recorded, what goes on, what is packed.
What is put in to go wrong is in test_hardware_day_faults.py."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from pathlib import Path

import calibrate
import hardware_day
import ipu_sparq
import numpy as np
import pytest
from day import bits, complete, environment, fit, pack, page, programs, records, rules, vertices
from day.items import Context, measure
from emulated import _core as core

from sparq_ipu import plan
from sparq_ipu.planning.device_model import device_model

pytestmark = pytest.mark.slow  # a day takes seconds on the emulator; test_hardware_day_faults.py is quick

#: what a test's own IPU has that a Bow does not
OTHER = {
    "sync_cycles": 140,
    "exchange_fixed_cycles": 220,
    "compute_set_fixed_cycles": 400,
    "exchange_bytes_per_cycle": 3.0,
    "streaming_bytes_per_second": 6.0e9,
    "packet_overhead_bytes": 60.0,
    "remote_copy_seconds": 4e-6,
    "shared_row_penalty": 0.2,
    "host_stream_bytes_per_second": 9e9,
    "link_bytes_per_second": 2e10,
}
#: what few probes of a quick day tell, in whole cycles
VAGUE = {"exchange_piece_cycles", "link_hop_seconds"}


def day(out: Path, *words: str) -> int:
    return hardware_day.main(["--out", str(out), "--quick", "--device", "emulator", *words])


@pytest.fixture(scope="module")
def other_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an IPU with other parameters."""
    folder = tmp_path_factory.mktemp("day")
    (folder / "other.json").write_text(json.dumps(OTHER))
    out = folder / "day.tar.gz"
    assert day(out, "--parts", "rules", "--as-model", str(folder / "other.json")) == 0
    return out


def test_a_day_has_a_record_for_everything_and_says_that_nothing_was_measured(other_day: Path) -> None:
    found = [r for r in pack.records_of(other_day) if r["event"] == "result"]
    names = [rules.name_of(spec) for spec in rules.specs(quick=True)]
    assert [r["name"] for r in found] == names and len(names) == len(set(names)) > 20
    assert {(r["device"], r["source"]) for r in found} == {("emulator", "the emulator as the IPU, modelled")}
    assert not any(r["error"] for r in found)
    with tarfile.open(other_day) as archive:
        text = archive.extractfile("day/page.md").read().decode()  # type: ignore[union-attr]
        members = {m.name for m in archive.getmembers()}
        owners = {(m.uname, m.uid, m.mtime) for m in archive.getmembers()}
    assert {"day/records.jsonl", "day/log_rules.txt"} <= members
    assert owners == {("", 0, 0)} and f"day/{records.RESERVE}" not in members
    assert "Nothing was measured" in text and "sync_cycles" in text
    for name in names:
        assert f"| {name} |" in text


def test_the_model_of_another_ipu_is_found_again(other_day: Path, tmp_path: Path) -> None:
    """Of each parameter that was changed, within a half percent; the others stay."""
    shipped = device_model().parameters()
    fitted = fit.fit(pack.records_of(other_day), shipped)
    for name, value in fitted.after.items():
        off = 0.1 if name in VAGUE else 5e-3
        assert value == pytest.approx(OTHER.get(name, shipped[name]), rel=off), name
    assert "link_hop_seconds" not in OTHER
    wrong = {name for name, *_, told in fit.parameter_rows(fitted) if "wrong" in told}
    assert wrong - VAGUE == set(OTHER)
    assert all("fits" in row[-1] for row in fit.kind_rows(fitted))
    assert max(found["before"][1] for found in fitted.kinds.values()) > 0.2  # negative control


def test_calibrate_writes_a_model_that_a_plan_takes(
    other_day: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "fitted.json"
    assert calibrate.main(["--day", str(other_day), "--model", str(model)]) == 0
    before = device_model().sync_cycles
    assert f"| sync_cycles | {before} | 140 | {100 * (140 / before - 1):+.1f} % " in capsys.readouterr().out
    shape = dict(n_heads=4, head_dim=64, seq_len=1000)
    slow, usual = (plan(**shape, device=device) for device in (str(model), "bow"))  # type: ignore[arg-type]
    assert slow.seconds_per_query > 1.1 * usual.seconds_per_query
    assert device_model(str(model)).name == "fitted"
    for text in ("{}", "[", '{"name": "x"}'):
        model.write_text(text)
        with pytest.raises(ValueError, match=r"^device_model: name must be a file of a device model, got "):
            device_model(str(model))


def test_a_rule_with_another_form_is_told(other_day: Path) -> None:
    """Reads that are slow where they are either many or long, but not both, are no matter of constants."""
    found = pack.records_of(other_day)
    for record in found:
        sizes = record.get("spec", {}).get("sizes", {})
        if (sizes.get("rows"), sizes.get("row_bytes")) in ((8192, 144), (256, 1024)):
            record["seconds"] *= 2
    told = {row[0]: row[-1] for row in fit.kind_rows(fit.fit(found, device_model().parameters()))}
    assert told["remote_read"] == "its form is wrong" and told["exchange"] == "fits"


def test_what_is_recorded_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "day.tar.gz"
    assert day(out, "--parts", "rules") == 0
    file = tmp_path / "day.run" / records.FILE
    lines = file.read_text().splitlines(keepends=True)
    names = [json.loads(line)["name"] for line in lines if '"result"' in line]
    results = [line for line in lines if '"result"' in line]
    cut = "".join(line for line in lines if line not in (results[1], results[3]))
    file.write_text(cut + results[1][:50])  # two are lost, of one of them the beginning is there
    assert day(out, "--parts", "rules") == 0
    found = [r for r in pack.records_of(out) if r["event"] == "result"]
    assert sorted(r["name"] for r in found) == sorted(names)  # type: ignore[type-var]
    assert [r["name"] for r in found[-2:]] == [names[1], names[3]]
    assert sum(r["event"] == "run" for r in pack.records_of(out)) == 2


def test_another_kind_of_day_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "day.tar.gz"
    run = records.Run(tmp_path / "day.run", hardware_day.ROOT)
    run.add("run", device="ipu", quick=True, as_model={})
    for words, message in (
        ([], "--out must be new or of the same kind of day, got "),
        (["--limits", "0"], "--limits must be above 0, got 0"),
        (["--as-model", str(tmp_path / "none")], "--as-model must be a JSON file of parameters, got "),
    ):
        with pytest.raises(SystemExit) as end:
            day(out, *words)
        assert end.value.code == 2 and message in capsys.readouterr().err
    for words, message in (
        (["--out", "x"], "--out must be a file that ends in .tar.gz, got x"),
        (
            ["--out", str(tmp_path / "y.tar.gz"), "--pack"],
            "--pack must be given for a day that has begun, got ",
        ),
    ):
        with pytest.raises(SystemExit):
            hardware_day.main(words)
        assert message in capsys.readouterr().err


def test_the_list_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert hardware_day.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(hardware_day.BY_NAME)


def test_no_name_of_a_machine_is_in_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(records.socket, "gethostname", lambda: "pod17")
    run = records.Run(tmp_path, Path("/home/somebody/src/sparq"))
    text = "at pod17: /home/somebody/src/sparq/a.cpp and /home/somebody/b, pod170"
    run.add("note", part="", text=text)
    assert run.notes()[0]["text"] == "at <host>: <checkout>/a.cpp and <home>/b, pod170"
    told = environment.about_device.__doc__
    assert told and not environment.PRIVATE.search("IPU version: ipu2")
    for line in ("Serial number: 1234", "Host IP: 10.1.2.3", "hostname: pod17"):
        assert environment.PRIVATE.search(line)


def test_a_probe_counts_what_it_says(tmp_path: Path) -> None:
    """Twice as often takes twice as long, and the device's counter agrees with what the emulator models."""
    for kind, sizes, n_ipus in rules.specs(quick=True):
        if "n" not in sizes or kind in ("repeat_while_true", "if"):
            continue
        seconds = []
        for n in (2, 4):
            probe = rules.probe_of((kind, {**sizes, "n": n}, n_ipus), "emulator")
            cycles, host = probe.run()
            seconds.append(rules.modelled_seconds(probe))
            assert cycles == pytest.approx(seconds[-1] * probe.clock_hz, abs=4, rel=1e-3) and host > 0
        assert seconds[1] == pytest.approx(2 * seconds[0], rel=1e-6), kind
    for arguments, message in (
        (("nil", {}), "probe: kind must be one of nothing, compute_set, .*, got nil"),
        (("sync", {"m": 1}), "probe: sizes of sync must be n, got m"),
        (("sync", {"n": 0}), "probe: n must be at least 1, got 0"),
        (("link", {"n": 1, "bytes": 4}), "probe: n_ipus must be at least 2 for link, got 1"),
        (
            ("exchange", {"n": 1, "bytes": 12, "pieces": 2, "senders": 1}),
            r"probe: bytes must be a multiple of 4 \* pieces=2, got 12",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            core.Probe(*arguments)


def test_a_ratio_is_of_what_was_measured() -> None:
    assert page.ratio({"seconds": 3.0, "modelled": 2.0}) == 1.5
    for record in ({"seconds": 3.0}, {"seconds": None, "modelled": 2.0}, {"seconds": 1.0, "modelled": 0.0}):
        assert page.ratio(dict(record)) is None


def test_the_emulator_says_that_it_is_one() -> None:
    assert Context("emulator", True).source != Context("ipu", True).source == "measured"


def without_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device "ipu" of a build against the SDK, played by the emulator."""
    for name in ("Probe", "VertexProbe"):
        kind = getattr(core, name)
        monkeypatch.setattr(
            core, name, lambda *a, kind=kind, device, **options: kind(*a, device="emulator", **options)
        )
    monkeypatch.setattr(core, "has_emulator", False)
    monkeypatch.setattr(core, "emulator_last_run", None)


def test_what_an_ipu_measures_is_modelled_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_ipu, out = Context("ipu", quick=True), tmp_path / "day.tar.gz"
    run = records.Run(tmp_path / "day.run", hardware_day.ROOT)
    run.add("run", device="ipu", quick=True, as_model={}, git="0", python="3")
    vertex, *others = [item.name for item in hardware_day.BY_NAME["vertices"].items(on_ipu)][:2]
    wanted = {"sync n=64", "exchange n=8 bytes=4096 pieces=1 senders=1", vertex, *others}
    with monkeypatch.context() as patch:
        without_the_emulator(patch)
        for name in ("rules", "vertices"):
            part = hardware_day.BY_NAME[name]
            chosen = [item for item in part.items(on_ipu) if item.name in wanted]
            only = dataclasses.replace(part, items=lambda _, chosen=chosen: chosen)
            assert measure(run, only, on_ipu) == 0
    found = run.results()
    assert {name for _, name in found} == wanted
    assert not any(r["error"] or r.get("modelled") or r["source"] != "measured" for r in found.values())
    pack.pack(run, out)
    assert "Measured on an IPU" in (run.path / "page.md").read_text()
    read = {r["name"]: r for r in pack.records_of(out) if r["event"] == "result"}
    for name, record in read.items():  # the counter of an emulated device is the model's
        assert page.ratio(record) == pytest.approx(1, rel=0.01), name
    assert read[vertex]["bit_exact"] is True
    changed = (run.path / records.FILE).read_text().replace(found["vertices", vertex]["bits"], "0" * 16)
    (run.path / records.FILE).write_text(changed)
    pack.pack(records.Run(run.path, hardware_day.ROOT), out)
    assert hardware_day.main(["--read", str(out), "--out", str(tmp_path / "read.tar.gz")]) == 0
    read_again = (tmp_path / "read.run/page.md").read_text()
    assert f"| vertices | {vertex} | the result has other bits |" in read_again
    for words in (["--read", str(tmp_path / "none")], ["--read", str(run.path / records.FILE)]):
        with pytest.raises(SystemExit):
            hardware_day.main([*words, "--out", str(tmp_path / "z.tar.gz")])
        assert "--read" in capsys.readouterr().err


def test_a_program_that_was_measured_elsewhere_gets_its_plan() -> None:
    words = (
        "--S 200 --heads 4 --kv-heads 2 --head-dim 16 --r 8 --k 16 --kernel sparq-streaming --index-bits 8"
    )
    record = dict(event="result", part="programs", seconds=1e-5, spec={"words": words}, hit_rate=None)
    (made,) = complete.completed([record])
    shape = dict(n_heads=4, n_kv_heads=2, head_dim=16, seq_len=200, rank=8, top_k=16, index_bits=8)
    assert made["modelled"] == plan(**shape, kernel="sparq-streaming").seconds_per_query  # type: ignore[arg-type]
    (made,) = complete.completed([{**record, "spec": {"words": "--S 0"}}])
    assert made["not_modelled"].startswith("ipu_sparq: the command line must be good")


def test_vertices_are_told_that_grow_faster_than_their_estimate() -> None:
    """By what a size adds: what a compute set takes around a vertex says nothing of it."""
    made = []
    for name, factor in (("GroupKeys", 2.0), ("KeyHistogram", 1.1)):
        record = vertices.measured(name, Context("emulator", quick=False))
        for run in record["doubled"].values():
            run["seconds"] = record["seconds"] + factor * (run["seconds"] - record["seconds"])
        made.append(dict(event="result", part="vertices", name=name, error=None, **record))
    assert [row[:2] for row in fit.growth_rows(made)] == [("GroupKeys", "2.00"), ("KeyHistogram", "1.10")]


def test_a_day_plays_every_file_but_those_that_a_device_refuses() -> None:
    context = Context("emulator", quick=False)
    played = {item.name.rpartition(" in ")[0] for item in bits.items(context)}
    others = [path for path in sorted(bits.FOLDER.glob("*.vec")) if path.stem not in played]
    # Rows of 8 bits and an index of some components are in three tiers alone, where indices have few bits.
    assert len(played) > 30 and {path.stem for path in others} == {"rows8_index16", "first_wide_index16"}


@pytest.mark.parametrize("quick", [False, True])
def test_every_program_of_a_day_is_a_good_command_line(quick: bool) -> None:
    """And a whole day has all of a quick one's kinds of items, and more."""
    words = [*programs.commands(quick), *programs.stacks(quick)]
    for command in words:
        ipu_sparq.parse(ipu_sparq.command_line(), command.split())
    for command in programs.steps(quick):
        ipu_sparq.parse(ipu_sparq.command_line(), [*command.split(), "--input", str(programs.TRACE)])
    assert len(words) == len(set(words)) and any("--hit-rate" in command for command in words)
    sizes = [spec[1] for spec in rules.specs(quick) if spec[0] == "remote_read"]
    rows = {s["rows"] for s in sizes}, {s["row_bytes"] for s in sizes if s["row_bytes"] <= 2048}
    if not quick:
        assert rows == ({64, 256, 1024, 2048, 8192}, {144, 288, 512, 544, 1024, 2048})
        assert {s["tiles"] for s in sizes} == {0, 64}
        assert {spec[2] for spec in rules.specs(quick) if spec[0] == "remote_read"} == {1, 4}


def test_a_stack_that_did_not_run_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row has the plan's, which is no measurement."""
    monkeypatch.setattr(ipu_sparq.pod, "why_not_run", lambda plan: "it is too large")
    words = programs.stacks(quick=True)[0]
    with pytest.raises(ValueError, match=r"^ipu_sparq: it must run on this machine, got .* without a time$"):
        programs.measured(words, Context("emulator", quick=True))


def test_what_a_device_does_at_random_is_told(other_day: Path) -> None:
    """Times a percent off, each another way: parameters are as good as their errors say. And where
    four IPUs are in one another's way it is told, and not fitted."""
    found, rng = pack.records_of(other_day), np.random.default_rng(0)
    for record in found:
        if record["event"] == "result":
            record["seconds"] *= 1 + 0.01 * rng.standard_normal()
            record["seconds"] *= 3 if record["spec"]["n_ipus"] == 4 else 1
    fitted = fit.fit(found, device_model().parameters())
    for name in (
        "sync_cycles",
        "streaming_bytes_per_second",
        "exchange_bytes_per_cycle",
        "link_bytes_per_second",
    ):
        off = abs(np.log(fitted.after[name] / OTHER[name]))
        assert off < max(4 * fitted.errors[name], 0.01) and 0.001 < fitted.errors[name] < 0.05, name
    told = {row[0]: row[-1] for row in fit.kind_rows(fitted)}
    assert told["remote_read of 4 IPUs"] == "its form is wrong" and told["remote_read"] == "fits"
    assert fitted.without == []
