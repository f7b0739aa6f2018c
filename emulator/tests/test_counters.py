# SPDX-License-Identifier: Apache-2.0
"""Counts and modelled times against numbers worked out by hand."""

from __future__ import annotations

import pytest

SYNC, EXCHANGE, COMPUTE_SET = 150, 100, 165  # cycles
PIECE, LOCAL_ELEMENT, LOCAL_BYTE = 3, 21.4, 1 / 8


def exchanged(bytes_in: int, bytes_out: int, largest: int, pieces: int) -> dict:
    """What one busiest tile sends or receives."""
    names = "bytesIn bytesOut maxBytesIn maxBytesOut maxBytes busyBytes busyPieces".split()
    return dict(zip(names, (bytes_in, bytes_out, *[largest] * 4, pieces)))


NOTHING = exchanged(0, 0, 0, 0)


@pytest.fixture(scope="module")
def lines(programs) -> list:
    return programs.json_lines("counters", programs.codelets)


def step(lines, program: str, name: str) -> dict:
    (found,) = [x for x in lines if x["program"] == program and x.get("name") == name]
    return found


def one(lines, program: str) -> dict:
    (found,) = [x for x in lines if x["program"] == program]
    return found


def test_compute_set(lines):
    s = step(lines, "onchip", "stage/affine")
    assert (s["kind"], s["executions"], s["vertices"], s["withoutEstimate"]) == ("compute", 3, 9, 1)
    # 8 vertices of 100 .. 107 slots on 6 workers: the two least loaded take 106 and 107 more
    assert s["tileCycles"] == 6 * (101 + 107)
    assert s["flops"] == 8 * 32
    # one row of 16 floats in from tile 0, one out to tile 2
    row = exchanged(64, 64, 64, 1)
    assert s["before"] == row and s["after"] == row
    assert (s["exchanges"], s["syncs"]) == (2, 2)
    cycles = s["tileCycles"] + COMPUTE_SET + 2 * (EXCHANGE + 64 / 4 + PIECE) + 2 * SYNC
    assert s["onChipCycles"] == pytest.approx(3 * cycles, rel=1e-4)


def test_estimator_of_a_multivertex_is_in_tile_cycles(lines):
    s = step(lines, "onchip", "multi")
    assert s["tileCycles"] == 1000 + 12 + 6 + 12
    assert s["before"] == NOTHING and s["exchanges"] == 0 and s["withoutEstimate"] == 0


def test_broadcast_counts_once_at_the_sender(lines):
    s = step(lines, "onchip", "stage/broadcast")
    assert s["before"] == exchanged(3 * 64, 64, 64, 1)
    assert (s["bytes"], s["exchanges"], s["syncs"]) == (4 * 64, 1, 1)


def test_a_column_goes_in_pieces(lines):
    """Ten rows' first elements, which are no neighbours, to a tile where they are."""
    s = step(lines, "onchip", "pieces")
    assert s["before"] == exchanged(40, 40, 40, 10)
    assert s["onChipCycles"] == pytest.approx(SYNC + EXCHANGE + 40 / 4 + 10 * PIECE)


def test_of_equally_busy_tiles_the_first_one_counts(lines):
    """Five floats in one piece to tile 2 take as long as two floats in two pieces to tile 0."""
    assert 5 + PIECE == 2 + 2 * PIECE
    expected = {**exchanged(28, 28, 20, 2), "busyBytes": 8}
    assert step(lines, "onchip", "tie")["before"] == expected


def test_a_copy_within_a_tile_takes_its_elements_and_bytes(lines):
    """Of a piece 16 elements count as such: here all, and half of them."""
    for name, floats in (("", 16), ("within", 32)):
        s = step(lines, "onchip", name)
        assert s["kind"] == "copy" and s["before"] == NOTHING
        cycles = 16 * LOCAL_ELEMENT + 4 * floats * LOCAL_BYTE
        assert s["onChipCycles"] == pytest.approx(cycles, abs=1)


def test_stages(lines):
    s = one(lines, "stages")
    affine, broadcast = step(lines, "onchip", "stage/affine"), step(lines, "onchip", "stage/broadcast")
    assert s["stage"] == pytest.approx(affine["onChipCycles"] + broadcast["onChipCycles"], rel=1e-4)
    assert s["sync"] == pytest.approx(SYNC)


def test_missing_estimates_are_reported(lines):
    assert one(lines, "estimates")["message"] == (
        "every vertex must have a performance estimate, got none for 1 of 9 vertices of step 'stage/affine' "
        "(test::Affine) [no_cycle_estimate]"
    )


def test_estimators_read_constants(lines):
    values = one(lines, "values")
    assert (values["cycles"], values["flops"]) == (234 * 10**5 + 51, 2)
    assert values["message"] == (
        "getInitialValues: field 'rows' must be state or connected to constants, got 'x' [index_out_of_range]"
    )


def test_tile_memory(lines):
    m = one(lines, "memory")
    code = m["codePerTile"]  # tests of its own: test_code_memory.py
    assert m["codeAndStacks"] == code[0]
    affine = 8 + 8 + 4 + 4  # two SPAN fields, two floats of state
    worker = 4 + 4  # a ONE_PTR field, a count
    row = 16 * 4
    # tile 0: x, nine rows of y, one row of copies; eight vertices
    assert m["perTile"][0] == 10 * row + 9 * row + row + 8 * affine + code[0]
    # tile 1: a row of copies, a vertex; its input lands, its output waits
    assert m["perTile"][1] == row + affine + 2 * row + code[1]
    assert m["perTile"][2] == row + row + code[2]
    assert m["perTile"][3] == row + 12 * 4 + worker + code[3]
    assert (m["tile"], m["bytes"], m["limit"]) == (0, m["perTile"][0], 638976)
    assert (m["variables"], m["vertexState"], m["temporaries"]) == (20 * row, 8 * affine, 0)
    assert m["largest"]["x"] == 10 * row and m["largest"]["y"] == 9 * row and m["largest"]["copies"] == row


def test_remote_packets(lines):
    whole = step(lines, "remote", "gather/whole")
    assert (whole["kind"], whole["buffer"], whole["rows"], whole["bytes"]) == (
        "remote-read",
        "rows",
        4,
        12000,
    )
    assert whole["packets"] == 4 * 3  # 3000 bytes: 1024 + 1024 + 952
    cut = step(lines, "remote", "scatter/cut")
    assert (cut["kind"], cut["bytes"]) == ("remote-write", 6000)
    assert cut["packets"] == 2 * (2 + 2)  # 1200 bytes on one tile, 1800 on the other
    small = step(lines, "remote", "gather/small")
    assert (small["executions"], small["rows"], small["packets"]) == (
        2,
        8,
        8,
    )  # rows of 256 bytes: one packet each


def test_host_stream(lines):
    s = step(lines, "remote", "host")
    assert (s["kind"], s["bytes"], s["packets"]) == ("stream-in", 2048, 2)
    assert s["hostSeconds"] > 0 and s["streamingSeconds"] == 0


@pytest.mark.parametrize("category", ["hostSeconds", "streamingSeconds"])
def test_seconds_in_all_are_those_of_the_steps(lines, category):
    of_steps = sum(x[category] for x in lines if x["program"] == "remote")
    assert one(lines, "remote in all")[category] == pytest.approx(of_steps, rel=1e-4) and of_steps > 0
