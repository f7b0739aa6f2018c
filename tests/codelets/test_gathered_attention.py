# SPDX-License-Identifier: Apache-2.0
"""gathered_attention.cpp, weighted_values.cpp and combine.cpp: from fetched rows to the output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, tensors
from vertex import assert_bits, floats, halves, run, word

from sparq_reference import exact, numerics

GROUP, HEAD_DIM = 2, 16


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    first=st.sampled_from((0, 3, 40)),
    filled=st.integers(1, 60),
)
def test_row_scores_and_weights(seed: int, kind: str, first: int, filled: int) -> None:
    rng = np.random.default_rng(seed)
    n_rows, n = 7, min(max(filled - first, 0), 7)
    keys = tensors(kind, (n_rows, HEAD_DIM), rng)
    keys[n:] = np.nan
    query = tensors(kind, (GROUP, HEAD_DIM), rng)
    out = run(
        "RowScores",
        dict(
            filled=word(filled), keys=keys, query=query, scores=floats(GROUP, n_rows), maxima=floats(6, GROUP)
        ),
        groupSize=GROUP,
        headDim=HEAD_DIM,
        nRows=n_rows,
        firstRow=first,
        scale=float(numerics.scale(HEAD_DIM)),
    )
    scores = np.full((GROUP, n_rows), np.finfo(np.float32).min, np.float32)
    scores[:, :n] = numerics.dot(query[:, None], keys[None, :n]) * numerics.scale(HEAD_DIM)
    assert_bits(out["scores"], scores)
    if n:
        np.testing.assert_array_equal(out["maxima"].max(axis=0), scores[:, :n].max(axis=1))
    maximum = scores[:, :n].max(axis=1) if n else np.zeros(GROUP, np.float32)
    out["scores"][:, n:] = maximum[:, None]  # as if they were the best
    out = run(
        "RowWeights",
        dict(
            filled=word(filled),
            maximum=np.stack([maximum - w for w in (3, 1, 9, 9, 9, 0)]).astype(np.float32),
            weights=out["scores"],
        ),
        groupSize=GROUP,
        nRows=n_rows,
        firstRow=first,
    )
    expected = np.zeros_like(scores)
    expected[:, :n] = numerics.softmax_weight(scores[:, :n] - maximum[:, None])
    assert_bits(out["weights"], expected)


@pytest.mark.parametrize("top_k", [1, 7, 8, 63, 64, 65, 200])
def test_list_sums(top_k: int) -> None:
    rng = np.random.default_rng(top_k)
    weights = rng.random((GROUP, top_k)).astype(np.float32)
    out = run("ListSums", dict(weights=weights, sums=floats(GROUP)), groupSize=GROUP, topK=top_k)
    assert_bits(out["sums"], numerics.fold_blocks(numerics.block_sums(weights)))


@pytest.mark.parametrize("filled", [1, 63, 64, 100, 130, 999])
@pytest.mark.parametrize("kind", ["normal", "huge", "tiny", "wide"])
@pytest.mark.parametrize("width", [24, 6, 8])  # lanes of eight, of two, of two
def test_weighted_values_of_a_list(filled: int, kind: str, width: int) -> None:
    """Entries 10 to 140 of a list that ends at entry 120; absent rows hold NaN."""
    rng = np.random.default_rng(filled)
    begin, limit, n_rows = 10, 120, 130
    n = min(max(min(filled, limit) - begin, 0), n_rows)
    values = tensors(kind, (n_rows, width), rng)
    values[n:] = np.nan
    weights = rng.random((GROUP, n_rows)).astype(np.float32)
    out = run(
        "WeightedValues",
        dict(
            filled=word(filled),
            wave=word(0),
            values=values,
            weights=weights,
            partials=floats(3, GROUP, width),
        ),
        begin=begin,
        stride=0,
        limit=limit,
        headStride=n_rows,
        weightStride=0,
        groupSize=GROUP,
        nRows=n_rows,
        width=width,
    )
    expected = np.zeros((3, GROUP, width), np.float32)
    for p in range(n):
        expected[p // 64] += weights[:, p, None] * values[p].astype(np.float32)
    assert_bits(out["partials"], expected)


def test_weighted_values_of_a_wave() -> None:
    """Wave 1 of stride 100, this part from 64 on: positions 164 to 199; the weights are all waves'."""
    rng = np.random.default_rng(9)
    values = tensors("normal", (64, 8), rng)
    values[36:] = np.nan
    weights = rng.random((GROUP, 3 * 64)).astype(np.float32)
    out = run(
        "WeightedValues",
        dict(filled=word(500), wave=word(1), values=values, weights=weights, partials=floats(1, GROUP, 8)),
        begin=64,
        stride=100,
        limit=0xFFFFFFFF,
        headStride=192,
        weightStride=64,
        groupSize=GROUP,
        nRows=64,
        width=8,
    )
    expected = np.zeros((1, GROUP, 8), np.float32)
    for p in range(36):
        expected[0] += weights[:, 64 + p, None] * values[p].astype(np.float32)
    assert_bits(out["partials"], expected)


@pytest.mark.parametrize("wave", [0, 2])
def test_fold_blocks(wave: int) -> None:
    rng = np.random.default_rng(1)
    partials = rng.standard_normal((9, GROUP, 8)).astype(np.float32)
    before = rng.standard_normal((GROUP, 8)).astype(np.float32)
    out = run(
        "FoldBlocks",
        dict(wave=word(wave), partials=partials, accumulator=before),
        nBlocks=9,
        groupSize=GROUP,
        width=8,
    )
    start = before if wave else np.zeros_like(before)
    assert_bits(out["accumulator"], numerics.fold_blocks(np.concatenate([start[None], partials]), axis=0))


@given(seed=st.integers(0, 2**32 - 1), mean_value=st.booleans(), exponent=st.sampled_from((0, -46, -60, 15)))
def test_combine(seed: int, mean_value: bool, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    filled, width = 77, 16
    partials = (rng.standard_normal((3, GROUP, width)) * 2.0**exponent).astype(np.float32)
    accumulator = numerics.fold_blocks(partials, axis=0)
    sums = (1 + rng.random(GROUP) * 5).astype(np.float32)
    totals = (1 + rng.random(GROUP) * 9).astype(np.float32)
    share = np.array([rng.choice([1e-20, 0.0, 0.3, 1.0]), rng.choice([1.0, 1.0 + 2.0**-20])], np.float32)
    approx = totals * share
    value_sum = (rng.standard_normal(width) * filled).astype(np.float32)
    out = run(
        "Combine",
        dict(
            filled=word(filled),
            partials=partials,
            sums=sums,
            approxSums=approx,
            totals=totals,
            valueSum=value_sum,
            output=halves(GROUP, width),
        ),
        nBlocks=3,
        groupSize=GROUP,
        width=width,
        meanValue=mean_value,
    )
    attended = numerics.flush(accumulator) / sums[:, None]
    alpha = np.minimum(np.float32(1), numerics.flush(approx / totals))
    expected = attended
    if mean_value:
        mean = (value_sum / np.float32(filled))[None, None]
        expected = exact.combine(attended[None], alpha[None], mean)[0]
    assert_bits(out["output"], numerics.to_half(expected))
    for blocks in (partials, accumulator[None]):
        fields = dict(partials=blocks, sums=sums, output=halves(GROUP, width))
        listed = run("CombineList", fields, nBlocks=len(blocks), groupSize=GROUP, width=width)
        assert_bits(listed["output"], numerics.to_half(attended))


THRESHOLD = np.float32(2.0**-48)
BELOW = np.nextafter(THRESHOLD, np.float32(0))
#: (number, whether it stays): what is smaller than 2**-48 becomes +0 (contract E2)
EDGES = [(THRESHOLD, True), (BELOW, False), (np.nextafter(THRESHOLD, np.float32(1)), True)]


@pytest.mark.parametrize(("number", "stays"), [*EDGES, *((-x, stays) for x, stays in EDGES)])
@pytest.mark.parametrize("vertex", ["Combine", "CombineList"])
def test_accumulators_at_the_flush_threshold(vertex: str, number: np.float32, stays: bool) -> None:
    """Divided by 2**-48, so that what stays shows in fp16."""
    accumulator = np.full((1, 8), number)
    fields = dict(sums=np.full(1, THRESHOLD), output=halves(1, 8))
    if vertex == "Combine":
        ones = np.ones(1, np.float32)
        fields.update(filled=word(1), partials=accumulator[None], approxSums=ones, totals=ones)
        fields.update(valueSum=np.zeros(8, np.float32))
        out = run("Combine", fields, nBlocks=1, groupSize=1, width=8, meanValue=False)
    else:
        out = run(vertex, dict(fields, partials=accumulator[None]), nBlocks=1, groupSize=1, width=8)
    assert_bits(out["output"], np.full((1, 8), np.sign(number) if stays else 0, np.float16))


@pytest.mark.parametrize(("share", "stays"), EDGES)
def test_alpha_at_the_flush_threshold(share: np.float32, stays: bool) -> None:
    """Times 2**48, so that a share that stays shows in fp16; the mean value is 0."""
    out = run(
        "Combine",
        dict(
            filled=word(1),
            partials=np.full((1, 1, 8), 1 / THRESHOLD, np.float32),
            sums=np.ones(1, np.float32),
            approxSums=np.full(1, 4 * share, np.float32),
            totals=np.full(1, 4, np.float32),
            valueSum=np.zeros(8, np.float32),
            output=halves(1, 8),
        ),
        nBlocks=1,
        groupSize=1,
        width=8,
        meanValue=True,
    )
    assert_bits(out["output"], np.full((1, 8), 1 if stays else 0, np.float16))


def test_output_saturates() -> None:
    out = run(
        "CombineList",
        dict(
            partials=np.array([[65504, 65519, 65520, 1e30, -1e30, 2.0**-24, -(2.0**-26), 0]], np.float32),
            sums=np.ones(1, np.float32),
            output=halves(1, 8),
        ),
        nBlocks=1,
        groupSize=1,
        width=8,
    )["output"][0]
    assert out[:5].tolist() == [65504, 65504, 65504, 65504, -65504]
    assert out[5] == 2.0**-24 and out[6] == 0 and np.signbit(out[6])
