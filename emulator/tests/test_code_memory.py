# SPDX-License-Identifier: Apache-2.0
"""The estimate of code memory grows with what a program has; and what does not fit is refused.

Figures are those of sparq_emulator/CodeModel.hpp.
"""

from __future__ import annotations

import pytest

ROOM = 638976
KINDS = ("vertexCode", "stacks", "controlCode", "exchangeCode", "hostExchangeCode")
STEP, VERTEX, EXCHANGE, SENT, RECEIVED, COPIED = 16, 12, 16, 8, 16, 8


@pytest.fixture(scope="module")
def counted(programs) -> dict:
    return {o["program"]: o for o in programs.json_lines("code_memory", programs.codelets)}


def grown(counted: dict, name: str, over: str = "plain") -> dict:
    """By how much each kind of memory of the fullest tile is more than in another program; without those
    that are the same."""
    kinds = (*KINDS, "vertexState", "temporaries")
    change = {kind: counted[name][kind] - counted[over][kind] for kind in kinds}
    return {kind: n for kind, n in change.items() if n}


def test_the_kinds_add_up(counted):
    for o in counted.values():
        assert o["tile"] == 1
        assert o["codeAndStacks"] == sum(o[kind] for kind in KINDS) == o["codePerTile"][1]
        assert o["bytes"] == o["variables"] + o["vertexState"] + o["temporaries"] + o["codeAndStacks"]


def test_a_small_program(counted):
    plain = counted["plain"]
    assert plain["stacks"] == 6 * 512 + 96
    # five steps: four compute sets and a copy; a vertex each
    assert plain["controlCode"] == 512 + 5 * STEP + 4 * VERTEX
    assert plain["exchangeCode"] == EXCHANGE + RECEIVED  # the copy's, from tile 2
    assert plain["hostExchangeCode"] == 288
    tiles = plain["codePerTile"]
    nothing = 6 * 512 + 96 + 512 + 5 * STEP + 288
    assert tiles[0] == tiles[3] == nothing
    assert tiles[2] == nothing + EXCHANGE + SENT
    assert plain["vertexCode"] > 256 and plain["vertexCode"] % 2 == 0


def test_twice_the_compute_sets(counted):
    more = grown(counted, "twice the compute sets")
    assert more.pop("vertexState") > 0
    assert more == {"controlCode": 4 * (STEP + VERTEX)}


def test_one_more_codelet(counted):
    more = grown(counted, "another codelet")
    more.pop("vertexState")
    assert set(more) == {"vertexCode"} and 2 * 20 < more["vertexCode"] < 2 * 200
    # the code of a codelet is there once, however many vertices
    assert "vertexCode" not in grown(counted, "twice the compute sets")


def test_exchanged_data(counted):
    """An InOut of another tile comes in a piece and goes in a piece, in each of four compute sets."""
    more = grown(counted, "data elsewhere")
    assert more == {"exchangeCode": 4 * (2 * EXCHANGE + RECEIVED + SENT), "temporaries": 32}
    twice = grown(counted, "twice the compute sets, data elsewhere")
    assert twice["exchangeCode"] == 2 * more["exchangeCode"]


def test_a_compute_set_executed_twice_has_its_exchange_once(counted):
    assert grown(counted, "executed twice") == {"controlCode": 4 * STEP}
    more = grown(counted, "executed twice, data elsewhere", "data elsewhere")
    assert more == {"controlCode": 4 * STEP}


def test_pieces(counted):
    assert grown(counted, "a copy of 10 pieces") == {"exchangeCode": 9 * RECEIVED}
    sender = counted["a copy of 10 pieces"]["codePerTile"][2] - counted["plain"]["codePerTile"][2]
    assert sender == 9 * SENT


def test_branches(counted):
    assert grown(counted, "3 branches") == {"controlCode": 3 * 32}


def test_remote_copies(counted):
    """A packet a row; an offset each waits; where the halves of rows lie apart, rows land first."""
    assert grown(counted, "a remote copy") == {
        "controlCode": STEP,
        "hostExchangeCode": 32 + 5 * 20,
        "temporaries": 5 * 4,
    }
    more = grown(counted, "a remote copy of more rows", "a remote copy")
    assert more == {"hostExchangeCode": 5 * 20, "temporaries": 5 * 4}
    pieces = grown(counted, "a remote copy in pieces", "a remote copy")
    assert pieces == {"temporaries": 5 * 32, "exchangeCode": 5 * 2 * COPIED}


def test_code_that_does_not_fit_beside_the_data_is_refused(programs):
    """Programs with the same data: one has too many compute sets."""
    fits = programs.json("code_memory", programs.codelets, 500, 140000)
    assert "refused" not in fits and fits["bytes"] < ROOM
    large = programs.json("code_memory", programs.codelets, 1000, 140000)
    assert large["variables"] == fits["variables"] < ROOM
    need = large["bytes"]
    assert large["refused"] == {"tile": 1, "need": need, "room": ROOM} and need > ROOM
    found = f"got {need} (largest: big 560000, (exchange code) {large['exchangeCode']}, (control code) "
    assert found in large["message"]


def test_code_has_less_room_than_data(programs):
    """It must lie where memory is not interleaved."""
    room = 0x80000 - 0x4C000
    fits = programs.json("code_memory", programs.codelets, 2400, 40000)
    assert "refused" not in fits and 0.9 * room < fits["codeAndStacks"] - fits["stacks"] <= room
    large = programs.json("code_memory", programs.codelets, 2600, 40000)
    need = large["codeAndStacks"] - large["stacks"]
    assert large["refused"] == {"tile": 1, "need": need, "room": room} and need > room
    assert large["bytes"] < ROOM
    assert large["message"].startswith(
        f"tile memory: code of tile 1 must need at most {room} bytes, got {need} (vertex code "
    )
