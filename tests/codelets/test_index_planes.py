# SPDX-License-Identifier: Apache-2.0
"""index_planes.cpp: which planes a query reads, records from planes and back, middles (contract E12)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_records import record_words, records, some_columns
from strategies import KINDS, tensors
from vertex import assert_bits, floats, run, word, words

from sparq_reference import exact, index_planes, numerics
from sparq_reference.checks import PLANES_OF
from sparq_reference.numerics import BLOCK

HEAD_DIM, GROUP = 24, 3
MASK = np.uint32(0x7FFFFFFF)


def depths_of(rank: int, bits: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, bits + 1, rank).astype(np.uint32)


def words_of_planes(record: np.ndarray, bits: int) -> np.ndarray:
    """(n, blocks * record) -> (n, bits, blocks * 2), written from the comment of index_planes.hpp."""
    codes = record.reshape(len(record), -1, record_words(bits))[..., :-1]
    groups = codes.reshape(len(record), -1, bits)  # words of codes of 32 positions
    planes = np.zeros((len(record), bits, groups.shape[1]), np.uint32)
    for t in range(bits):
        for w in range(bits):
            for i in range(32 // bits):
                bit = groups[..., w] >> np.uint32(bits * i + bits - 1 - t) & np.uint32(1)
                planes[:, t] |= bit << np.uint32(bits * i + w)
    return planes


def as_read(record: np.ndarray, depth: np.ndarray, bits: int) -> np.ndarray:
    """Records (n, blocks * record) of which the first `depth` planes were read."""
    result = record.reshape(len(record), -1, record_words(bits)).copy()
    for j, planes in enumerate(depth.tolist()):
        kept = sum(1 << (bits - 1 - t) for t in range(planes))
        result[j, :, :-1] &= np.uint32(sum(kept << (bits * i) for i in range(32 // bits)))
    return result.reshape(record.shape)


@pytest.mark.parametrize("bits", PLANES_OF)
@given(kind=st.sampled_from(KINDS), n_blocks=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_planes_of_records_and_back(bits: int, kind: str, n_blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank, more = 5, 2
    record = records(some_columns(kind, (rank, BLOCK * n_blocks), rng), bits)
    split = run(
        "SplitRecords",
        dict(records=record, planes=words(rank, bits, 2 * n_blocks), steps=words(rank, n_blocks)),
        nComponents=rank,
        indexBits=bits,
        columnWords=record.shape[1],
        chunk=BLOCK * n_blocks,
    )
    np.testing.assert_array_equal(split["planes"], words_of_planes(record, bits))
    np.testing.assert_array_equal(split["steps"], record.reshape(rank, n_blocks, -1)[..., -1])
    # of what is read, in a row with room for more blocks
    depth = depths_of(rank, bits, rng)
    depth[0] = bits
    read = [split["planes"][j, t] for j in range(rank) for t in range(depth[j])]
    length = BLOCK * (n_blocks + more)
    planes = words(len(read), length // 32)
    planes[:, : 2 * n_blocks] = read
    steps = words(rank, n_blocks + more)
    steps[:, :n_blocks] = split["steps"]
    width = (n_blocks + more) * record_words(bits)
    joined = run(
        "JoinPlanes",
        dict(planes=planes, steps=steps, depths=depth, columns=words(rank, width)),
        rank=rank,
        indexBits=bits,
        columnWords=width,
        nBlocks=n_blocks,
        length=length,
    )["columns"]
    expected = words(rank, width)
    expected[:, : record.shape[1]] = as_read(record, depth, bits)
    np.testing.assert_array_equal(joined, expected)


@pytest.mark.parametrize("bits", PLANES_OF)
@pytest.mark.parametrize("filled", [1024, 1024 + 63, 1024 + 64, 1024 + 200, 2047])
@pytest.mark.parametrize("piece", [0, 1])
def test_the_tail_is_masked(bits: int, filled: int, piece: int) -> None:
    rng = np.random.default_rng(filled)
    n_blocks, components = 3, np.array([1, 4, 5], np.uint32)
    index = rng.integers(2**32, size=(8, n_blocks * record_words(bits)), dtype=np.uint32)
    depth = np.array([0, bits - 1, bits], np.uint32)
    masked = run(
        "MaskTail",
        dict(filled=word(filled), components=components, depths=depth, tailIndex=index),
        rank=3,
        indexBits=bits,
        columnWords=index.shape[1],
        piece=piece,
        tailLength=BLOCK * n_blocks,
        chunk=1024,
    )["tailIndex"]
    behind = max(filled % 1024 - piece * BLOCK * n_blocks, 0)
    held = min(behind // BLOCK, n_blocks) * record_words(bits)
    expected = index.copy()
    expected[components, :held] = as_read(index[components, :held], depth, bits)
    np.testing.assert_array_equal(masked, expected)


@pytest.mark.parametrize("bits", PLANES_OF)
@pytest.mark.parametrize("tail", [False, True])
@given(rank=st.sampled_from((1, 5, 32)), seed=st.integers(0, 2**32 - 1))
def test_middles(bits: int, tail: bool, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_blocks, held = 4, 3
    depth = depths_of(rank, bits, rng)
    limit = 127 if bits == 4 else 2047
    coefficients = rng.integers(-limit, limit + 1, (n_blocks, GROUP, rank)).astype(np.int32)
    units, offsets = (rng.standard_normal((n_blocks, GROUP)).astype(np.float32) for _ in range(2))
    fields = dict(coefficients=coefficients, units=units, depths=depth, offsets=offsets)
    sizes = dict(groupSize=GROUP, rank=rank, indexBits=bits)
    if tail:
        length = BLOCK * n_blocks
        where = dict(piece=1, tailLength=length, chunk=1024)
        result = run("TailMiddles", dict(filled=word(length + BLOCK * held + 9), **fields), **sizes, **where)
    else:
        result = run("BlockMiddles", fields, **sizes, nBlocks=held)
    middle = (coefficients * index_planes.unread(depth.astype(np.int64), bits)).sum(axis=-1)
    expected = offsets + units / np.float32(2) * middle.astype(np.float32)
    expected[held:] = offsets[held:]
    assert_bits(result["offsets"], expected)


@pytest.mark.parametrize("bits", PLANES_OF)
@given(
    kind=st.sampled_from(KINDS),
    rank=st.sampled_from((1, 5, 16, HEAD_DIM)),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_a_query_reads(bits: int, kind: str, rank: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    query = tensors(kind, (GROUP, HEAD_DIM), rng)
    widest = np.abs(tensors(kind, (HEAD_DIM,), rng)).astype(np.float32)
    widest[:2] = 0.25  # ties, with a query that has some
    query[:, 1] = query[:, 0]
    read_bits = max(1, round(share * bits * rank))
    magnitudes = np.zeros(HEAD_DIM, np.float32)
    for head in query:
        magnitudes += np.abs(head).astype(np.float32)
    weights = run("PlaneWeights", dict(filled=word(64), widest=widest, weights=magnitudes), headDim=HEAD_DIM)[
        "weights"
    ]
    assert_bits(weights, magnitudes * widest)
    depth = index_planes.depths(weights, rank=rank, index_bits=bits, read_bits=read_bits)
    offered = np.sort(np.argsort(-weights, kind="stable")[:rank])
    mask = np.zeros(HEAD_DIM, np.uint32)
    mask[offered] = MASK
    merits = run(
        "PlaneMerits",
        dict(weights=weights, offered=mask, components=words(rank), merits=floats(rank, bits)),
        headDim=HEAD_DIM,
        rank=rank,
        indexBits=bits,
    )
    np.testing.assert_array_equal(merits["components"], offered)
    assert_bits(merits["merits"], np.ldexp(weights[offered][:, None], -np.arange(bits)))
    ranked = run(
        "ComponentRanks",
        dict(magnitudes=merits["merits"].ravel(), selected=words(rank * bits)),
        headDim=rank * bits,
        first=0,
        nComponents=rank * bits,
        rank=read_bits,
    )["selected"].reshape(rank, bits)
    np.testing.assert_array_equal((ranked != 0).sum(axis=1), depth[offered])
    sums = numerics.lane_sum(np.abs(query).astype(np.float32))
    out = run(
        "PlaneList",
        dict(
            query=query,
            components=merits["components"],
            selected=ranked,
            magnitudeSums=sums,
            planes=words(read_bits),
            depths=words(rank),
            selectedQuery=floats(GROUP, rank),
            inverseTemperature=floats(GROUP),
        ),
        groupSize=GROUP,
        headDim=HEAD_DIM,
        rank=rank,
        indexBits=bits,
        nPlanes=read_bits,
        scale=float(numerics.scale(HEAD_DIM)),
    )
    np.testing.assert_array_equal(out["depths"], depth[offered])
    listed = [c * bits + t for c in offered for t in range(depth[c])]
    np.testing.assert_array_equal(out["planes"], listed)
    expected = np.where(depth[offered] > 0, query[:, offered].astype(np.float32), np.float32(0))
    assert_bits(out["selectedQuery"], expected)
    components = index_planes.components(depth, rank)
    assert_bits(out["inverseTemperature"], exact.inverse_temperature(query[None], components[None, None])[0])


def test_a_cache_without_a_full_block_goes_by_the_query() -> None:
    weights = np.arange(HEAD_DIM, dtype=np.float32)
    fields = dict(widest=np.zeros(HEAD_DIM, np.float32), weights=weights)
    for filled, expected in ((63, weights), (64, 0 * weights)):
        assert_bits(
            run("PlaneWeights", dict(filled=word(filled), **fields), headDim=HEAD_DIM)["weights"], expected
        )


@pytest.mark.parametrize("bits", PLANES_OF)
@pytest.mark.parametrize("full", [0, 1])
def test_widest_steps(bits: int, full: int) -> None:
    rng = np.random.default_rng(bits)
    n, n_blocks = 9, 4
    record = records(some_columns("normal", (n, BLOCK * n_blocks), rng), bits)
    steps = record.reshape(n, n_blocks, -1)[..., -1].astype(np.uint16).view(np.float16)
    widest = np.full(n, np.median(steps), np.float32)
    for filled in (64, 192, 256):
        result = run(
            "WidestSteps",
            dict(filled=word(512 + filled), full=word(full), tailIndex=record, widest=widest),
            nComponents=n,
            indexBits=bits,
            columnWords=record.shape[1],
            chunk=BLOCK * n_blocks,
        )["widest"]
        new = np.maximum(widest, steps[:, filled // BLOCK - 1].astype(np.float32))
        assert_bits(result, new if full else widest)
