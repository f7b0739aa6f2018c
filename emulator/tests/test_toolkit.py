# SPDX-License-Identifier: Apache-2.0
"""Programs written for the SDK build against the installed emulator with their own build lines, and run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import builds
import numpy as np
import pytest

HERE = Path(__file__).resolve().parent / "toolkit"
CODELETS = str(HERE / "relax_codelets.cpp")


def expected(steps: int) -> np.ndarray:
    x = np.arange(16, dtype=np.float32) % 5
    for _ in range(steps):
        y = x.copy()
        y[1:-1] = x[1:-1] + (x[:-2] + x[2:] - x[1:-1] * np.float32(2)) * np.float32(0.25)
        x = y
    return x + np.float32(1)


@pytest.fixture(scope="module")
def relax(shell, tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("relax")
    shell(f"g++ -std=c++11 -Wall -Wextra -Werror {HERE}/relax.cpp -lpoplar -o relax", where)
    shell(f"popc -O1 {CODELETS} -o relax.gp", where)
    return where


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def test_a_plain_build_line_and_codelets_compiled_at_run_time(shell, relax):
    result = shell(f"./relax {CODELETS} 5", relax)
    np.testing.assert_allclose(numbers(result.stdout)[:16], expected(5), rtol=1e-5)
    assert "'an.optionOfAnotherVersion' = '1' is not known here" in result.stderr
    assert "debug.instrument" not in result.stderr


def test_what_options_ask_for_in_vain_is_said_once(shell, relax):
    def said(options: str) -> list[str]:
        lines = shell("./relax relax.gp 5", relax, POPLAR_ENGINE_OPTIONS=options).stderr.splitlines()
        return [line for line in lines if "autoReport" in line]

    text = "engine option 'autoReport.all' = 'true' has no effect here: "
    text += "the only file is the trace of autoReport.directory."
    assert said('{"autoReport.all": true}') == [
        f"emulator: warning: {text} Engine::printProfileSummary prints a profile"
    ]
    assert said('{"autoReport.all": "false"}') == []
    for option in ("debug.instrumentCompute", "debug.trace", "opt.enableInlining", "target.extendedMemory"):
        with pytest.raises(AssertionError, match=rf"{option} must be true or false, got 'yes'"):
            said(f'{{"{option}": "yes"}}')


def test_a_program_writes_its_timeline(shell, relax):
    """A file for each engine, in a folder that is made; what cannot be written is refused."""
    shell("./relax relax.gp 5", relax, POPLAR_ENGINE_OPTIONS='{"autoReport.directory": "report/here"}')
    trace = json.loads((relax / "report/here/trace.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    steps = [e for e in spans if e["tid"] == 1]
    assert len(steps) > 1 and [e["ts"] for e in steps] == sorted(e["ts"] for e in steps)
    assert any(e["args"]["executions"] == 5 for e in steps)
    assert sum(e["dur"] for e in spans if 1 < e["tid"] < 10) == pytest.approx(sum(e["dur"] for e in steps))
    for taken in ("relax.gp", "/proc/here"):  # before the run
        options = json.dumps({"autoReport.directory": taken})
        refused = shell("! ./relax relax.gp 5 2>&1", relax, POPLAR_ENGINE_OPTIONS=options)
        message = f"autoReport.directory must be a directory that can be written, got '{taken}'"
        assert message in refused.stdout and "poplar::invalid_option" in refused.stdout


def test_a_large_stream_is_a_warning(shell, tmp_path):
    source = """#include <poplar/Graph.hpp>
int main() {
  poplar::Graph graph(poplar::Target::createIPUTarget(1, "ipu2"));
  graph.addHostToDeviceFIFO("fits", poplar::HALF, 1 << 26);
  graph.addHostToDeviceFIFO("large", poplar::HALF, (1 << 26) + 1);
}
"""
    (tmp_path / "large.cpp").write_text(source)
    printed = shell("g++ -std=c++11 large.cpp -lpoplar -o large && ./large", tmp_path).stderr
    assert "warning: addHostToDeviceFIFO: stream 'large' has 134217730 bytes; the SDK documents" in printed
    assert "fits" not in printed


def test_the_first_program_of_the_readme(shell, tmp_path):
    source = re.search(r"```cpp\n(.*?)```", (HERE.parents[1] / "README.md").read_text(), re.DOTALL)
    assert source is not None
    (tmp_path / "double.cpp").write_text(source[1])
    first_line = source[1].splitlines()[0]
    result = shell(first_line.partition(": ")[2], tmp_path)
    assert numbers(re.sub(r"y: \[|\]", "", result.stderr)) == [2.0, 4, 6, 8, 10, 12, 14, 16]
    assert "OnTileExecute: double" in result.stdout


def test_what_nobody_wrote_is_poison_or_zero(shell, relax):
    command = "./relax relax.gp 5"
    assert np.isnan(numbers(shell(command, relax).stdout)[16:]).all()
    assert numbers(shell(command, relax, SPARQ_EMULATOR_FILL="zero").stdout)[16:] == [5] * 4


def test_reads_of_what_nobody_wrote_are_reported(shell, relax):
    lines = shell("./relax relax.gp 5", relax, SPARQ_EMULATOR_REPORT_READS="1").stderr.splitlines()
    reports = [line for line in lines if "nothing has written" in line]
    assert reports == [
        "emulator: field 'seen' of vertex Relax reads element 0 of variable 'seen', which nothing has written"
    ]


def test_cmake_finds_it(shell, toolkit, tmp_path):
    cmake = builds.tool("cmake")
    shell(f"{cmake} -S {HERE} -B . >log && {cmake} --build . >>log", tmp_path)
    result = shell("./relax relax.gp 3", tmp_path)
    np.testing.assert_allclose(numbers(result.stdout)[:16], expected(3), rtol=1e-5)
    assert str(toolkit / "lib") in (tmp_path / "CMakeCache.txt").read_text()


def test_types_that_a_device_has_of_its_own(shell, tmp_path):
    """Vectors without a header, constants of half, edges that are assigned to half, a size_t of 32 bits."""
    shell(f"popc -O1 {HERE}/no_header_codelets.cpp -o pairs.gp", tmp_path)
    shell(f"g++ -std=c++11 -Wall -Wextra -Werror {HERE}/device_types.cpp -lpoplar -o device_types", tmp_path)
    command = f"./device_types {HERE}/device_types_codelets.cpp pairs.gp saved"
    lines = shell(command, tmp_path, SPARQ_EMULATOR_IPUS="1").stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]  # and from the file that serializeExecutable wrote
    got = numbers(lines[0])
    between = [0.1] * 3 + [-1.5, 0.25, 0.125, 0.25, 0.125, 1, -0.5, 0.5, -1]
    assert got[:12] == np.array(between, np.float16).view(np.uint16).tolist()
    # three times each number, pairs added, and their places and one
    assert got[12:] == [-6 + 2.25 + 0 + 1, 0.375 + 9 + 2 + 1]


def test_what_is_declared_works_or_says_what_it_is(shell, tmp_path):
    """Each call that is not implemented throws with its own name; the others give what they should."""
    shell(f"g++ -std=c++11 -Wall -Wextra -Werror {HERE}/declared.cpp -lpoplar -o declared", tmp_path)
    lines = [line.split("|") for line in shell("./declared", tmp_path).stdout.splitlines()]
    refused = {name: message for name, message in lines if "not implemented" in message}
    assert all(
        message == f"{name}: not implemented in the emulator [not_implemented]"
        for name, message in refused.items()
    )
    assert len(refused) == 32
    assert [(name, text.strip()) for name, text in lines if name not in refused] == [
        ("control", str(1 | 1 << 1 | 1 << 2 | 1 << 19 | 1 << 20)),
        ("tensors", "1 1"),
        ("streamed", "1 2 3 4"),
        ("asked", "fcpcpcpcpi"),
        ("streamed", "1 2 3 4"),
        ("asked", "fcfcfcfc"),
        ("zeros", "0 0"),
        ("contiguous", "6 1 1"),
        ("unbroadcast", "{1,2,3}"),
        ("constant", "1 3 0"),
        ("limits", "65535 -65504"),
        ("json", '{"a":1,"b":[true,"x\\"\\u000a"]}'),
        ("drivers", "1"),
        ("target", '{"an.option":"7"} {}'),
        ("one of all", "{6} index_error"),
        ("regions", "011"),
        ("keys", "2 2"),
        ("same", "10000"),
        ("profile", "."),
        ("from the environment", '{"debug.allowOutOfMemory":"true"}'),
        ("quarter", "{F143, 1} 3"),
        ("code", "MEMORY_ERROR 1"),
    ]


POPUTIL = """\
ns::V<float,x,y,true,3>
Plain
grains|0-4|4-8|8-10|
least|0-6|6-10||
offset|2-4|4-6|6-8|0-2
down|6-8|4-6|2-4|0-2
bytes|0-32|32-64|64-96|
moved|72-96|0-24|24-48|48-72
parts|0-5 10-11|11-12 20-25|25-30
workers|0-3|3-5 10-11|11-12 20-22|22-25|25-28|28-30
few|0-5 10-12 20-22|22-30
short|0-4 4-5 10-12 20-22|22-26 26-30
sequences|0-3|3-4
sequences|4-7 9-10
splitRegions: maxPartitions must be at least 6, got 2
0-6 8-9|24|9|2
10
{2,1,4}{2,1,4}
"""


def test_poputil(shell, tmp_path):
    """The part of PopLibs that programs need first."""
    shell(f"g++ -std=c++11 -Wall -Wextra -Werror {HERE}/poputil.cpp -lpoputil -lpoplar -o poputil", tmp_path)
    *lines, copied = shell("./poputil", tmp_path).stdout.splitlines(keepends=True)
    assert "".join(lines) == POPUTIL
    assert numbers(copied) == [1, 2, 3, 4, 5, 5, 5, 5, 1, 2, 3, 4, 6, 6, 6, 6]
