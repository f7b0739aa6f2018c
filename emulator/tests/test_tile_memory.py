# SPDX-License-Identifier: Apache-2.0
"""A graph that does not fit tile memory: the exception holds the figures that its text names."""

from __future__ import annotations

import pytest

ROOM = 638976  # bytes of a tile
STACKS, CONTROL, HOST = 6 * 512 + 96, 512, 288  # of an empty program
CODE_AND_STACKS = STACKS + CONTROL + HOST
FITS = (ROOM - CODE_AND_STACKS) // 8  # 8-byte words


@pytest.mark.parametrize("words", [FITS + 1, 2 * FITS])
def test_the_exception_holds_need_room_and_tile(programs, words):
    r = programs.json("tile_memory", words)
    need = 8 * words + CODE_AND_STACKS
    assert r["thrown"] == {"tile": 2, "need": need, "room": ROOM}
    assert r["message"] == (
        f"tile memory: tile 2 must need at most {ROOM} bytes, got {need} "
        f"(largest: big {8 * words}, (stacks) {STACKS}, (control code) {CONTROL}, "
        f"(host exchange code) {HOST}, (vertex state) 0) [out_of_tile_memory]"
    )


@pytest.mark.parametrize("halves", [1, 2, 3, 4, 5, 7, 8])
def test_a_variable_takes_whole_words_of_8_bytes(programs, halves):
    counted = programs.json("tile_memory", 10, halves)["counted"]
    assert counted["need"] == 8 * 10 + 8 * -(-halves // 4) + CODE_AND_STACKS


def test_the_exception_is_the_one_of_the_api(programs):
    r = programs.json("tile_memory", FITS + 1)
    assert r["messageOfBase"] == r["message"]


@pytest.mark.parametrize("words", [1, FITS, FITS + 1])
def test_the_exception_says_what_is_counted(programs, words):
    r = programs.json("tile_memory", words)
    assert r["counted"] == {"tile": 2, "need": 8 * words + CODE_AND_STACKS, "room": ROOM}
    assert r.get("thrown", r["counted"]) == r["counted"]
    assert ("thrown" in r) == (words > FITS)
