# SPDX-License-Identifier: Apache-2.0
"""The programs of study/: a flag that would change nothing is refused by its name, before any work."""

from __future__ import annotations

import importlib

import pytest

#: calls that are good but for what is behind the bar, one by one
CALLS = {
    "accuracy": [
        ("--list", "--jobs 2; --model x; --out x; --report x; --plots x; --threads 1"),
        ("--write", "--quick; --seed 3; --out x; --items 2; --report-only; --force"),
        ("--report-only --out x", "--model x; --held-out; --size lm.length=9; --threads 1; --jobs 2"),
        ("--quick", "--force"),
    ],
    "alisa": [
        ("--write", "--json x; --plots x"),
        ("--plots x", "--json x"),
    ],
    "reuse": [
        ("--write", "--input x; --r 4; --k 9; --policy lru; --json x"),
    ],
}


@pytest.mark.parametrize(
    ("program", "call", "added"),
    [
        (program, call, added)
        for program, calls in CALLS.items()
        for call, words in calls
        for added in words.split("; ")
    ],
)
def test_a_flag_that_does_not_apply_is_refused(
    program: str, call: str, added: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(program).main(f"{call} {added}".split())
    (message,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "error: --" in message and " must " in message
    assert added.split()[0] in message, message
