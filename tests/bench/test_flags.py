# SPDX-License-Identifier: Apache-2.0
"""Every flag of every bench either changes something or is refused by its name."""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import json
import re
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from emulated import _core as core
from flag_tables import cases, untried
from lib import common

from sparq_ipu.kernels import BASELINE, DEFAULT, TIERED
from sparq_reference import DoesNotFit, exact

DATA = Path(__file__).resolve().parents[1] / "data"
REAL = str(DATA / "smollm2_hamlet.npz")
SHAPE = "--S 64 --heads 2 --head-dim 8"
SPARQ = f"{SHAPE} --r 4 --k 8"
TIERS = f"{SPARQ} --kernel {TIERED.name} --index-bits 4"
ONCE = "--reps 1 --warmup 0"
#: calls that are good, by name: a bench and, if it has several, which
CALLS = {
    "ipu_sparq": f"{TIERS} --tiles 8",
    "ipu_sparq plans": f"{TIERS} --plan-only",
    "ipu_sparq stack": f"{TIERS} --layers 4 --plan-only",
    "ipu_sparq input": f"--input {REAL} --tiles 16 --S 100 --kernel {BASELINE.name} --no-check",
    "ipu_sparq dense": f"{SHAPE} --tiles 8 --kernel {BASELINE.name}",
    "ipu_sparq streaming": f"{SPARQ} --tiles 8 --kernel {DEFAULT.name} --index-bits 16",
    "cpu_sparq": f"{SPARQ} --index-bits 16 --threads 1 {ONCE}",
    "lib.plans.layers": f"{SPARQ} --kv-heads 2 --layers 1 --index-bits 16",
    "lib.plans.tiers": "--S 2048 --ipus 32 --model Llama-3-8B",
    "lib.plans.scaling": f"{SPARQ} --kv-heads 2 --B 1 --ipus 2",
    "sweep": f"{TIERS} --B 1 --kv-heads 2 --local 0",
    "sweep emulated": f"{SPARQ} --B 1 --kv-heads 2 --kernel {BASELINE.name} {DEFAULT.name} --emulate 1e6",
    "sweep dense": f"{SHAPE} --B 1 --kv-heads 2 --kernel {BASELINE.name}",
}
WORKLOAD = (
    "--S 65; --B 2; --heads 4; --kv-heads 1; --head-dim 16; --r 5; --k 9; --local 3; --no-mean-value; "
    "--index-bits 8; --json {tmp}/x; "
)
#: what is added to a call, one by one: it changes something
EFFECTS = {
    "ipu_sparq": WORKLOAD
    + "--row-bits 8; --kernel all; --seed 1; --tiles 9; --no-check; --stages; --hot-rows 60; --device ipu; "
    "--trace {tmp}/y; --heat-map {tmp}/z; --no-check --check; --hit-rate 0.5; --index-components 8",
    "ipu_sparq plans": "--S 65; --tiles 9; --hit-rate 0.5; --hot-rows 60; "
    "--row-bits 8; --local 3; --layers 2; --index-components 8",
    "ipu_sparq stack": "--ipus 2; --split heads; --tiles 9; --hit-rate 0.5; --hot-rows 60; "
    "--row-bits 8; --layers 5",
    "ipu_sparq input": "--layer 9; --S 90; --stages; --tiles 17",
    "cpu_sparq": WORKLOAD
    + "--row-bits 8; --kernels ours; --threads 2; --reps 2; --warmup 1; --seed 1; --no-check",
    "lib.plans.layers": WORKLOAD + "--layers 2; --write",
    "lib.plans.tiers": "--S 4096; --B 2; --r 5; --k 9; --local 3; --no-mean-value; --index-bits 8; "
    "--row-bits 8; "
    "--ipus 16; --model Llama-2-7B; --write; --json {tmp}/x; --hot-rows 60; "
    "--hit-rate 0.5; --index-components 64",
    "lib.plans.scaling": WORKLOAD + "--layers 2; --ipus 4; --tiles 9; --write",
    "sweep": WORKLOAD + "--row-bits 8; --kernel all; --device gc200; --jobs 2; --emulate 1e6",
    "sweep emulated": "--seed 1",
}
#: what is added to a call, one by one: it is refused, in a message that has its first word
REFUSED = {
    "ipu_sparq": "--split heads; --ipus 2; --reps 3; --warmup 1; --layer 2; --steps 3",
    "ipu_sparq plans": "--reps 3; --warmup 1; --seed 1; --stages; --no-check; --split heads; --ipus 2; "
    f"--trace t; --heat-map t; --device ipu; --input {REAL}",
    "ipu_sparq stack": "--ipus 3; --layers 0; --stages",
    "ipu_sparq input": "--B 2; --heads 4; --kv-heads 1; --head-dim 16; --seed 1; --top-k 9; --row-bits 8",
    "ipu_sparq dense": "--rank 5; --top-k 9; --n-local 3; --no-mean-value; --index-bits 4; --row-bits 8; "
    "--hot-rows 60; --index-components 8",
    "ipu_sparq streaming": "--row-bits 8; --hot-rows 60; --index-components 8",
    "cpu_sparq": "--threads 0",
    "lib.plans.layers": "--row-bits 8; --seed 1; --layers 0; --layers 2000",
    "lib.plans.tiers": "--heads 64; --kv-heads 8; --head-dim 64; --seed 1; --ipus 1000",
    "lib.plans.scaling": "--row-bits 8; --seed 1; --ipus 5; --layers 0; --tiles 2000; --read {tmp}/none",
    "sweep": "--seed 1; --jobs 0; --emulate -1",
    "sweep dense": "--rank 5; --top-k 9; --n-local 3; --no-mean-value; --index-bits 4; --row-bits 8",
}
#: modes in which a bench only reads, and what would ask for work: it is refused
READS = {
    "lib.plans.scaling": (
        "--read {rows}",
        "--S 65; --rank 5; --layers 2; --ipus 2; --tiles 9; --json {tmp}/x",
    ),
    "sweep": (
        "--json {rows} --summary",
        f"--S 65; --rank 5; --kernel {BASELINE.name}; --device gc200; --jobs 2; --emulate 1; --seed 1",
    ),
    "sweep write": ("--json {rows} --write", "--S 65; --summary"),
    "decode": (
        "--read {rows}",
        "--model x; --S 9; --batch 2; --dtypes float16; --methods dense; --steps 3; --rounds 3; --threads 1; "
        "--rank 5; --top-k 9; --n-local 3; --index-bits 8; --seed 1; --peers; --kv u8; --filled; --apart; "
        "--json {tmp}/x",
    ),
    "calibrate": ("--check {rows}", "--write; --points"),
}


class Seen(NamedTuple):
    """All that a call did, but for times."""

    status: object
    text: str
    rows: list[Any]
    calls: list[str]
    files: list[str]


Run = Callable[[str, str], Seen]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Calls a bench; what takes long is written down in place of being done."""
    calls: list[str] = []

    def instead(holder: Any, name: str, does: Callable[..., Any]) -> None:
        def called(*arguments: Any, **options: Any) -> Any:
            shown = [a if isinstance(a, (str, int)) else f"{type(a).__name__} {a}"[:500] for a in arguments]
            calls.append(f"{name} {shown} {sorted(options.items(), key=str)}")
            return does(*arguments, **options)

        holder = importlib.import_module(holder) if isinstance(holder, str) else holder
        monkeypatch.setattr(holder, name, called)

    def refuses(*arguments: Any, **options: Any) -> None:
        raise DoesNotFit("plan: tile memory", "tile memory", 2, 1)

    for module, name in (
        ("lib.common", "plan"),
        ("lib.pod", "plan_pod"),
        ("lib.plans.scaling", "plan_pod"),
        ("lib.plans.tiers", "placed_layers"),
    ):
        instead(module, name, refuses)
    for module in ("lib.plans", "sweep"):
        instead(module, "replace_block", lambda *a: None)
    for module in ("ipu_sparq", "cpu_sparq", "lib.pod"):
        instead(module, "random_inputs", importlib.import_module(module).random_inputs)
    instead("sparq_ipu._core", "Session", core.Session)
    instead("lib.plans.tiers", "rates", str)
    instead("sweep", "plan_into", lambda *a, **options: None)
    instead("sweep", "emulate", lambda *a: None)
    instead(exact, "attention", exact.attention)
    monkeypatch.setattr(importlib.import_module("cpu_sparq"), "STREAM_BYTES", 1 << 16)

    class Here:
        """A pool of processes that works in this one."""

        def __init__(self, n_processes: int) -> None:
            calls.append(f"pool {n_processes}")

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def submit(self, work: Callable[..., Any], *arguments: Any) -> Any:
            done: Any = concurrent.futures.Future()
            done.set_result(work(*arguments))
            return done

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", Here)

    def called(bench: str, words: str) -> Seen:
        calls.clear()
        before = set(tmp_path.iterdir())
        try:
            status: object = importlib.import_module(bench).main(words.format(tmp=tmp_path).split())
        except SystemExit as stop:
            status = stop.code
        printed = capsys.readouterr()
        rows: list[Any] = []
        text: list[str] = []
        for line in printed.out.splitlines():
            if line.startswith("{"):
                of_times = ("second", "speedup", "ratio", "gb_per", "peak", "command", "git", "seed", "MAD")
                row = json.loads(line)
                rows.append({k: v for k, v in row.items() if not any(word in k for word in of_times)})
            else:
                text.append(line)
        said = "\n".join(text) + printed.err
        files = sorted(path.name for path in set(tmp_path.iterdir()) - before)
        for name in files:
            (tmp_path / name).unlink()
        return Seen(
            status,
            re.sub(r" *[\d.]*\d+\.\d+(e-\d+)?|-{3,}", "#", said),
            sorted(rows, key=str),
            list(calls),
            files,
        )

    return called


#: what the calls do with nothing added, made when first needed
PLAIN: dict[str, Seen] = {}


@pytest.mark.parametrize(("call", "added"), cases(EFFECTS))
def test_a_flag_has_an_effect(call: str, added: str, run: Run) -> None:
    bench, words = call.split()[0], CALLS[call]
    if "--check" in added.split():  # the default: it takes back what is before it
        words, added = f"{words} --no-check", "--check"
        assert run(bench, f"{words} {added}") != run(bench, words)
        return
    if call not in PLAIN:
        PLAIN[call] = run(bench, words)
        assert PLAIN[call].status in (0, 1) and PLAIN[call] == run(bench, words)  # nothing else changes
    seen = run(bench, f"{words} {added}")
    assert seen._replace(text="") != PLAIN[call]._replace(text="") or seen.text != PLAIN[call].text


@pytest.mark.parametrize(("call", "added"), cases(REFUSED))
def test_a_flag_that_does_not_apply_is_refused(call: str, added: str, run: Run) -> None:
    seen = run(call.split()[0], f"{CALLS[call]} {added}")
    message = seen.text.splitlines()[-1]
    assert seen.status == 2 and added.split()[0] in message and not seen.calls, message


@pytest.mark.parametrize("call", READS)
def test_a_bench_that_only_reads_refuses_what_asks_for_work(call: str, run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    words, added = READS[call]
    for flag in added.split("; "):
        seen = run(call.split()[0], f"{words} {flag}".replace("{rows}", str(rows)))
        message = seen.text.splitlines()[-1]
        assert seen.status == 2 and f"{flag.split()[0]} must be left out" in message, message


def test_every_flag_is_tried() -> None:
    """A new flag needs a place in a table above."""
    modes = [(call, " ".join(words)) for call, words in READS.items()]
    everything = [*CALLS.items(), *cases(EFFECTS), *cases(REFUSED), *modes]
    for bench in {call.split()[0] for call in CALLS}:
        assert not untried(bench, importlib.import_module(bench).command_line().parser, everything), bench


def test_one_way_from_flags_to_options() -> None:
    """The options of a device are those of the flags, for a kernel that has them."""
    a = argparse.Namespace(tiles=7, hot_rows=9, hit_rate=0.5)
    tiered, streamed = (common.device_options(a, kernel) for kernel in (TIERED, DEFAULT))
    assert (tiered.n_tiles, tiered.memory, tiered.hot_rows) == (7, "tiered", 9)
    assert (streamed.n_tiles, streamed.memory, streamed.hot_rows) == (7, "streaming", 0)
    assert common.plan_options(a, TIERED)["hit_rate"] == 0.5 and "hit_rate" not in common.plan_options(
        a, DEFAULT
    )
