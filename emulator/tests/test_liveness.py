# SPDX-License-Identifier: Apache-2.0
"""What is live together: from a write to the last read that may follow, over all programs."""

from __future__ import annotations

import pytest

#: case: live bytes of the fullest tile, what is always live
EXPECTED = {
    "one after another": (1000, {}),
    "side by side": (2000, {}),
    "two programs": (2000, {"a": 1000}),
    "changed before it is written": (2008, {"b": 1000}),
    "changed after WriteUndef": (1008, {}),
    "written in two pieces": (2000, {"c": 1000}),
    "written in part": (1996, {"b": 4}),  # the last element of `a` is never read
    "read in the next pass": (2000, {}),
    "one pass only": (1000, {}),
    "kept while a loop runs": (2000, {"bit": 4}),
    "written in one branch": (1000, {"a": 1000, "bit": 4}),
    "written in both branches": (2000, {"b": 1000, "bit": 4}),
    "for the host": (3000, {"a": 1000, "b": 1000}),
    "never read": (1000, {}),
    "in a function": (2000, {}),
    "read whole and in part": (2200, {}),
    "with a landing copy": (1008, {}),
}


@pytest.fixture(scope="module")
def counted(programs) -> dict:
    return {o["case"]: o for o in programs.json_lines("liveness", programs.codelets)}


@pytest.mark.parametrize("case", EXPECTED)
def test_live_bytes(counted, case):
    got = counted[case]
    assert (got["live"], got["always"]) == EXPECTED[case]
    assert got["live"] <= got["bytes"]


def test_every_case_is_expected(counted):
    assert set(counted) == set(EXPECTED)


def test_the_neediest_step_is_named(counted):
    assert (counted["one after another"]["step"], counted["one after another"]["tile"]) == ("read", 1)
    assert (counted["with a landing copy"]["step"], counted["with a landing copy"]["tile"]) == ("change", 0)
