# SPDX-License-Identifier: Apache-2.0
"""approx_scores.cpp and dense_scores.cpp: scores of positions, and which rows a wave reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from strategies import KINDS, tensors
from vertex import Layout, assert_bits, floats, run, word, words

from sparq_reference import numerics

GROUP, RANK = 2, 5


def approx(query: np.ndarray, columns: np.ndarray, inverse_temperature: np.ndarray) -> np.ndarray:
    """Contract E3, E6.2 in a few lines: ascending by component, from +0."""
    total = np.zeros((query.shape[0], columns.shape[1]), np.float32)
    for j in range(columns.shape[0]):
        total = total + query[:, j, None] * columns[j].astype(np.float32)
    return total * inverse_temperature[:, None]


@pytest.mark.parametrize("kind", KINDS)
def test_approx_scores_write_their_segment_only(kind: str) -> None:
    rng = np.random.default_rng(3)
    length, n_local, wave = 128, 3 * 128 + 64, 1
    columns = tensors(kind, (RANK, length), rng)
    query = tensors(kind, (GROUP, RANK), rng).astype(np.float32)
    inverse_temperature = np.array([0.125, 0.3], np.float32)
    out = run(
        "ApproxScores",
        dict(
            wave=word(wave),
            columns=columns,
            selectedQuery=query,
            inverseTemperature=inverse_temperature,
            scores=floats(GROUP, n_local),
        ),
        groupSize=GROUP,
        rank=RANK,
        length=length,
        nPositions=64,  # the last part of a wave may have less than its room
        partPositions=n_local,
    )
    expected = floats(GROUP, n_local)
    expected[:, wave * length : wave * length + 64] = approx(query, columns, inverse_temperature)[:, :64]
    assert_bits(out["scores"], expected)


def test_tail_scores_pick_their_components() -> None:
    rng = np.random.default_rng(4)
    tail = tensors("normal", (16, 64), rng)
    components = np.array([0, 3, 7, 8, 15], np.uint32)
    query = tensors("normal", (GROUP, RANK), rng).astype(np.float32)
    inverse_temperature = np.array([1.0, 0.1], np.float32)
    out = run(
        "TailScores",
        dict(
            tail=tail,
            components=components,
            selectedQuery=query,
            inverseTemperature=inverse_temperature,
            scores=floats(GROUP, 192),
        ),
        groupSize=GROUP,
        rank=RANK,
        tailLength=64,
        tailBegin=128,
        partPositions=192,
    )
    expected = floats(GROUP, 192)
    expected[:, 128:] = approx(query, tail[components], inverse_temperature)
    assert_bits(out["scores"], expected)


def test_column_offsets() -> None:
    columns = np.array([7, 60, 300], np.uint32)
    out = run(
        "ColumnOffsets",
        dict(wave=word(2), layer=word(3), columns=columns, offsets=words(2, 3)),
        rank=3,
        nOwn=2,
        firstChunk=3,
        chunksPerWave=5,
        nChunks=14,
        rowBase=1000,
        otherRows=500,
    )
    # chunks 2 * 5 + 3 and + 4, of which the second is beyond the last (13)
    assert out["offsets"].tolist() == [[3 * 500 + 1000 + c + 13 for c in (7, 60, 300)]] * 2


@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_dense_scores(head_dim: int) -> None:
    rng = np.random.default_rng(5)
    layout = Layout(2, 192, 128, 3, 0, 0, 1, 411)  # part 1 has 64 of each wave; of the last wave 27 - 128 < 0
    for part, wave, n in ((0, 0, 128), (1, 1, 64), (0, 2, 27), (1, 2, 0)):
        keys = tensors("normal", (128, head_dim), rng)
        keys[n:] = np.nan
        query = tensors("normal", (GROUP, head_dim), rng)
        out = run(
            "DenseScores",
            dict(
                filled=word(layout.filled),
                wave=word(wave),
                keys=keys,
                query=query,
                scores=floats(GROUP, layout.part_positions),
            ),
            groupSize=GROUP,
            headDim=head_dim,
            partPositions=layout.part_positions,
            part=part,
            stride=192,
            length=128,
            nWaves=3,
            scale=float(numerics.scale(head_dim)),
        )
        expected = floats(GROUP, layout.part_positions)
        scores = numerics.dot(query[:, None], keys[None, :n]) * numerics.scale(head_dim)
        expected[:, wave * 128 : wave * 128 + n] = scores
        assert_bits(out["scores"], expected)


@pytest.mark.parametrize("per_row", [1, 4])
def test_row_offsets(per_row: int) -> None:
    out = run(
        "RowOffsets",
        dict(wave=word(3), layer=word(2), rows=words(64 // per_row)),
        nRows=64 // per_row,
        rowsPerWave=192 // per_row,
        firstRow=5000 + 128 // per_row,
        lastRow=5000 + (3 * 192 + 160) // per_row - 1,
        layerRows=9000,
    )
    positions = 3 * 192 + 128 + np.arange(0, 64, per_row)
    last = 3 * 192 + 160 - per_row
    assert out["rows"].tolist() == (18000 + 5000 + np.minimum(positions, last) // per_row).tolist()


@pytest.mark.parametrize("n_slots", [1, 5, 6, 7, 20])
def test_longest_row_is_in_the_results_of_the_workers(n_slots: int) -> None:
    filled = np.random.default_rng(n_slots).integers(0, 1 << 24, n_slots).astype(np.uint32)
    out = run("LongestRow", dict(filled=filled, longest=words(6)), nSlots=n_slots, chunk=64)
    assert out["longest"].max() == filled.max() // 64 * 64
    assert (out["longest"][n_slots:] == 0).all()


def test_next_wave_stops_behind_the_longest() -> None:
    def one(wave: int, filled: list[int], chunk: int) -> tuple[int, bool]:
        slots = dict(filled=np.array(filled, np.uint32), longest=words(6))
        longest = run("LongestRow", slots, nSlots=len(filled), chunk=chunk)["longest"]
        out = run("NextWave", dict(longest=longest, wave=word(wave), more=np.array(False)), stride=100)
        return int(out["wave"]), bool(out["more"])

    def step(wave: int, filled: list[int], chunk: int) -> tuple[int, bool]:
        """The same wherever the longest is."""
        (result,) = {one(wave, list(order), chunk) for order in itertools.permutations(filled)}
        return result

    assert step(0xFFFFFFFF, [5, 250], 1) == (0, True)
    assert step(1, [5, 250], 1) == (2, True)
    assert step(2, [5, 250], 1) == (3, False)
    assert step(1, [5, 200], 1) == (2, False)
    assert step(1, [5, 255], 128) == (2, False)  # only 128 of the 255 are in full chunks
    assert step(1, [5, 250, 7], 1) == (2, True)
