# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on a day with an IPU, put in one by one: what was measured before and after is there, and
the page names it. docs/hardware_day.md has the list.

The parts here are of this file; their process is this file too, run as a program.
"""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from day import conduct, records  # noqa: E402
from day.items import Context, Item, Part, measure, process  # noqa: E402

CONTEXT = Context("emulator", quick=True)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which take longer than all else here."""
    from day import page

    monkeypatch.setattr(page, "draw", lambda run: [])


def good(seconds: float = 2e-6) -> dict[str, Any]:
    return dict(seconds=seconds, modelled=1e-6, bit_exact=True)


def memory_is_short() -> dict[str, Any]:
    """As in a compile for which the machine has too little memory: it can have no more."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return dict(filled=len(b"x" * (4 << 30)))


def killed() -> dict[str, Any]:
    """As the system ends a process when memory is out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def refused_buffer() -> dict[str, Any]:
    """A cache of 4 GB, whose remote buffers the host can not give."""
    from sparq_ipu import _core
    from sparq_ipu.kernels import Attention
    from sparq_reference import CacheSpec

    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    _core.Session(CacheSpec(1, 32, 128, 1 << 18), 32, attention=[Attention("dense-streaming", None)])
    return {}


def engine_throws() -> dict[str, Any]:
    """In the middle: after it has run once."""
    from sparq_ipu import _core

    probe = _core.Probe("sync", dict(n=1))
    probe.run()
    raise RuntimeError("poplar::application_runtime_error: tile 17 has stopped")


def hangs() -> dict[str, Any]:
    """With a process of its own, which is to end with it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["DAY_CHILD"]).write_text(str(child.pid))
    while True:  # and no Python code that a handler could run in
        time.sleep(600)


def hangs_long() -> dict[str, Any]:
    """Alone."""
    Path(os.environ["DAY_CHILD"]).write_text(str(os.getpid()))
    time.sleep(60)
    return {}


def disk_is_full() -> dict[str, Any]:
    """From here on no file becomes longer than the records are."""
    size = int(os.environ["DAY_BYTES"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    return good()


FAULTS: dict[str, Callable[[], dict[str, Any]]] = {
    f.__name__: f
    for f in (memory_is_short, killed, refused_buffer, engine_throws, hangs, hangs_long, disk_is_full)
}


def part_of(name: str) -> Part:
    """Three items, of which the second is the fault."""

    def items(context: Context) -> list[Item]:
        return [
            Item("before", good),
            Item(name, FAULTS[name], limit=2 if name == "hangs" else 60),
            Item("after", functools.partial(good, 3e-6)),
        ]

    return Part("rules", f"with {name}", items, 60, 60)


def command(folder: Path, part: Part) -> list[str]:
    return [sys.executable, __file__, str(folder), part.what.partition(" ")[2]]


def day_with(folder: Path, *faults: str, limit: float = 1) -> tuple[records.Run, bool]:
    run = records.Run(folder / "day.run", ROOT)
    run.keep_room()
    if run.first is None:
        run.add("run", device="emulator", quick=True, as_model={}, git="0", python="3")
    parts = [part_of(name) for name in faults]
    whole = conduct.conduct(run, parts, functools.partial(command, run.path), CONTEXT, limit)
    return run, whole


def wrong_of(run: records.Run) -> str:
    """What the page says went wrong."""
    from day import page  # not needed by the process of a part

    page.write(run)
    text = (run.path / "page.md").read_text()
    return text.partition("## What went wrong")[2].partition("\n## ")[0]


def check_others(run: records.Run, fault: str) -> dict[str, Any]:
    """What was measured before and after is there; returns the record of the fault."""
    from day import pack

    found = run.results("rules")
    assert found["rules", "before"]["seconds"] == 2e-6 and found["rules", "after"]["seconds"] == 3e-6
    assert fault in wrong_of(run)
    pack.pack(run, run.path.with_suffix(".tar.gz"))
    assert len(pack.records_of(run.path.with_suffix(".tar.gz"))) == len(run.records)
    return found["rules", fault]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, error",
    [
        ("memory_is_short", "^MemoryError"),
        ("killed", r"was killed \(signal 9\)"),
        ("refused_buffer", r"^MemoryError: std::bad_alloc$"),
        ("engine_throws", r"^RuntimeError: poplar::application_runtime_error: tile 17 has stopped$"),
    ],
)
def test_an_item_fails(fault: str, error: str, tmp_path: Path) -> None:
    run, whole = day_with(tmp_path, fault)
    assert whole and re.search(error, check_others(run, fault)["error"])
    starts = [r for r in run.records if r["event"] == "start"]
    assert [r["name"] for r in starts] == ["before", fault, "after"]


def ended(pid: int) -> bool:
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DAY_CHILD", str(tmp_path / "child"))
    run, whole = day_with(tmp_path, "hangs")
    assert whole and "longer than its limit" in check_others(run, "hangs")["error"]
    assert ended(int((tmp_path / "child").read_text()))


@pytest.mark.slow
def test_a_part_has_its_time(tmp_path: Path, monkeypatch: Any) -> None:
    """The item that it was at is named, what is left did not run, and the page says so."""
    monkeypatch.setenv("DAY_CHILD", str(tmp_path / "child"))
    run, whole = day_with(tmp_path, "hangs_long", limit=0.1)
    assert whole and run.results()["rules", "hangs_long"]["error"].endswith("the time of its part was over")
    assert ("rules", "after") not in run.results() and "its time was over" in wrong_of(run)
    assert ended(int((tmp_path / "child").read_text()))


def test_the_disk_is_full(tmp_path: Path, monkeypatch: Any) -> None:
    """What was measured then goes into the room that was kept; the day goes on when there is room again."""
    run = records.Run(tmp_path / "day.run", ROOT)
    run.add("run", device="emulator", quick=True, as_model={}, git="0", python="3")
    monkeypatch.setenv("DAY_BYTES", "1")
    run, whole = day_with(tmp_path, "disk_is_full")
    assert not whole
    lines = run.file.read_bytes()
    assert lines.endswith(b"\n") and ("rules", "before") in run.results()
    assert not (run.path / records.RESERVE).exists()
    FAULTS["disk_is_full"] = good
    try:
        monkeypatch.setattr(conduct, "status_of", lambda *_: measure(run, part_of("disk_is_full"), CONTEXT))
        run, whole = day_with(tmp_path, "disk_is_full")
    finally:
        FAULTS["disk_is_full"] = disk_is_full
    assert whole and len(run.results()) == 3


def test_the_room_that_was_kept_takes_the_last_line(tmp_path: Path, monkeypatch: Any) -> None:
    run = records.Run(tmp_path, ROOT)
    run.keep_room()
    run.add("note", part="", text="one")
    write = records.Run._write

    def full(self: records.Run, line: bytes) -> None:
        if (tmp_path / records.RESERVE).exists():
            write(self, line[:10])  # as a disk does
            raise OSError(28, "No space left on device")
        write(self, line)

    monkeypatch.setattr(records.Run, "_write", full)
    for text, there in (("two", True), ("three", True)):
        try:
            run.add("note", part="", text=text)
        except records.DiskFull as error:
            assert "No space left on device" in str(error) and text == "two"
        assert (run.notes()[-1]["text"] == text) == there
    assert [r["text"] for r in records.read(run.file)] == ["one", "two", "three"]


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    """All at once, as when a machine goes down: what it was at is begun once more, and then given up."""
    run, _ = day_with(tmp_path, "engine_throws")
    lines = run.file.read_text().splitlines(keepends=True)
    cut = next(i for i, x in enumerate(lines) if json.loads(x).get("name") == "engine_throws") + 1
    for times, expected in (
        (1, "RuntimeError"),
        (2, "no result: the run ended 2 times while it was measured"),
    ):
        run.file.write_text("".join(lines[:cut] + [lines[cut - 1]] * (times - 1)) + '{"event": "res')
        again, whole = day_with(tmp_path, "engine_throws")
        assert whole and check_others(again, "engine_throws")["error"].startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_ended(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Not the process of its part either, which would write while the run is started again."""
    monkeypatch.setenv("DAY_CHILD", str(tmp_path / "child"))
    code = (
        f"import sys, signal; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import pathlib, test_hardware_day_faults as t\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"t.FAULTS and t.day_with(pathlib.Path({str(tmp_path)!r}), 'hangs_long')"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    for _ in range(300):
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break
        time.sleep(0.1)
    part = int((tmp_path / "child").read_text())
    assert Path(f"/proc/{part}").exists()
    driver.send_signal(number)
    driver.wait(30)
    assert ended(part)
    assert ("rules", "before") in records.Run(tmp_path / "day.run", ROOT).results()


def test_two_can_not_run_one_day(tmp_path: Path) -> None:
    first, second = (records.Run(tmp_path, ROOT) for _ in range(2))
    with first.locked():
        with pytest.raises(ValueError, match=r"^hardware_day: nobody else may run this day, got another in "):
            with second.locked():
                pass
    with second.locked():
        pass


def test_popc_refuses_a_flag(tmp_path: Path, monkeypatch: Any) -> None:
    from day import environment

    popc = tmp_path / "popc"
    popc.write_text(
        '#!/bin/sh\ncase "$*" in *-X-ffp*) ;; *-ffp*) echo "unknown flag -ffp" >&2; exit 1;; esac\n'
    )
    popc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = {item.name: item for item in environment.items(CONTEXT)}
    bare = found["popc -ffp-contract=off"].run()
    assert bare["error"] == "popc refuses -ffp-contract=off: unknown flag -ffp"
    assert "error" not in found["popc -X-ffp-contract=off"].run()
    assert found["codelets"].run()["flags"] == ["-X-ffp-contract=off"]
    popc.write_text("#!/bin/sh\necho no licence; exit 1\n")
    try:
        found["codelets"].run()
    except RuntimeError as error:
        assert "no licence" in str(error)
    else:
        raise AssertionError("codelets were compiled by nothing")


def test_a_part_that_can_not_begin_is_named(tmp_path: Path) -> None:
    run = records.Run(tmp_path / "day.run", ROOT)
    run.add("run", device="emulator", quick=True, as_model={}, git="0", python="3")
    words = [sys.executable, "-c", "raise ImportError('no module _core')"]
    assert conduct.conduct(run, [part_of("killed")], lambda part: words, CONTEXT)
    assert "ImportError: no module _core" in wrong_of(run)


if __name__ == "__main__":
    process(records.Run(Path(sys.argv[1]), ROOT), part_of(sys.argv[2]), CONTEXT)
