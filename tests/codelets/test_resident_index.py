# SPDX-License-Identifier: Apache-2.0
"""resident_index.cpp: the key index that stays on the tiles, what it is made of and what it says."""

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
from strategies import KINDS
from vertex import assert_bits, floats, run, word, words

LAYER, N_LAYERS = 1, 3
N_BLOCKS, FIRST_BLOCK = 3, 2  # of a part: positions 128 to 319
#: what scores are made of
MADE = ("coefficients", "units", "offsets")


def some_words(seed: int, *shape: int) -> np.ndarray:
    """An index in which other records are."""
    return np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32)


@pytest.mark.parametrize("bits", BITS)
@given(
    kind=st.sampled_from(KINDS),
    rank=st.sampled_from((1, 5, 16)),
    n_full=st.sampled_from((3, 0, 1, 2)),
    behind=st.sampled_from((0, 1, 63)),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores(bits: int, kind: str, rank: int, n_full: int, behind: int, seed: int) -> None:
    """Of the full blocks of a part, from the records of the selected components of its layer."""
    x = make_problem(kind, bits, rank, N_BLOCKS, seed)
    column_words = N_BLOCKS * record_words(bits)
    components = np.sort(np.random.default_rng(seed).permutation(HEAD_DIM)[:rank]).astype(np.uint32)
    index = some_words(seed, N_LAYERS, HEAD_DIM, column_words)
    index[LAYER, components] = records(x.columns, bits)
    filled = (FIRST_BLOCK + n_full) * 64 + behind
    if n_full == N_BLOCKS:
        filled += 640  # positions of other parts
    shared = dict(
        filled=word(filled), index=index, columns=(LAYER * HEAD_DIM + components) * np.uint32(column_words)
    )
    sizes = dict(groupSize=GROUP, rank=rank, indexBits=bits, firstBlock=FIRST_BLOCK, nBlocks=N_BLOCKS)
    out = run(
        "ResidentCoefficients",
        dict(shared, selectedQuery=x.query, **coefficients(N_BLOCKS, rank)),
        **sizes,
        limit=x.limit,
    )
    assert np.abs(out["coefficients"][:n_full]).max(initial=0) <= x.limit
    assert (out["coefficients"][n_full:] == INT_POISON).all()
    n_local = N_BLOCKS * 64 + 64
    scored = run(
        "ResidentScores",
        dict(
            shared,
            **{name: out[name] for name in MADE},
            inverseTemperature=x.inverse_temperature,
            scores=floats(GROUP, n_local),
        ),
        **sizes,
        partPositions=n_local,
    )
    expected = floats(GROUP, n_local)
    expected[:, : n_full * 64] = x.scores()[:, : n_full * 64]
    assert_bits(scored["scores"], expected)


def group_coefficients(
    x: Problem, first_block: int = 0, n_lent: int = 0, **fields: np.ndarray
) -> dict[str, np.ndarray]:
    """Of the blocks of a problem; `fields` as of every vertex that reads the index."""
    (group, rank), n_blocks = x.query.shape, x.columns.shape[1] // 64
    outputs = dict(
        lent=words(rank * n_lent or 1),
        coefficients=floats(n_blocks, (group + 1) // 2, rank, 2),
        units=floats(n_blocks, group),
        offsets=floats(n_blocks, group),
    )
    sizes = dict(groupSize=group, rank=rank, indexBits=x.bits, firstBlock=first_block, nBlocks=n_blocks)
    fields = dict(fields, selectedQuery=x.query, **outputs)
    return run("GroupCoefficients", fields, **sizes, nLent=n_lent, limit=x.limit)


@given(
    kind=st.sampled_from(KINDS),
    group=st.sampled_from((2, 3, 5)),
    rank=st.sampled_from((1, 4, 7, 16)),
    n_full=st.sampled_from((3, 0, 1)),
    lent=st.sampled_from(((4, 0), (4, 2), (4, 4), (2, 0))),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores_of_a_group(
    kind: str, group: int, rank: int, n_full: int, lent: tuple[int, int], seed: int
) -> None:
    """The same scores where codes are taken out once for all heads, but for words that are lent."""
    bits, n_lent = lent
    x, column_words = make_problem(kind, bits, rank, N_BLOCKS, seed, group), N_BLOCKS * record_words(bits)
    components = np.sort(np.random.default_rng(seed).permutation(HEAD_DIM)[:rank]).astype(np.uint32)
    index = some_words(seed, N_LAYERS, HEAD_DIM, column_words)
    index[LAYER, components] = records(x.columns, bits)
    columns = (LAYER * HEAD_DIM + components) * np.uint32(column_words)
    shared = dict(filled=word((FIRST_BLOCK + n_full) * 64 + 5), index=index, columns=columns)
    sizes = dict(groupSize=group, rank=rank, indexBits=bits, firstBlock=FIRST_BLOCK, nBlocks=N_BLOCKS)
    out = group_coefficients(x, FIRST_BLOCK, n_lent, **shared)
    last = column_words - 1
    expected = index[LAYER, components, last - n_lent : last] if n_lent else words(1)
    np.testing.assert_array_equal(out["lent"], expected.reshape(-1))
    made = out["coefficients"]
    assert np.abs(made[:n_full]).max(initial=0) <= x.limit
    np.testing.assert_array_equal(made[:n_full], np.round(made[:n_full]))
    assert_bits(made[n_full:], floats(N_BLOCKS - n_full, (group + 1) // 2, rank, 2))
    n_local = N_BLOCKS * 64 + 64
    scored = run(
        "GroupScores",
        dict(
            shared,
            **{name: out[name] for name in MADE},
            inverseTemperature=x.inverse_temperature,
            codes=floats(6, rank, 8),
            scores=floats(group, n_local),
        ),
        **sizes,
        nPieces=N_BLOCKS * 8 - n_lent,
        partPositions=n_local,
    )
    expected = floats(group, n_local)
    n = min(n_full * 64, N_BLOCKS * 64 - n_lent * 8)
    expected[:, :n] = x.scores()[:, :n]
    assert_bits(scored["scores"], expected)


@given(
    kind=st.sampled_from(KINDS),
    group=st.sampled_from((2, 5)),
    rank=st.sampled_from((1, 7, 16)),
    n_words=st.sampled_from((2, 4)),
    blocks=st.sampled_from((1, 2)),
    full=st.sampled_from((0, 3, 4, 5, 6, 9)),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores_of_lent_words(
    kind: str, group: int, rank: int, n_words: int, blocks: int, full: int, seed: int
) -> None:
    """The last words of the last block of three parts, of those blocks that are full."""
    n_pieces, first = 3, 3
    x = make_problem(kind, 4, rank, n_pieces, seed, group)
    index = records(x.columns, 4).reshape(rank, n_pieces, record_words(4))
    n_full = sum(first + i * blocks < full for i in range(n_pieces))
    n_local, n = n_pieces * n_words * 8 + 4, n_words * 8
    of_columns = np.arange(rank, dtype=np.uint32) * np.uint32(index[0].size)
    made = group_coefficients(
        x, filled=word(n_pieces * 64), index=index.reshape(1, rank, -1), columns=of_columns
    )
    out = run(
        "LentScores",
        dict(
            filled=word(full * 64 + 1),
            words=np.ascontiguousarray(index[:, :, 8 - n_words : 8].transpose(1, 0, 2)),
            **{name: made[name] for name in MADE},
            inverseTemperature=x.inverse_temperature,
            codes=floats(6, rank, 8),
            scores=floats(group, n_local),
            held=word(99),
        ),
        **dict(groupSize=group, rank=rank, nWords=n_words, wordsShift=n_words // 2, nPieces=n_pieces),
        firstBlock=first,
        blocksOfPart=blocks,
        partPositions=n_local,
    )
    assert out["held"] == n_full * n
    expected = floats(group, n_local)
    lent = x.scores().reshape(group, n_pieces, 64)[:, :n_full, 64 - n :]
    expected[:, : n_full * n] = lent.reshape(group, -1)
    assert_bits(out["scores"], expected)


@pytest.mark.parametrize("bits", [4, 2])
def test_the_largest_sums_are_exact(bits: int) -> None:
    """The largest coefficients of all components with the largest code, which is 16 (4) times as much at odd
    positions."""
    rank, most = 64, 2**bits - 1
    columns = np.zeros((rank, 64), np.float16)
    columns[:, ::3] = most
    columns[:, 1] = np.arange(rank) % (most + 1)
    ones = np.ones((2, rank), np.float32)
    x = Problem(columns, ones * np.array([[1], [-1]], np.float32), np.ones(2, np.float32), 127.0, bits)
    of_columns = np.arange(rank, dtype=np.uint32) * np.uint32(record_words(bits))
    shared = dict(filled=word(64), index=records(columns, bits)[None], columns=of_columns)
    sizes = dict(groupSize=2, rank=rank, indexBits=bits, firstBlock=0, nBlocks=1)
    out = group_coefficients(x, **shared)
    np.testing.assert_array_equal(out["coefficients"][0, 0], np.repeat([[127, -127]], rank, axis=0))
    fields = dict(
        shared, codes=floats(6, rank, 8), scores=floats(2, 64), inverseTemperature=np.ones(2, np.float32)
    )
    out = run(
        "GroupScores",
        dict(fields, **{name: out[name] for name in MADE}),
        **sizes,
        nPieces=8,
        partPositions=64,
    )
    assert_bits(out["scores"], x.scores())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("filled", "full", "block"),
    # the block that ends where the tokens do: 2, 3 and 4 are the part's
    [
        (192, 1, 0),
        (256, 1, 1),
        (320, 1, 2),
        (128, 1, None),
        (384, 1, None),
        (64, 1, None),
        (256, 0, None),
        (0, 0, None),
    ],
)
def test_store_records(bits: int, filled: int, full: int, block: int | None) -> None:
    record = record_words(bits)
    of_block = some_words(filled, HEAD_DIM, record)
    index = some_words(bits, N_LAYERS, HEAD_DIM, N_BLOCKS * record)
    expected = index.copy()
    if block is not None:
        expected[LAYER, :, block * record : (block + 1) * record] = of_block
    out = run(
        "StoreRecords",
        dict(filled=word(filled), full=word(full), layer=word(LAYER), records=of_block, index=index),
        nComponents=HEAD_DIM,
        indexBits=bits,
        columnWords=N_BLOCKS * record,
        firstBlock=FIRST_BLOCK,
        nBlocks=N_BLOCKS,
    )
    assert_bits(out["index"], expected)


@pytest.mark.parametrize(("position", "after"), [(2**32 - 64, 0), (0, 64), (448, 512)])
def test_next_block(position: int, after: int) -> None:
    assert run("NextBlock", dict(position=word(position)))["position"] == after


@pytest.mark.parametrize("position", [0, 1, 63, 64, 128, 192, 200, 256, 576])
def test_block_offsets(position: int) -> None:
    """Rows of the block in the layer; those behind the last row are the last one."""
    last = 500 + 3 * 64 + 9
    out = run(
        "BlockOffsets",
        dict(layer=word(LAYER), position=word(position), rows=words(64)),
        firstRow=500,
        lastRow=last,
        layerRows=10_000,
    )
    expected = [10_000 * LAYER + min(500 + position // 64 * 64 + i, last) for i in range(64)]
    assert out["rows"].tolist() == expected


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("block", "filled", "is_full"),
    [
        (0, 192, True),
        (0, 191, False),
        (2, 999, True),
        (2, 320, True),
        (1, 255, False),
        (3, 999, False),
        (0, 64, False),
    ],
)
def test_index_block(bits: int, block: int, filled: int, is_full: bool) -> None:
    """The records of a block that is full and the part's; nothing else."""
    columns = some_columns("normal", (HEAD_DIM, 64), np.random.default_rng(filled))
    record = record_words(bits)
    index = some_words(bits, N_LAYERS, HEAD_DIM, N_BLOCKS * record)
    expected = index.copy()
    if is_full:
        expected[LAYER, :, block * record : (block + 1) * record] = records(columns, bits)
    out = run(
        "IndexBlock",
        dict(filled=word(filled), layer=word(LAYER), position=word(64 * block), columns=columns, index=index),
        nComponents=HEAD_DIM,
        indexBits=bits,
        columnWords=N_BLOCKS * record,
        firstBlock=FIRST_BLOCK,
        nBlocks=N_BLOCKS,
    )
    changed = out["index"].copy()
    if is_full:
        mine = changed[LAYER, :, block * record : (block + 1) * record]
        changed[LAYER, :, block * record : (block + 1) * record] = without_sign_of_zero(mine, bits)
    assert_bits(changed, expected)
