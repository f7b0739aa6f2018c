# SPDX-License-Identifier: Apache-2.0
"""Every flag of `generate` either changes something or is refused by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from flag_tables import cases, untried
from tiny_models import save_checkpoint, torch

from sparq_ipu import generate

PARSERS = {"generate": generate._parser("generate")}
#: calls that are good, by name: a command and, if it has several, which
CALLS = {
    "generate": "--model {folder} --prompt-file {folder}/prompt.txt --new-tokens 6 --json {folder}/rows "
    "--min-seq-len 0 --rank 3 --top-k 9",
    "generate sampled": "--model {folder} --prompt-file {folder}/prompt.txt --new-tokens 6 --temperature 3",
}
#: what is added to a call, one by one: it changes something
EFFECTS = {
    "generate": "--prompt-tokens 30; --new-tokens 5; --model {folder}/other; --dtype bfloat16; "
    "--weights int8; --weights int4; "
    "--device reference; --threads 3; --row-bits 8; --rank 4; --top-k 8; --n-local 1; --index-bits 8; "
    "--min-seq-len 99; "
    "--published; --temperature 3; --compare-dense; "
    "--json {folder}/elsewhere",
    "generate sampled": "--top-p 0.1; --seed 3; --dense",
}
#: what is added to a call, one by one: it is refused, in a message that has its first word
REFUSED = {"generate": "--dtype float32 --weights int4; --prompt w1; --top-p 0.5; --seed 3; --dense"}
#: what a call of its own tries
ELSEWHERE = {
    "chat": "test_generate.py",
    "no_drafts": "test_drafts.py",
    "prompt_blocks": "test_generate.py",
    "cache_dir": "test_kept_prompts.py",
    "cache_gb": "test_kept_prompts.py",
}


class Seen(NamedTuple):
    """All that a call did, but for times."""

    status: object
    text: str
    rows: list[Any]
    files: list[str]
    threads: list[int]


Run = Callable[[str, str], Seen]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = save_checkpoint(tmp_path_factory.mktemp("flags"))
    (folder / "other.txt").write_text(" ".join(f"w{i}" for i in range(59, -1, -1)))
    other = save_checkpoint(folder / "other")
    assert (other / "config.json").is_file()
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls a command."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)

    def called(call: str, added: str) -> Seen:
        threads.clear()
        before = set(folder.iterdir())
        try:
            status: object = generate.main(f"{CALLS[call]} {added}".format(folder=folder).split())
        except SystemExit as stop:
            status = stop.code
        printed = capsys.readouterr()
        files = sorted(path.name for path in set(folder.iterdir()) - before)
        rows = []
        for name in files:
            written = (folder / name).read_text()
            for one in written.splitlines():
                row = json.loads(one)
                rows.append({k: v for k, v in row.items() if "second" not in k and k != "repro"})
            (folder / name).unlink()
        text = re.sub(r"\d+\.\d+", "#", printed.out)  # times
        text += "" if status in (0, 1) else printed.err
        return Seen(status, text, rows, files, list(threads))

    return called


#: what the calls do with nothing added, made when first needed
PLAIN: dict[str, Seen] = {}


@pytest.mark.parametrize(("call", "added"), cases(EFFECTS))
def test_a_flag_has_an_effect(call: str, added: str, run: Run) -> None:
    if call not in PLAIN:
        PLAIN[call] = run(call, "")
        assert PLAIN[call].status == 0 and PLAIN[call] == run(call, "")  # nothing else changes
    seen = run(call, added)
    assert seen.status == 0 and seen != PLAIN[call]


@pytest.mark.parametrize(("call", "added"), cases(REFUSED))
def test_a_flag_that_does_not_apply_is_refused(call: str, added: str, run: Run) -> None:
    seen = run(call, added)
    message = seen.text.splitlines()[-1]
    assert seen.status == 2 and added.split()[0] in message and not seen.rows and not seen.files, message


def test_every_flag_is_tried() -> None:
    """A new flag needs a place in a table above."""
    everything = [*CALLS.items(), *cases(EFFECTS), *cases(REFUSED)]
    for command, parser in PARSERS.items():
        assert not untried(command, parser, everything, *ELSEWHERE), command
