# SPDX-License-Identifier: Apache-2.0
"""Cycle estimates, by hand: every formula of vertex_cycles.hpp, and what the steps of programs make of them.

The numbers follow from the rules of cycles.hpp. A worker starts for 20 slots, a pass of a loop costs 2 beside
its work, and six workers share a tile: its vertex takes 6 * (20 + slots) cycles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "poplar_ops" / "src"


def tile(slots: float) -> int:
    return int(6 * (20 + slots))


#: a call, and its cycles: of a tile, or (for a vertex of one worker) the worker's slots
EXPECTED = {
    # 48 fours of positions, 8 for a worker; 16 pairs of components; scale, store, pass
    "approxScores(192, 2, 32)": tile(2 * 8 * (16 * (12 + 2) + 2 + 2 + 2)),
    "tailScores(192, 2, 32)": tile(2 * 8 * (16 * (12 + 2) + 2 + 2 + 2)),
    "columnOffsets(3, 32)": tile(3 * (6 * (4 + 2) + 6)),
    "blockCoefficients(4, 2, 32)": tile(2 * (32 * ((5 + 2) + (1 + 1 + 1 + 2 + 1 + 1 + 2)) + 6 + 14)),
    "indexScores(3, 2, 33, 4)": tile(4 * (10 + 2 * (33 * (3 + 15 + 2) + 3 * 24 + 8 * (2 + 1 + 2)))),
    "indexScores(3, 2, 33, 8)": tile(8 * (10 + 2 * (33 * (3 + 14 + 2) + 4 * (2 + 1 + 2)))),
    # a load more of each component than from columns that were streamed
    "residentScores(3, 2, 33, 4)": tile(4 * (10 + 2 * (33 * (4 + 15 + 2) + 3 * 24 + 8 * (2 + 1 + 2)))),
    "residentScores(3, 2, 33, 8)": tile(8 * (10 + 2 * (33 * (4 + 14 + 2) + 4 * (2 + 1 + 2)))),
    "residentCoefficients(4, 2, 32)": tile(2 * (32 * ((6 + 2) + (1 + 1 + 1 + 2 + 1 + 1 + 2)) + 20) + 6 * 6),
    "groupCoefficients(4, 4, 32)": tile(2 * (32 * ((9 + 2) + (12 + 2)) + 2 * 20) + 6 * 6),
    "groupCoefficients(4, 3, 32)": tile(32 * (11 + 14) + 40 + 32 * ((6 + 2) + (6 + 2)) + 20 + 6 * 6),
    # of a worker four words: 35 components, of which three are behind the last four
    "groupScores(3, 4, 35)": tile(4 * (10 + 35 * (11 + 2) + 4 * (8 * (28 + 2) + 3 * (10 + 2) + 2 * 10 + 6))),
    "storeRecords(64, 17)": tile(12 + 11 * (17 * 4 + 6)),
    "nextBlock()": 20 + 3,
    "blockOffsets(64)": tile(11 * 7),
    # four entries to a worker: two halvings, of 7 ways and 3 hits
    "findHot(24, 40, 4)": tile(24 + 4 * 3 + 40 * 8 + 7 * (2 * 9 + 3) + 3 * 9),
    "findHot(6, 2, 4)": tile(24 + 3 + 2 * 8 + 3 + 9),
    "freeWays(24)": tile(4 * 4 + 14),
    "sumFound(8)": tile(8 * 5 + 2),
    "mergeSlots(7, 7)": tile(2 * ((4 * 3 + 2) + 3 * 5 + 4)),
    "listMisses(24)": tile(10 + 5 * (11 + 2) + 4 * (9 + 2)),
    # 7 of 26 misses, each of which looks at 10 ways
    "dealSlots(26, 10, 4)": 20 + 20 + 4 * 5 + 40 + int(7 * (10 * 4.5 + 14)),
    "dealSlots(26, 10, 4, true)": 20 + 20 + 4 * 5 + 40 + 7 * (10 * 9 + 14),
    "moreMisses(5, 2)": 20 + 5 * 4 + 2 * 8 + 8,
    "mostMiss(5)": 20 + 5 * 4 + 4,
    "headRows(7)": tile(2 * (7 + 2)),
    "firstMiss(3)": 20 + 3 * 4 + 2,
    "placeMisses(64, 20)": tile(32 + 6 * 3 + 12 * 4),
    "placeMisses(64, 7)": tile(32 + 6 * 3 + 7 * 4),
    "waveRows(7, 5)": tile(2 * (5 * 5 + 5)),
    # 16 pairs of a row, 3 for a worker; 8 slices, 2
    "cutRows(4, 96, 12)": tile(3 * (12 * 4 + 8) + 2 * (6 + 4 * (3 * 4 + 4))),
    # 4 rows of 12 eights, 8 for a worker: two fours of 9, a scale of 6, 3; four words stored, 2 a pass
    "cutCodes(4, 96, 12)": tile(8 * (2 * 9 + 6 + 3 + 8 + 2) + 2 * (6 + 4 * (3 * (9 + 6 + 1 + 2) + 6))),
    "codeColumns(96)": tile(2 * 32 * (2 * (2 * 9 + 6 + 3 + 3) + 8 * 4 + 2)),
    # of 3 rows 5 twos each, 3 for a worker
    "roundRows(3, 136)": tile(
        3 * (2 * (2 * 18 + 14 + 2 + 4 + 2 + 2 + 3 + 4 * (4 + 12 + 2 + 6 + 12 + 1 + 2)) + 8)
    ),
    "insertRows(20, 16, 2)": tile(18 + 4 * 7 + 3 * (4 * 4 + 8)),
    "insertRows(20, 18, 1)": tile(18 + 4 * 7 + 5 * (9 * 4 + 8)),
    "dealNewest(10)": 20 + 10 * 9 + 16,
    "insertNewest(8, 16)": tile(8 * 4 + 8 + 2 * 4),
    "forgetHot(17)": tile(3 * 4 + 4),
    # of 4 entries of a worker 3 are the part's, or all
    "laneSums(24, 4, 2, 64)": tile(4 * 7 + 3 * (6 + 4 * (14 + 2) + 8)),
    "laneSums(24, 1, 1, 72)": tile(4 * 7 + 4 * (6 + 4 * (8 + 2) + (4 + 2) + 6)),
    "laneSums(24, 1, 5, 64)": tile(4 * 7 + 4 * (6 + 4 * (26 + 2) + 12 + 4 * (8 + 2) + 6)),
    "laneScores(7, 2)": tile(3 * (4 + 4 + 12 + 2)),
    # of 24 pairs of components in three blocks four for a worker
    "hotValues(130, 16, 2)": tile(4 * (32 * (12 + 2) + 12)),
    "hotValues(20, 4, 1)": tile(10 * (10 + 2) + 10),
    "hotValues(128, 4, 7)": tile((32 * (18 + 2) + 16) + (32 * (12 + 2) + 12) + (32 * (10 + 2) + 10)),
    "groupMagnitude(128, 2)": tile(3 * (2 * (12 + 2) + 8)),
    "magnitudeSums(128, 7)": tile(2 * (16 * 14 + 5)),
    "componentRanks(6, 128)": tile(32 * (6 + 2) + 44),
    # the fourth worker: 52 masks before its range, 26 components, a quarter of them selected
    "componentList(128, 1, 32)": tile(15 + 26 * (4 + 2) + 26 * (4 + (2 + 5) / 4)),
    # the second worker, with three heads
    "componentList(64, 14, 16)": tile(15 + 13 * (4 + (2 + 70) / 4) + 3 * (8 * 14 + 5 + 40)),
    "partialMax(192, 2, 6)": tile(2 * (8 * (2 + 2) + 6)),
    "partialMax(192, 8, 1)": tile(2 * (48 * (2 + 2) + 6)),
    "reduceMax(13, 1)": tile(2 * 3),
    "reduceMax(12, 4)": tile(2 * 2 * 3),
    "reduceMax(12, 3)": tile(2 * 3 * 4),
    # 36 slots for the weights of a pair; of both heads 64 fours with positions, 32 without
    "softmaxWeights(128, 192, 2)": tile(2 * 12 + 11 * (2 * 36 + 2) + 6 * 6),
    "blockSums(7)": tile(2 * (8 * 6 + 5)),
    "foldSums(96, 2)": tile(24 * 6),
    "groupKeys(192, 2)": tile(80 + 8 * (2 * 16 + 2 + 2 + 6 + 4 * 6 + 2)),
    "givenKeys(192)": tile(80 + 32 * (1 + 6 + 2)),
    # clear, settle the digit of two partial sums, count
    "keyHistogram(192, 2)": tile(80 + (6 * (5 * 4 + 3) + 90) + 8 * (16 + 2 + 6)),
    "sumCounts(7, 4)": tile(2 * (4 * 8 + 6)),
    "markKeys(192, 2)": tile((6 * (5 * 4 + 3) + 90) + 32 * 5 + 16 + 10 + 12),
    "expandMarks(64, 12, 128)": tile(15 + 8 * (8 + 9) + 8 * 10 + 50 + 2 * (12 + 18 / 2)),
    "selectedSums(3, 2, 8)": tile(10 + 2 * (4 + 13 * 8 + 4 + 5)),
    "rowScores(3, 4, 128)": tile(2 * (16 * (16 + 2) + 5 + 7)),
    "rowWeights(3, 2)": tile(12 + 2 + 36 + 6),
    "rowWeights(7, 3)": tile(3 * 12 + 4 * (36 + 6)),
    "listSums(128, 2)": tile(16 * 10 + 2 * 11 + 16),
    "weightedValues(2, 64, 8, 2)": tile(3 * (64 * 4 + 1 + 12)),
    "weightedValues(2, 200, 16, 2)": tile(2 * (64 * 13 + 4 + 12)),
    "weightedValues(1, 20, 16, 1)": tile(20 * 13 + 4 + 12),
    "foldBlocks(3, 32, 2)": tile(2 * (3 * 6 + 12)),
    "combine(2, 16, 2)": tile(3 + 3 + 5 + 2 * 7 + 24 + 12 + 1 + 53),
    "combineList(2, 16, 2)": tile(5 + 2 * 7 + 53),
    "combineDense(16, 2)": tile(4 * (3 + 2 + 1) + 24 + 5),
    "denseScores(64, 2, 128)": tile(11 * 2 * (16 * 18 + 5 + 4)),
    "rowOffsets(20)": tile(4 * 6),
    "longestRow(64)": tile(11 * 6),
    "nextWave()": 20 + 28,
    "appendOffsets()": 20 + 8,
    "appendTail(128)": tile(10 + 22 * 9),
    "appendSum(48)": tile(12),
    "advanceLength()": 20 + 10,
    "anyFull(5)": 20 + 5 * 4,
    "flushOffsets(128)": tile(12 + 22 * 4),
    "chunkFull()": 20 + 8,
    "quantiseTail(12)": tile(2 * (8 * (4 * 11 + 2) + 14 * 4 + 40 + 64 * 15)),
    "fillLength()": 20 + 10,
    "fillOffsets(64)": tile(11 * 5),
    "fillColumns(128, 64)": tile(6 * 16 * (8 + 32 + 12 + 2)),
    "fillTail(128, 64)": tile(22 * (16 * 4 + 6)),
    "fillSum(64, 48)": tile(64 * 10 + 8),
    "fillIndex(12, 3)": tile(2 * 3 * 1424),
    "fillTailIndex(12, 9)": tile(2 * (9 * 4 + 16 * 4 + 6)),
    "activeToken()": 20 + 8,
    "listShares(7, 4)": tile(2 * (4 * (3 + 3 + 2 + 2 + 2 + 2) + 4)),
    "sumShares(7, 8)": tile(2 * (8 * 5 + 4)),
    "nextStep()": 20 + 8,
    # two positions to a worker, a list of 12: four halvings
    "addStep(8, 12)": tile(24 + 2 * 7 + 4 * 9 + 2 * 13),
    "addStep(64, 5)": tile(24 + 11 * 7 + 3 * 9 + 5 * 13),
    "stridedCount()": 20 + 2 * 40 + 14,
    "stridedRows(7)": tile(2 * 40 + 14 + 2 * 11),
    "moveLayer(4, 128)": tile(4 * (22 * 4 + 6)),
    "moveTail(4, 16, 144)": tile(4 * ((3 + 24) * 4 + 12)),
    # another number of pieces for each worker
    "indexScores(1, 1, 16, 4)": tile(2 * (10 + 16 * (3 + 15 + 2) + 24 + 8 * 5)),
    "groupMagnitude(56, 1)": tile(2 * (14 + 8)),
    "markKeys(448, 1)": tile((3 * (5 * 4 + 3) + 90) + 3 * 198),
    "weightedValues(1, 64, 12, 1)": tile(64 * 4 + 13),
    "foldBlocks(1, 56, 1)": tile(2 * (6 + 12)),
    "combineDense(48, 4)": tile(4 * 53),
    "appendSum(56)": tile(2 * 12),
    "fillSum(10, 56)": tile(2 * (10 * 10 + 8)),
}


def test_every_formula(tmp_path: Path) -> None:
    text = (SOURCES / "vertex_cycles.hpp").read_text()
    assert set(re.findall(r"inline std::uint64_t (\w+)\(", text)) == {call.split("(")[0] for call in EXPECTED}
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler: the estimates of vertices were not compared")
    calls = "\n".join(f'print("{call}", {call});' for call in EXPECTED)
    source, binary = tmp_path / "cycles.cpp", tmp_path / "cycles"
    source.write_text(
        '#include "vertex_cycles.hpp"\n#include <cstdio>\nusing namespace sparq::cycles;\n'
        "static void print(const char *call, unsigned long long n) "
        '{ std::printf("%s = %llu\\n", call, n); }\n'
        f"int main() {{\n{calls}\n}}\n"
    )
    subprocess.run([compiler, "-std=c++17", f"-I{SOURCES}", str(source), "-o", str(binary)], check=True)
    lines = subprocess.run([str(binary)], capture_output=True, check=True, text=True).stdout.splitlines()
    assert dict(line.split(" = ") for line in lines) == {call: str(n) for call, n in EXPECTED.items()}


#: steps of a query with 2 KV heads of 2 heads each, on 16 tiles a KV head: 256 positions of the wave on each
#: part, and 64 of the tail on eight of them, so 320 on the busiest; and what a worker gets of that
STEPS = {
    "sparq-streaming": {
        "approx_scores": tile(2 * 11 * (8 * 14 + 6)),
        "tail_scores": tile(2 * 3 * (8 * 14 + 6)),
        "partial_max": tile(27 * 4 + 6),  # three pieces of a head, each a worker's
        "softmax_weights": tile(2 * 12 + 27 * 74),
        "block_sums": tile(2 * (8 * 6 + 5)),  # 2 * 320 / 64 blocks
        "fold_sums": tile(18 * 6),  # 72 blocks, a head to a worker
        "group_keys": tile(80 + 14 * (2 * 16 + 36)),
        "sum_counts": tile(16 * 8 + 6),  # two digit pairs on a part
        "key_histogram": tile(80 + (3 * 23 + 90) + 14 * 24),
        "mark_keys": tile((3 * 23 + 90) + 2 * 198),  # 10 pieces of 32
    },
    "dense-streaming": {
        "dense_scores": tile(43 * 2 * (8 * 18 + 9)),
        "weighted_values": tile(11 * (64 * 13 + 16)),  # 4 blocks, 2 heads, 8 eights of components
        "fold_blocks": tile(64 * 6 + 12),
        "combine": tile(53),
    },
}


@pytest.mark.parametrize("kernel", STEPS)
def test_steps_of_a_query(kernel: str) -> None:
    """That the builders hand the formulas what they mean."""
    planning: Any = pytest.importorskip("sparq_ipu.planning")
    pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
    shape = dict(batch=1, n_heads=4, n_kv_heads=2, head_dim=64, seq_len=4096, n_tiles=32)
    steps = planning.plan(**shape, kernel=kernel, rank=16, top_k=64, baseline=False).steps
    cycles = {step["name"].split("/")[-1]: step["tile_cycles"] for step in steps}
    assert {name: cycles[name] for name in STEPS[kernel]} == STEPS[kernel]


@pytest.mark.slow
def test_the_document_has_the_compute_of_today() -> None:
    """Of its table the columns of the codelets as they are; those of before are history."""
    planning: Any = pytest.importorskip("sparq_ipu.planning")
    pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
    text = (SOURCES.parents[1] / "docs" / "device_model.md").read_text()
    _, _, table = text.partition("| compute, us, by these rules |")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:6]]
    for label, _, short, _, long in rows:
        kernel, _, index = label.partition(" int")
        for seq_len, us in ((1024, short), (16384, long)):
            options = dict(index_bits=int(index)) if index else {}
            plan = planning.plan(seq_len=seq_len, kernel=kernel, baseline=False, **options)
            assert f"{plan.seconds_by_category['compute'] * 1e6:.1f}" == us, (label, seq_len)
