# SPDX-License-Identifier: Apache-2.0
"""Estimates of cycles against the operations of the codelets, counted while each vertex runs
(helpers/operations.py).

A count has a least, if the two sides of every bundle issue together, and a most, if they never do and no
address is part of an access. Estimates take few bundles to be full, so they are compared with a number two
thirds of the way up. They must be within `BAND` of it, where neither a half nor a double of any is; and what
they grow by when an argument is doubled must be in the same proportion.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Iterator

import operations
import pytest
import vertex
import vertex_cases
from vertex_cases import CASES, CODELETS, SOURCE, arguments_of, evaluated, runs

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "emulator"
CALL = 20  # slots of a worker's start and end, which are not in the codelet

#: an estimate, as a part of what is counted
BAND = (0.7, 1.4)
#: and where it is known to be another: why, and how much
EXCEPTIONS = {
    # loops that an IPU counts for nothing
    "AnyFull": 0.57,
    "FirstMiss": 0.66,
    "ReduceMax#one": 0.57,
    "SumFound": 0.6,
    "SumShares": 0.68,
    "WaveRows": 0.66,
    # short loops, of which the host's compiler keeps one counter more
    "AnyClash": 0.64,
    "InsertRows": 0.68,
    "KeyHistogram": 0.75,
    "MarkKeys": 0.8,
    "PlaceFirst": 0.68,
    "PlaceMisses": 0.68,
    # eight lanes take all registers of an IPU, not of the host
    "ListSums": 1.76,
    "RowScores": 1.43,
    # codes are masked in integer registers one by one, products of fp16 made by fp32
    "CodeColumns": 0.6,
    "CutCodes": 0.62,
    # the same, and an outer product, one instruction of an IPU, made of products and sums
    "GroupScores": 0.43,
    "GroupScores#2bits": 0.43,
    "LentScores": 0.43,
    "PairScores<half>": 0.43,
    "PairScores<float>": 0.43,
    # choices without a branch, which an IPU does not have
    "FillIndex": 1.4,
    "IndexBlock": 1.41,
    "QuantiseTail": 1.41,
}


def run(name: str, values: dict[str, Any]) -> None:
    """The vertex alone, with edges of the sizes that its source says."""
    fields, settings = arguments_of(name, values)
    vertex.run(name.partition("#")[0], fields, **settings)


def slots_of(name: str, cycles: int) -> float:
    """Of the busiest worker; six share a tile, unless there is but one."""
    alone = f"struct {re.split('[<#]', name)[0]} : poplar::Vertex" in SOURCE
    return cycles / (1 if alone else operations.WORKERS)


@pytest.fixture(scope="module")
def estimates() -> dict[tuple[str, str], float]:
    """Of each vertex and run: slots."""
    return {key: slots_of(key[0], cycles) for key, cycles in vertex_cases.estimates().items()}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[operations.Counts]:
    clang = shutil.which("clang++")
    if clang is None:
        pytest.skip("Clang is not installed: the operations of codelets were not counted")
    version = re.findall(
        r"version (\d+)", subprocess.run([clang, "--version"], capture_output=True, text=True).stdout
    )
    if version[:1] != ["14"]:  # another one writes other code, of which nobody looked at the counts
        pytest.skip(f"operations of codelets are counted with Clang 14, got {version}")
    where = tmp_path_factory.mktemp("counted")
    library = operations.build(EMULATOR, CODELETS, where, clang)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARQ_CODELETS", str(where))
        patch.setenv("SPARQ_EMULATOR_CHECK_WORKERS", "0")  # which would run each worker twice
        yield operations.Counts(library)


def counted(counts: operations.Counts, name: str, values: dict[str, Any]) -> float:
    counts.clear()
    run(name, values)
    least, most = counts.busiest()
    return (least + 2 * most) / 3


@pytest.mark.parametrize("name", CASES)
def test_an_estimate_is_what_a_codelet_does(
    name: str, estimates: dict[Any, float], counts: operations.Counts
) -> None:
    whole, operated = estimates[name, ""], counted(counts, name, evaluated(CASES[name][1]))
    ratio = whole / (CALL + operated)
    low, high = (0.85 * EXCEPTIONS[name], 1.15 * EXCEPTIONS[name]) if name in EXCEPTIONS else BAND
    assert low < ratio < high, (whole, operated)
    for argument, values in runs(name):
        if argument:
            more, counted_more = estimates[name, argument] - whole, counted(counts, name, values) - operated
            expected = ratio * counted_more
            assert abs(more - expected) <= 0.35 * abs(expected) + 8, (argument, more, counted_more)


def test_every_vertex_and_every_estimate_is_compared() -> None:
    vertices = set(re.findall(r"^(?:template <class T> )?struct (\w+) : poplar::\w*Vertex", SOURCE, re.M))
    assert len(vertices) >= 100
    assert vertices <= {re.split("[<#]", name)[0] for name in CASES}
    formulas = [
        name
        for path in CODELETS.glob("*.cycles.hpp")
        for name in re.findall(r"^inline std::uint64_t (\w+)\(", path.read_text(), re.M)
    ]
    assert len(formulas) >= 80
    assert set(formulas) == {formula.partition("(")[0] for formula, _ in CASES.values()}
