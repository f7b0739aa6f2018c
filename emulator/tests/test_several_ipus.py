# SPDX-License-Identifier: Apache-2.0
"""Targets of several IPUs: their tiles, what their links carry, and the list of emulated devices."""

from __future__ import annotations

import pytest

LINK, HOP = 128 * 2**30 / 8 * 0.85, 15e-9  # bytes a second of one link, seconds


@pytest.fixture(scope="module")
def lines(programs) -> list:
    return programs.json_lines("several_ipus", programs.codelets, SPARQ_EMULATOR_IPUS="4")


def having(lines: list, key: str) -> list:
    return [line for line in lines if key in line]


def test_tiles_of_virtual_graphs(lines):
    found = {
        line["virtual"]: (line["ipus"], line["perIpu"], line["tiles"]) for line in having(lines, "virtual")
    }
    assert found == {
        "all": (4, 3, list(range(12))),
        "one": (1, 3, [3, 4, 5]),
        "some of one": (1, 2, [4, 5]),
        "two": (2, 3, [6, 7, 8, 9, 10, 11]),
        "two of each": (4, 2, [0, 1, 3, 4, 6, 7, 9, 10]),
        "last of each": (4, 1, [2, 5, 8, 11]),
    }


@pytest.mark.parametrize(
    ("index", "ipus", "n_bytes", "busiest", "hops"),
    [
        (0, [0, 1], 32, 32 // 4, 1),  # four links within a rung
        (1, [0, 1, 2], 64, 32 // 2, 2),  # up from 0 by two links; 1 to 0 by four
        (2, [0, 2, 4, 5, 6], 96, 64 // 2, 3),  # down from 4: what comes from 4, and from 6
        (3, [3], 0, 0, 0),  # within an IPU
    ],
)
def test_copies_over_links(lines, index, ipus, n_bytes, busiest, hops):
    line = having(lines, "flows")[index]
    assert (line["ipus"], line["bytes"], line["maxBytes"], line["hops"]) == (ipus, n_bytes, busiest, hops)
    assert line["exchanges"] == (1 if hops else 0)
    assert line["seconds"] == pytest.approx(busiest / LINK + 2 * hops * HOP, rel=1e-4)
    assert line["values"] == [float(i) for i in range(1, line["flows"] + 1) for _ in range(8)]


def test_vertices_that_read_and_write_other_ipus(lines):
    (line,) = having(lines, "vertices")
    # 64 bytes from IPU 0 to 1, once for both of its tiles; 128 from 1 to 2, across and up, by two links each
    assert (line["ipus"], line["bytes"], line["maxBytes"]) == ([0, 1, 2], 64 + 128, 64 // 4 + 128 // 2)
    assert line["exchanges"] == 2 and line["last"] == 7
    assert len(set(line["nanoseconds"])) == 1 and len(line["nanoseconds"]) == 3


def test_whose_a_remote_buffer_is(lines):
    """That of the tensor; the row may be on another IPU."""
    names = ("buffer", "bytes", "ipu", "written")
    found = [tuple(line[name] for name in names) for line in having(lines, "buffer")]
    assert found == [("of0", 128, 0, 5), ("of1", 128, 1, 6)]


def test_remote_copies_that_follow_one_another_go_on_at_once(lines):
    """Of several IPUs, in one direction, with nothing between; else in turn."""
    found = {line["between"]: line for line in having(lines, "between")}
    assert found[""]["beside"] == [0, 1]
    assert found[""]["all"] == pytest.approx(found[""]["most"]) and found[""]["all"] < found[""]["sum"]
    for between in ("same ipu", "copy", "loop", "direction"):
        assert not any(found[between]["beside"]), between
        assert found[between]["all"] == pytest.approx(found[between]["sum"])


def test_a_branch_tells_the_ipus_that_depend_on_it(lines):
    found = [
        (line["branch"], line["ipus"], line["bytes"], line["exchanges"]) for line in having(lines, "branch")
    ]
    assert found == [(0, [0], 0, 0), (3, [0, 3], 4, 1)]


def test_listed_devices(lines):
    found = [(line["device"], line["ipus"], line["drivers"]) for line in having(lines, "device")]
    assert found == [
        (0, 1, [0]),
        (1, 1, [1]),
        (2, 1, [2]),
        (3, 1, [3]),
        (4, 2, [0, 1]),
        (5, 2, [2, 3]),
        (6, 4, [0, 1, 2, 3]),
    ]
    assert all(line["isIPU"] and not line["attached"] for line in having(lines, "device"))
    assert all(line["tiles"] == 1472 * line["ipus"] for line in having(lines, "device"))
    assert having(lines, "devices") == [{"devices": 7, "ofTwo": 2, "ofThree": 0}]
    assert having(lines, "children") == [{"children": [0, 1, 2, 3]}]


def test_an_ipu_has_one_owner(lines):
    (line,) = having(lines, "pair")
    assert (line["pair"], line["single"], line["other"]) == (1, 0, 1)
    assert (line["singleThen"], line["pairThen"]) == (1, 0)
    assert (line["last"], line["again"], line["lastThen"]) == (1, 0, 1)
    assert "must be attached, got device 3" in line["message"]


def test_no_device_is_listed_unless_asked_for(programs):
    (line,) = having(
        programs.json_lines("several_ipus", programs.codelets, SPARQ_EMULATOR_IPUS=""), "devices"
    )
    assert line == {"devices": 0, "ofTwo": 0, "ofThree": 0}
    with pytest.raises(
        RuntimeError, match="SPARQ_EMULATOR_IPUS must be 0 or a power of two up to 64, got '3'"
    ):
        programs.run("several_ipus", programs.codelets, SPARQ_EMULATOR_IPUS="3")
