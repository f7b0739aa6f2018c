# SPDX-License-Identifier: Apache-2.0
"""Executables as files: saved by one process, loaded by another, the same in everything that shows."""

from __future__ import annotations

from pathlib import Path

import pytest

IPU = {"SPARQ_EMULATOR_IPUS": "1"}
CHECKS = ("GUARD", "CHECK_WORKERS", "REPORT_READS")


@pytest.fixture(scope="module")
def saved(programs, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("executable") / "file"
    assert programs.run("executable", programs.codelets, "save", file, **IPU) == "0/4 1/4 2/4 3/4 4/4 "
    return file


def load(programs, file: Path, **variables: str) -> str:
    return programs.run("executable", "(no codelets)", "load", file, **IPU, **variables)


@pytest.mark.parametrize("check", [None, *CHECKS])
def test_what_is_loaded_does_the_same(programs, tmp_path, check):
    """Guards, and what workers and edges may touch, are in the file too, where a check asks for them."""
    variables = dict(IPU, **({f"SPARQ_EMULATOR_{check}": "1"} if check else {}))
    file = tmp_path / "file"
    programs.run("executable", programs.codelets, "save", file, **variables)
    direct = programs.run("executable", programs.codelets, "run", file, **variables)
    assert load(programs, file, **({f"SPARQ_EMULATOR_{check}": "1"} if check else {})) == direct
    lines = direct.splitlines()
    # three increments of row 1, its columns 0 and 1 doubled, among others; then the other program, then again
    x = [[0.5 * (6 * row + i) + 3 for i in range(6)] for row in range(4)]
    x[0] = x[1]
    first = [float(number) for number in next(x for x in lines if x.startswith("[0.5"))[1:-1].split(",")]
    assert first[8:16] == [2 * x[row][column] + 0.125 for column in range(2) for row in range(4)]
    assert "[0,1,2,3,4,5,0,1,2]" in lines
    # a summary after each of three runs, of all runs so far: both programs increment, the first one ran first
    assert direct.count("OnTileExecute: increment") == 1 + 2 + 2 and direct.count("Total cycles") == 3


def test_threads_and_device_belong_to_who_loads(programs, saved):
    assert load(programs, saved, SPARQ_EMULATOR_THREADS="1") == load(
        programs, saved, SPARQ_EMULATOR_THREADS="5"
    )


def test_what_is_not_whole_is_refused(programs, saved, tmp_path):
    content, file = saved.read_bytes(), tmp_path / "file"
    heading = content.index(b"\n") + 1
    classes = heading + 16 + 8  # behind length, checksum and how many there are

    def said(changed: bytes) -> str:
        file.write_bytes(changed)
        return load(programs, file)

    assert "executable: it must begin with 'emulated Poplar executable, format" in said(b"")
    assert "it must begin with" in said(b"x" + content)
    assert "it must begin with" in said(content.replace(b"format 2", b"format 3"))
    n = len(content) - heading - 16
    assert f"it must have {n} bytes behind its heading, got {n - 1}" in said(content[:-1])
    for at in (classes, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 1
        assert "its checksum must be that of its content, it is not" in said(bytes(changed))
    changed = bytearray(content)
    changed[classes] ^= 1
    changed[heading + 8 : heading + 16] = fnv1a(bytes(changed[heading + 16 :])).to_bytes(8, "little")
    assert "it must come from this build of the emulator, it comes from another" in said(bytes(changed))
    assert "Profile summary" in said(content)  # control


def fnv1a(content: bytes) -> int:
    result = 0xCBF29CE484222325
    for byte in content:
        result = (result ^ byte) * 0x100000001B3 % 2**64
    return result
