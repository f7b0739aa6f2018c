# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py --peers: processes of other programs, and the table."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import decode
import peers
from lib import decode_tables, quiet
from lib.quiet import Pace

from sparq_ipu.transformers.loading.checkpoints import Checkpoint
from sparq_ipu.transformers.settings.layers import pays_from

TEXT = list(range(97))


def begins_of(text: list[int]) -> list[list[int]]:
    return [peers.prompt_tokens(text, 5, seed) for seed in range(7)]


def test_a_process_times_every_token_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is read once, with a look at the machine before and after; then come the tokens of turns."""
    asked: list[Any] = []
    paces = [Pace(9e9, 0.1), Pace(8e9, 0.2)]

    def pace(n_threads: int) -> Pace:
        assert n_threads == 3
        asked.append("pace")
        return paces.pop(0)

    def program(a: argparse.Namespace) -> Any:
        def run(tokens: list[int], n_new: int) -> list[float]:
            asked.append((len(tokens), n_new))
            first = 13.0 if n_new == 1 else 10.1
            return [10.0, first, *(first + 0.5 * (i + 1) for i in range(n_new - 1))]

        return run

    @contextlib.contextmanager
    def others(pids: Any) -> Iterator[Any]:
        asked.append("others")
        yield SimpleNamespace(share_of_all=lambda: 0.25)

    monkeypatch.setitem(peers._PROGRAMS, "llama.cpp", program)
    monkeypatch.setattr(peers, "_tokens_elsewhere", lambda model: TEXT)
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: f"{name} 1")
    monkeypatch.setattr(quiet, "pace", pace)
    monkeypatch.setattr(quiet, "others", others)
    a = peers.parser().parse_args("llama.cpp x.gguf --S 9 --tokens 4 --threads 3".split())
    said = peers.said(a, iter(["2\n", "4\n"]))
    first = dict(first_token_seconds=3.0, first_token_trials=3)
    assert next(said) == dict(**first, others=0.25, paused=0.2, version="xllamacpp 1")
    assert asked == [peers.WARM_UP, "pace", "others", *[(3, 1)] * 3, "pace"]
    assert [len(turn["steps"]) for turn in said] == [2, 4]
    assert asked[7:] == [(3, 3), (3, 5)]
    monkeypatch.setattr(quiet, "pace", lambda n_threads: Pace(1e9, 0.0))
    (_, turn) = peers.said(a, ["1"])
    assert turn["steps"] == pytest.approx([0.5])
    monkeypatch.setitem(peers._PROGRAMS, "llama.cpp", lambda a: lambda tokens, n_new: [0.0, 1.0])
    with pytest.raises(RuntimeError, match=r"llama.cpp must say 5 tokens, got 1"):
        list(peers.said(a, ["4"]))


@pytest.mark.parametrize(("seconds", "n_read"), [((3.0, 9.0, 1.0), 2), ((3.0, 1.0, 2.0), 3), ((11.0,), 1)])
def test_a_short_prompt_is_read_more_often(seconds: tuple[float, ...], n_read: int) -> None:
    left, read = list(seconds), []

    def one(prompt: list[int]) -> float:
        read.append(prompt)
        return left.pop(0)

    last, taken = peers.first_tokens(one, TEXT, 20, seed=5)
    assert taken == list(seconds[:n_read]) and last == read[-1] and len({*map(tuple, read)}) == n_read


#: a process that says its command line, and the sum of what it was asked for
PROCESS = """
import json, sys
print("some noise")
print(json.dumps(dict(command=sys.argv[1:])), flush=True)
print("first", file=sys.stderr)
total = 0
for line in sys.stdin:
    total += int(line)
    if total > 5:
        sys.exit("last words\\n\\n")
    print("more noise")
    print(json.dumps(dict(steps=[total, total])), flush=True)
"""


def a_process(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> peers.Peer:
    (tmp_path / "process.py").write_text(text)
    monkeypatch.setattr(peers, "__file__", str(tmp_path / "process.py"))
    return peers.Peer("openvino", "u8", Path("x.gguf"), 64, 4, threads=3, seed=5)


def test_a_process_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = a_process(PROCESS, tmp_path, monkeypatch)
    words = "openvino x.gguf --kv u8 --S 64 --tokens 4 --threads 3 --seed 5"
    assert peer.prompt == {"command": words.split()} and (peer.name, peer.kv_type) == ("openvino", "u8")
    peer.decode([0, 0], is_counted=False)
    assert peer.seconds == []
    peer.decode([0], is_counted=True)
    peer.decode([0, 0], is_counted=True)
    assert peer.seconds == [3, 3, 5, 5]
    with pytest.raises(RuntimeError, match=r"^openvino: last words$"):
        peer.decode([0], is_counted=True)
    peer.close()


def test_a_process_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    peer = a_process(PROCESS, tmp_path, monkeypatch)
    peer.close()
    assert peer._process.returncode == -signal.SIGKILL and threading.active_count() == before


@pytest.mark.parametrize(
    ("text", "said"), [("raise SystemExit(7)", "status 7"), ("no name", "SyntaxError: .*")]
)
def test_a_process_that_says_nothing(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match=f"^openvino: {said}$"):
        a_process(text, tmp_path, monkeypatch)


def test_prompts_of_a_seed_begin_alike_and_those_of_others_elsewhere() -> None:
    begins = begins_of(TEXT)
    assert len({*map(tuple, begins)}) == 7
    long = peers.prompt_tokens(TEXT, 2 * len(TEXT) + 5, 3)
    assert long[:5] == long[len(TEXT) :][:5] == long[-5:] == begins[3] and sorted(long[-len(TEXT) :]) == TEXT


def test_prompts_are_text_of_the_models_own_tokens(tmp_path: Path) -> None:
    random_gguf = pytest.importorskip("random_gguf", exc_type=ImportError)
    model = tmp_path / "tiny.gguf"
    random_gguf.write("tiny", model)
    tokens = peers.text_tokens(model)
    assert peers._tokens_elsewhere(model) == tokens and len({*map(tuple, begins_of(tokens))}) == 7
    text = Checkpoint(model).tokenizer.decode(tokens)
    names = sorted(peers.TEXTS.glob("*.txt"))
    assert len(names) == 12 and text == "".join(name.read_text() for name in names)


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^the model must contain a tokenizer, got .* without one$"):
        peers.text_tokens(tmp_path)


def row(method: str, dtype: str, kv: str, tokens: float, cpu: str = "A", **more: Any) -> dict[str, Any]:
    values = dict(method=method, dtype=dtype, kv_type=kv, tokens_per_second=tokens, cpu=cpu, seq_len=512)
    values.update(
        index_bits=None,
        first_token_seconds=1.5,
        seconds_per_step=0.01,
        others=0.02,
        memory_bytes_per_second=3e10,
        model="smollm2",
        error=None,
        n_threads=2,
        command="c",
        paused=None,
        git="abcdef0123",
        date="2026-03-09",
        clock="wall",
        seconds_mad=None,
    )
    return {**values, **more}


def test_the_table_has_processors_apart_and_what_we_lose() -> None:
    made = [
        row("dense", "int4", "f16", 20.0, cpu="B", memory_bytes_per_second=None, prompt="text"),
        row("recommended", "int4", "f16", 60.0, index_bits=2, memory_bytes_per_second=2.8e10, paused=0.012),
        row("dense", "int4", "f16", 55.0, paused=0.031),
        row("llama.cpp", "gguf", "q8_0", 80.0, paused=0.012, version="1.5"),
        row("plain-sdpa", "bfloat16", "bfloat16", 7.0),
        row("plain-sdpa-static", "bfloat16", "bfloat16", 9.0, first_token_seconds=0.5),
        row("plain-sdpa-static", "int4", "int4", 99.0),  # with weights of ours: not transformers as it is
        row("openvino", "gguf", "u8", 1.0, error="the machine must be quiet"),
    ]
    lines = decode_tables.of_the_peers(made).splitlines()
    first = lines.index("Decoded tokens per second, without the first token, A:")
    names = "fastest of transformers, bf16 | llama.cpp, q8_0 | dense, int4 | SparQ, int4"
    assert lines[first + 2 : first + 5] == [
        f"| model | positions | {names} |",
        "|---|---:|---:|---:|---:|---:|",
        "| SmolLM2-135M | 512 | 9.0 | 80.0 | 55.0 | 60.0 |",
    ]
    prompts = lines.index("Time to first token in seconds, A:")
    assert lines[prompts + 4] == "| SmolLM2-135M | 512 | 0.50 | 1.50 | 1.50 | 1.50 |"
    totals = lines.index("Seconds for prefill and 128 new tokens, A:")
    assert lines[totals + 4] == "| SmolLM2-135M | 512 | 1.8 | 2.8 | 2.8 | 2.8 |"
    assert "Seconds for prefill and 512 new tokens, A:" in lines
    share = "commit abcdef01. Other programs used at most 2.0% of the processors. Prompts: random tokens."
    rate = "Measured memory bandwidth: 28.0 to 30.0 GB/s."
    paused = "The host paused the processors for at most 3.1% of the time."
    days = "Measured on 9 March 2026"
    assert f"A, 2 threads. {days}, {share} {rate} {paused} Packages: llama.cpp 1.5. Commands:" in lines
    # the last processor comes first
    other = lines.index("Decoded tokens per second, without the first token, B:")
    assert other > first and lines[other + 4] == "| SmolLM2-135M | 512 | 20.0 |"
    assert f"B, 2 threads. {days}, {share.replace('random tokens', 'text')} Commands:" in lines


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--peers", "--peers must have --model smollm2 or a .gguf file"),
        ("--peers --model smollm2 --batch 2", "--peers must have wall time, and batch 1 without --filled"),
        ("--filled", "--filled must be left out without --peers"),
        ("--apart", "--apart must be left out without --peers"),
        (
            "--peers --filled --model smollm2",
            "--filled must have --peers of llama.cpp, llama.cpp-no-flash, openvino, got",
        ),
        (
            "--peers openvino --filled --model smollm2 --S 9",
            "at least 6 more than --steps with --peers",
        ),
        (
            "--peers --model smollm2 --S 512 6",
            "--S must be at least 3 more than --steps with --peers, got 6 and 4",
        ),
        ("--peers other", "invalid choice"),
    ],
)
def test_refusals(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        decode.main(words.split())
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("slower", [0, 1])
def test_the_faster_form_of_llama_cpp_counts(slower: int) -> None:
    made = [{"model": "a.gguf", "batch": 1, "seq_len": 9, "error": None} for _ in range(2)]
    for i, method in enumerate(("llama.cpp", "llama.cpp-no-flash")):
        made[i].update(method=method, tokens_per_second=1.0 if i == slower else 2.0)
    assert decode_tables.fastest_runs(made) == {("a", 1, 9): {"llama.cpp": made[1 - slower]}}


def test_the_document_is_what_the_rows_say() -> None:
    made = decode_tables.read_rows(decode_tables.PEERS)
    assert made and not any(row["error"] or row["others"] > quiet.QUIET_SHARE for row in made)
    text = decode.DOCUMENT.read_text()
    block = text.partition("<!-- begin peers: ")[2].partition("<!-- end peers -->")[0]
    assert block.partition("\n")[2] == decode_tables.of_the_peers(made) + "\n"


def test_the_first_lines_of_the_page_are_true() -> None:
    """Its bullets have no figures; each is a comparison of rows."""
    made = [row for row in decode_tables.read_rows(decode_tables.PEERS) if row["error"] is None]
    speed, first = "tokens_per_second", "first_token_seconds"
    names = "openvino", "openvino-xattention", "llama.cpp", "llama.cpp-no-flash"

    def values(name: str, method: str, dtype: str) -> dict[int, float]:
        of = [(r["seq_len"], r[name]) for r in made if (r["method"], r["dtype"]) == (method, dtype)]
        best = min if name == first else max  # OpenVINO is in two runs
        return {n: best(value for m, value in of if m == n) for n, _ in of}

    dense, sparq = values(speed, "dense", "int4"), values(speed, "recommended", "int4")
    theirs = [values(speed, name, "gguf") for name in names]
    assert list(sparq) and set(sparq) == set(dense) == {512, 2048, 8192}
    assert all(min(dense[n], sparq[n]) > max(other[n] for other in theirs) for n in sparq)
    assert dense[2048] < sparq[2048] and dense[8192] < sparq[8192] and pays_from(256) > 512
    read, bf16 = values(first, "recommended", "int4"), values(speed, "recommended", "bfloat16")
    openvino = values(first, "openvino", "gguf")
    assert openvino[512] < read[512] and all(openvino[n] > read[n] for n in (2048, 8192))
    xattention = values(first, "openvino-xattention", "gguf")
    assert xattention[2048] < read[2048] and xattention[8192] > read[8192]
    for time, rate in ((values(first, name, "gguf"), values(speed, name, "gguf")) for name in names):
        assert all(read[n] + 127 / sparq[n] < time[n] + 127 / rate[n] for n in read)
    assert all(bf16[n] < theirs[0][n] for n in bf16)
