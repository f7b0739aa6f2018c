# SPDX-License-Identifier: Apache-2.0
"""approx_scores.cpp and quantise.cpp: keys to records, records to approximate scores (contract E9)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_records import (
    BITS,
    GROUP,
    HEAD_DIM,
    INT_POISON,
    Problem,
    coefficients,
    make_problem,
    record_words,
    records,
    some_columns,
    without_sign_of_zero,
)
from near_ties import columns_with_a_step_near_a_tie
from strategies import KINDS, tensors
from vertex import assert_bits, floats, halves, run, word, words

from sparq_reference import key_index


def block_coefficients(x: Problem, columns: np.ndarray, n_blocks: int) -> dict[str, np.ndarray]:
    n_room, rank = columns.shape[1] // record_words(x.bits), len(x.columns)
    fields = dict(columns=columns, selectedQuery=x.query, **coefficients(n_room, rank))
    out = run("BlockCoefficients", fields, **x.settings(), nBlocks=n_blocks, limit=x.limit)
    return {name: out[name] for name in ("coefficients", "units", "offsets")}


def index_scores(
    x: Problem, columns: np.ndarray, made: dict[str, np.ndarray], n_blocks: int, wave: int, n_waves: int
) -> np.ndarray:
    """Of a wave, among those of all positions of a part."""
    length = x.columns.shape[1]
    fields = dict(wave=word(wave), columns=columns, inverseTemperature=x.inverse_temperature, **made)
    fields["scores"] = floats(GROUP, n_waves * length)
    sizes = dict(nBlocks=n_blocks, length=length, partPositions=n_waves * length)
    return run("IndexScores", fields, **x.settings(), **sizes)["scores"]


@pytest.mark.parametrize("bits", BITS)
@given(
    kind=st.sampled_from(KINDS),
    rank=st.sampled_from((1, 5, 16, 17, 32, 64)),
    n_blocks=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores_of_a_wave(bits: int, kind: str, rank: int, n_blocks: int, seed: int) -> None:
    x = make_problem(kind, bits, rank, 3, seed)
    columns = records(x.columns, bits)
    out = block_coefficients(x, columns, n_blocks)
    assert np.abs(out["coefficients"][:n_blocks]).max() <= x.limit
    assert (out["coefficients"][n_blocks:] == INT_POISON).all()
    length, wave, n_waves = 192, 1, 3
    expected = floats(GROUP, n_waves * length)
    expected[:, length : length + n_blocks * 64] = x.scores()[:, : n_blocks * 64]
    assert_bits(index_scores(x, columns, out, n_blocks, wave, n_waves), expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rank", [16, 17, 32, 128])
@pytest.mark.parametrize("signs", ["plus", "minus", "both"])
def test_largest_sums(bits: int, rank: int, signs: str) -> None:
    """Every coefficient at its limit and every code at its largest: sums that share a word must not meet."""
    columns = np.zeros((rank, 64), np.float16)
    columns[:, np.random.default_rng(rank).permutation(64)[:32]] = 1
    query = np.full((GROUP, rank), {"plus": 1, "minus": -1, "both": 1}[signs], np.float32)
    if signs == "both":
        query[:, rank // 2 :] = -1
    limit = key_index.coefficient_limit(bits, rank)
    x = Problem(columns, query, np.ones(GROUP, np.float32), float(limit), bits)
    stored = records(columns, bits)
    out = block_coefficients(x, stored, 1)
    np.testing.assert_array_equal(out["coefficients"][0], np.sign(query) * limit)
    assert_bits(index_scores(x, stored, out, n_blocks=1, wave=0, n_waves=1), x.scores())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("filled", [1024, 1024 + 128, 1024 + 129, 1024 + 250, 1024 + 256, 1024 + 999])
@pytest.mark.parametrize("kind", ["normal", "huge"])
def test_scores_of_the_tail(bits: int, filled: int, kind: str) -> None:
    """Piece 1 of 128 positions: positions 128 to 255 behind the last full chunk."""
    tail_length, piece, rank = 128, 1, 5
    rng = np.random.default_rng(filled)
    columns = some_columns(kind, (HEAD_DIM, tail_length), rng)
    components = np.array([0, 3, 7, 8, 15], np.uint32)
    query = tensors(kind, (GROUP, rank), rng).astype(np.float32)
    x = Problem(columns[components], query, np.array([0.125, 0.3, 1.7], np.float32), 0.0, bits)
    n = min(max(filled - 1024 - 128, 0), tail_length)
    n_complete = n // 64
    index = records(columns, bits).reshape(HEAD_DIM, 2, -1)
    index[:, n_complete:] = 0xDEADBEEF  # nobody reads it
    open_block = halves(HEAD_DIM, 64)
    open_block[:, : n - n_complete * 64] = columns[:, n_complete * 64 : n]
    shared = dict(
        filled=word(filled),
        tailIndex=index.reshape(HEAD_DIM, -1),
        components=components,
        selectedQuery=query,
    )
    settings = dict(x.settings(), piece=piece, tailLength=tail_length, chunk=1024)
    limit = float(key_index.coefficient_limit(bits, rank))
    out = run("TailCoefficients", dict(shared, **coefficients(2, rank)), **settings, limit=limit)
    scored = run(
        "TailIndexScores",
        dict(
            shared,
            tail=open_block,
            coefficients=out["coefficients"],
            units=out["units"],
            offsets=out["offsets"],
            inverseTemperature=x.inverse_temperature,
            scores=floats(GROUP, 64 + tail_length),
        ),
        **settings,
        tailBegin=64,
        partPositions=64 + tail_length,
    )
    total = np.zeros((GROUP, tail_length), np.float32)
    for j in range(rank):
        total += query[:, j, None] * x.columns[j].astype(np.float32)
    expected = total * x.inverse_temperature[:, None]
    expected[:, : n_complete * 64] = x.scores()[:, : n_complete * 64]
    assert_bits(scored["scores"][:, 64 : 64 + n], expected[:, :n])
    assert_bits(scored["scores"][:, :64], floats(GROUP, 64))
    behind = 64 + -(-n // 4) * 4  # four positions at a time
    assert_bits(scored["scores"][:, behind:], floats(GROUP, 64 + tail_length - behind))


@pytest.mark.parametrize("bits", BITS)
@given(
    kind=st.sampled_from(KINDS), n=st.sampled_from((64, 0, 63, 127, 128, 190)), seed=st.integers(0, 2**32 - 1)
)
def test_fill_index(bits: int, kind: str, n: int, seed: int) -> None:
    columns = some_columns(kind, (HEAD_DIM, 192), np.random.default_rng(seed))
    whole, record = n // 64, record_words(bits)
    expected = words(HEAD_DIM, 3 * record)
    expected[:, : whole * record] = records(columns[:, : whole * 64], bits) if whole else expected[:, :0]
    columns[:, n:] = np.nan
    out = run(
        "FillIndex",
        dict(columns=columns, index=words(HEAD_DIM, 3 * record)),
        n=n,
        headDim=HEAD_DIM,
        indexBits=bits,
        columnWords=3 * record,
        tailLength=192,
    )
    assert_bits(without_sign_of_zero(out["index"], bits), expected)


@pytest.mark.parametrize("bits", BITS)
def test_steps_near_a_tie(bits: int) -> None:
    """Ranges whose step is another one where it is divided, and not multiplied by an inverse."""
    columns = columns_with_a_step_near_a_tie(HEAD_DIM, bits)
    sizes = dict(n=64, headDim=HEAD_DIM, indexBits=bits, columnWords=record_words(bits), tailLength=64)
    index = words(HEAD_DIM, record_words(bits))
    out = run("FillIndex", dict(columns=columns, index=index), **sizes)
    assert_bits(out["index"], records(columns, bits))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("filled", "full", "block"),
    # of a chunk of 256 positions, the block that ends where the tokens do
    [(64, 1, 0), (128, 1, 1), (192, 0, None), (256, 1, 3), (512 + 192, 1, 2), (512, 1, 3), (100, 0, None)],
)
def test_quantise_tail(bits: int, filled: int, full: int, block: int | None) -> None:
    tail = some_columns("normal", (HEAD_DIM, 64), np.random.default_rng(filled))
    record = record_words(bits)
    out = run(
        "QuantiseTail",
        dict(filled=word(filled), full=word(full), tail=tail, tailIndex=words(HEAD_DIM, 4 * record)),
        nComponents=HEAD_DIM,
        indexBits=bits,
        columnWords=4 * record,
        chunk=256,
    )
    expected = words(HEAD_DIM, 4 * record)
    if block is not None:
        expected[:, block * record : (block + 1) * record] = records(tail, bits)
    assert_bits(out["tailIndex"], expected)


@pytest.mark.parametrize(
    ("filled", "block_full", "full"), [(512, 1, 1), (1024, 1, 1), (512, 0, 0), (576, 1, 0), (64, 1, 0)]
)
def test_chunk_full(filled: int, block_full: int, full: int) -> None:
    fields = dict(filled=word(filled), blockFull=word(block_full), full=word(9))
    assert run("ChunkFull", fields, chunk=512)["full"] == full


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("held", "n"),
    # chunk 2 is positions 256 to 383
    [(256, 0), (257, 1), (319, 63), (320, 64), (364, 108), (383, 127), (384, 0), (255, 0), (700, 0)],
)
def test_fill_tail_index_where_the_row_ends(bits: int, held: int, n: int) -> None:
    rng = np.random.default_rng(held)
    columns, record = tensors("normal", (HEAD_DIM, 128), rng), record_words(bits)
    index = rng.integers(0, 2**32, (HEAD_DIM, 2 * record), np.uint32)
    out = run(
        "FillTailIndex",
        dict(
            held=word(held),
            columns=columns,
            columnIndex=index,
            tail=halves(HEAD_DIM, 64),
            tailIndex=words(HEAD_DIM, 2 * record),
        ),
        index=2,
        chunk=128,
        nComponents=HEAD_DIM,
        indexBits=bits,
        columnWords=2 * record,
    )
    whole, rest = n // 64 * 64, n % 64
    expected, expected_index = halves(HEAD_DIM, 64), words(HEAD_DIM, 2 * record)
    expected[:, :rest] = columns[:, whole:n]
    expected_index[:, : whole // 64 * record] = index[:, : whole // 64 * record]
    assert_bits(out["tail"], expected)
    assert_bits(out["tailIndex"], expected_index)
