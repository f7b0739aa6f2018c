# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py --peers: rows of other programs, what a quiet machine is, and the table."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import decode
import decode_tables
import peers
from processor import Pace

A = argparse.Namespace(peers=[], kv=None, steps=2, rounds=2, threads=3, seed=5, S=[32, 64], rest=9)


def test_the_share_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 seconds of 2 processors 5 were busy, 4 of them ours."""
    busy, own = iter([(100.0, 200.0), (105.0, 208.0)]), iter([1.0, 5.0])
    monkeypatch.setattr(peers, "_busy", lambda: next(busy))
    monkeypatch.setattr(peers.time, "process_time", lambda: next(own))
    with peers.others() as seen:
        assert seen.share_of_all() == 0.0
    assert seen.share_of_all() == 1 / 8


def test_a_system_that_says_nothing_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_busy", lambda: (_ for _ in ()).throw(FileNotFoundError))
    with peers.others() as seen:
        pass
    assert seen.share_of_all() is None and seen.share(0.0, 1.0) is None and peers.noise(None, 0.0)


def test_looks_go_on_while_something_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    monkeypatch.setattr(peers, "_PAUSE", 0.001)
    seen = peers.Others()
    with seen.watching():
        while len(seen.samples) < 4:
            pass
    times = [sample[0] for sample in seen.samples]
    assert times == sorted(times) and threading.active_count() == before


def test_what_is_quiet() -> None:
    assert peers.noise(0.0, 0.0) is peers.noise(peers.QUIET_SHARE, peers.PAUSED_SHARE) is None
    rule = "the machine must be quiet: other programs may take 0.05 of its processors, got "
    assert peers.noise(0.125, 0.0) == f"{rule}0.12"
    assert peers.noise(None, 0.0) == f"{rule}what this system does not say"
    said = peers.noise(0.0, 0.125)
    assert said is not None and "its processors may stand still for 0.1 of the time, got 0.12; --rest" in said


def test_processors_that_work() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat")
    busy, total = peers._busy()
    assert 0 < busy < total


def test_a_process_times_every_token_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is read, the machine rests, and the steps come after that. The worst pace counts of two."""
    asked: list[Any] = []
    paces = [(9e9, 0.1), (8e9, 0.2), (2e9, 0.3), (3e9, 0.4)]

    def pace(n_threads: int) -> Any:
        assert n_threads == 3
        asked.append("pace")
        return Pace(*paces[asked.count("pace") - 1])

    def program(a: argparse.Namespace) -> Any:
        def run(tokens: list[int], n_new: int) -> list[float]:
            asked.append((len(tokens), n_new))
            first = 13.0 if n_new == 1 else 10.1
            return [10.0, first, *(first + 0.5 * (i + 1) for i in range(n_new - 1))]

        return run

    monkeypatch.setitem(peers._PROGRAMS, "llama.cpp", program)
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: f"{name} 1")
    monkeypatch.setattr(peers, "pace", pace)
    monkeypatch.setattr(peers.time, "sleep", lambda seconds: asked.append(f"rest {seconds}"))
    a = argparse.Namespace(program="llama.cpp", S=9, tokens=4, seed=0, threads=3, rest=7)
    seen = peers.measure(a)
    assert seen["first_token_seconds"] == 3.0 and seen["steps"] == pytest.approx([0.5] * 4)
    assert seen["version"] == "xllamacpp 1"
    assert asked == [peers.WARM_UP, "pace", (3, 1), "pace", "rest 7", "pace", (3, 5), "pace"]
    assert seen["first"][1] == 0.2 and (seen["memory_bytes_per_second"], seen["paused"]) == (2e9, 0.4)
    monkeypatch.setattr(peers, "pace", lambda n_threads: Pace(1e9, 0.0))
    asked.clear()
    a.rest = 0
    peers.measure(a)
    assert asked == [peers.WARM_UP, (3, 1), (3, 5)]
    monkeypatch.setitem(peers._PROGRAMS, "llama.cpp", lambda a: lambda tokens, n_new: [0.0, 1.0])
    with pytest.raises(RuntimeError, match=r"llama.cpp must say 5 tokens, got 1"):
        peers.measure(a)


def test_prompts_are_alike() -> None:
    assert peers.prompt_tokens(50, 3) == peers.prompt_tokens(60, 3)[:50] != peers.prompt_tokens(50, 4)


def rows(monkeypatch: pytest.MonkeyPatch, said: Any, status: int = 0, **changes: Any) -> list[Any]:
    """Of programs whose processes say this; None: nothing."""
    calls: list[list[str]] = []

    def run(command: list[str], prefix: str) -> Any:
        calls.append(command)
        out = "" if said is None else f"{json.dumps(said)}\n"
        return status, f"some noise\n{out}", ["first", "last words"]

    monkeypatch.setattr(peers, "_run", run)
    a = argparse.Namespace(**{**vars(A), **changes})
    made = peers.rows_of(a, Path("x.gguf"), 64, lambda name: {"method": name, "error": None}, decode._times)
    same = {"--S": "64", "--tokens": "4", "--threads": "3", "--seed": "5", "--rest": "9"}
    for call in calls:
        assert call[3] == "x.gguf" and {flag: call[call.index(flag) + 1] for flag in same} == same
    assert [call[call.index("--kv") + 1] for call in calls] == [row["kv_type"] for row in made]
    return made


SAID = {
    "first_token_seconds": 2.0,
    "steps": [0.1, 0.2, 0.3, 0.9],
    "version": "1",
    "others": 0.01,
    "paused": 0.02,
    "first": [0.01, 0.02],
}


def test_rows_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows(monkeypatch, SAID)
    kinds = [(row["method"], row["kv_type"]) for row in made]
    assert kinds == [(name, kv) for name, types in peers.KV_TYPES.items() for kv in types]
    assert all(row["error"] is None and row["seconds_per_step"] == 0.25 for row in made)
    assert made[0]["tokens_per_second"] == 4.0 and made[0]["seconds_max"] == 0.9
    assert made[0]["first_token_seconds"] == 2.0 and "steps" not in made[0]
    some = rows(monkeypatch, SAID, kv=["f16", "u8"])
    assert [(row["method"], row["kv_type"]) for row in some] == [kinds[0], *kinds[2:]]
    (one, other) = rows(monkeypatch, {**SAID, "others": 0.5}, peers=["openvino"])
    assert "must be quiet" in one["error"] and one["method"] == other["method"] == "openvino"
    (one, other) = rows(monkeypatch, {**SAID, "paused": 0.5}, peers=["openvino"])
    assert "may stand still" in one["error"] and "may stand still" in other["error"]
    for first in [0.5, 0.02], [0.01, 0.5]:
        made = rows(monkeypatch, {**SAID, "first": first})
        assert all(row["first_token_seconds"] is None and row["seconds_per_step"] == 0.25 for row in made)
        assert not any("first" in row or row["error"] for row in made)
    for said, status in ((None, 2), (None, 0), (SAID, 2)):  # one may fail after it said a row
        made = rows(monkeypatch, said, status)
        assert {row["error"] for row in made} == {"llama.cpp: last words", "openvino: last words"}
        assert not any("tokens_per_second" in row for row in made)


def test_what_a_process_says_while_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('row'); print('a: now', file=sys.stderr); sys.exit('\\nlast')"
    assert peers._run([sys.executable, "-c", code], "a: ") == (1, "row\n", ["a: now", "last"])
    assert capfd.readouterr().err == "  a: now\n"


def row(method: str, dtype: str, kv: str, tokens: float, cpu: str = "A", **more: Any) -> dict[str, Any]:
    values = dict(method=method, dtype=dtype, kv_type=kv, tokens_per_second=tokens, cpu=cpu, seq_len=512)
    values.update(
        index_bits=4 if method == "sparq" else None,
        first_token_seconds=1.5,
        others=0.02,
        memory_bytes_per_second=3e10,
        model="smollm2",
        error=None,
        n_threads=2,
        command="c",
    )
    return {**values, **more}


def test_rows_of_another_pace_of_the_memory_are_refused() -> None:
    def errors(*paces: float, fails: float = 1e9) -> list[Any]:
        made = [row("sparq", "int4", "f16", 1.0, memory_bytes_per_second=pace) for pace in paces]
        failed = row("openvino", "gguf", "f16", 1.0, memory_bytes_per_second=fails, error="no room")
        peers.refuse_other_pace([*made, failed])
        assert failed["error"] == "no room"
        return [of["error"] for of in made]

    assert errors(30e9, 27.3e9, 30e9) == [None] * 3 and errors() == []
    for order in (30e9, 27.2e9, 28e9), (28e9, 30e9, 27.2e9), (27.2e9, 28e9, 30e9):
        said = "the memory must keep its pace within 1.1 times in a run, got 27.2 to 30.0 GB/s"
        assert errors(*order) == [said] * 3


def test_the_table_has_both_processors_apart_and_what_we_lose() -> None:
    made = [
        row("recommended", "int4", "f16", 60.0, index_bits=2, memory_bytes_per_second=2.8e10),
        row("sparq", "int4", "f16", 50.0, memory_bytes_per_second=None),  # as they were
        row("llama.cpp", "gguf", "q8_0", 80.0, paused=0.031),
        row("sparq", "int4", "f16", 20.0, cpu="B", paused=0.012),
        row("openvino", "gguf", "f16", 20.0, cpu="C", memory_bytes_per_second=None),
        row("openvino", "gguf", "u8", 1.0, error="the machine must be quiet"),
    ]
    lines = decode_tables.of_the_peers(made).splitlines()
    first = lines.index("Tokens per second after the first, A:")
    assert lines[first + 2 : first + 5] == [
        "| model | positions | llama.cpp, q8_0 | SparQ, int4 | SparQ as recommended, int4 |",
        "|---|---:|---:|---:|---:|",
        "| SmolLM2-135M | 512 | 80.0 | 50.0 | 60.0 |",
    ]
    share, read = "Other programs took at most 2.0% of the processors meanwhile.", "Memory was read at"
    still = "The processors stood still for at most"
    some = f"{still} 3.1% of the time (1 of 3 rows say it)."
    assert f"{share} {read} 28.0 to 30.0 GB/s. {some} The commands:" in lines
    assert f"{share} {read} 30.0 to 30.0 GB/s. {still} 1.2% of the time. The commands:" in lines
    assert f"{share} The commands:" in lines  # of C, which says neither
    second = lines.index("Tokens per second after the first, B:")
    assert lines[second + 4] == "| SmolLM2-135M | 512 | 20.0 |"
    assert "Seconds from the prompt to the first token, A:" in lines


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--peers", "--peers must have --model smollm2 or a .gguf file"),
        ("--peers --model smollm2 --batch 2", "--peers must have batch 1 and wall time"),
        ("--peers --model smollm2 --S 512 22", "--S must be at least 3 more than the steps of all rounds"),
        ("--peers other", "invalid choice"),
    ],
)
def test_refusals(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        decode.main(words.split())
    assert text in capsys.readouterr().err


def test_readme_is_what_the_rows_say() -> None:
    made = decode_tables.read_rows(decode.PEERS)
    assert made and not any(row["error"] or row["others"] > peers.QUIET_SHARE for row in made)
    text = (decode.ROOT / "README.md").read_text()
    block = text.partition("<!-- begin peers: ")[2].partition("<!-- end peers -->")[0]
    assert block.partition("\n")[2] == decode_tables.of_the_peers(made) + "\n"
