# SPDX-License-Identifier: Apache-2.0
"""Prompt attention (E14): the exact twin is the rule written out for one row, near the float64 twin, and a
row's result depends on nothing behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import example, given
from hypothesis import strategies as st

from sparq_reference import numerics, prompt

F, LN2 = np.float32, np.log(2)


def rounded(row: np.ndarray, limit: float) -> tuple[list[int], np.float32]:
    """The integers of a row as Python integers, and their step."""
    largest = max(abs(x) for x in row)
    if largest < F(2.0**-48):
        return [0] * len(row), F(0)
    return [int(np.rint(x * (F(limit) / largest))) for x in row], largest / F(limit)


def value_log(row: np.ndarray) -> int:
    """The logarithm of the step between the integers of a value."""
    largest = max(abs(x) for x in row)
    return int(np.floor(np.log2(np.float64(largest)))) - 11 if largest >= F(2.0**-48) else -60


def ascending(x: list[np.float32], y: list[np.float32]) -> np.float32:
    """The sum of products, every operation rounded."""
    total = F(0)
    for a, b in zip(x, y):
        total = total + a * b
    return total


def row_by_the_rule(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, integers: bool, window: int, share: float = 0.0
) -> np.ndarray:
    """E14 and E16 for the last position, one operation after another."""
    d, last = len(query), len(keys) - 1

    def summed(x: list[Any], y: list[Any]) -> np.float32:
        return F(sum(a * b for a, b in zip(x, y))) if integers else ascending(x, y)

    def scored(query: np.ndarray, key: np.ndarray, scale: np.float32) -> np.float32:
        q, q_step = rounded(query, 8191) if integers else (list(query), F(1))
        k, k_step = rounded(key, 4095) if integers else (list(key), F(1))
        score, *chunks = (summed(q[a : a + 64], k[a : a + 64]) for a in range(0, d, 64))
        for chunk in chunks:
            score = score + chunk
        return F(score * k_step * (q_step * scale))

    def estimates(begin: int) -> list[np.float32]:
        columns = keys[begin : begin + 64].T
        mean = [sum(column, F(0)) / F(64) for column in columns]
        variance = [sum(((x - m) ** 2 for x in column), F(0)) / F(64) for column, m in zip(columns, mean)]
        spread = (query * scale) ** 2 * F(np.log(2) / 2)
        along = [numerics.dot(key, np.array(mean)) for key in keys[begin : begin + 64]]
        apart = scored(query, keys[begin + along.index(min(along))], scale)
        half = scored(spread, np.array(variance), F(1))
        added = [half if half < start else np.sqrt(half * F(4 * start)) - F(start) for start in (16, 2)]
        return [max(scored(query, np.array(mean), scale) + x, apart - F(6)) for x in added]

    def left_out(far: range, maximum: np.float32, near: np.float32) -> list[int]:
        high, low = zip(*(estimates(begin) for begin in far))
        top = max(maximum, *high)
        parts = [power(x - top) for x in high]

        def of_blocks(parts: list[np.float32]) -> np.float32:
            lanes = [F(0)] * 16
            for begin, part in zip(far, parts):
                lanes[begin // 64 % 16] += part
            return tree(lanes) * F(64)

        near = near * (F(1) / F(8191) if integers else F(1))
        total = of_blocks([power(x - top) for x in low]) + near * power(maximum - top)
        limit = total * F(share / 64)
        while of_blocks([part if part < limit else F(0) for part in parts]) > total / F(8):
            limit = limit / F(2)
        return [begin for begin, part in zip(far, parts) if part < limit]

    def power(x: np.float32, coefficients: np.ndarray = prompt.POWER) -> np.float32:
        if x < -100:
            return F(0)
        whole, result = np.rint(x), F(0)
        for coefficient in coefficients:
            result = result * F(x - whole) + coefficient
        return F(result * F(2) ** whole)

    def tree(lanes: list[np.float32]) -> np.float32:
        half = len(lanes) // 2
        return tree([a + b for a, b in zip(lanes[:half], lanes[half:])]) if half else lanes[0]

    scale = numerics.scale(d) * F(np.log2(np.e))
    maximum, lanes, total = F(-np.inf), [F(0)] * 16, np.zeros(d, F)
    begins = range(0, last + 1, 64)
    far = begins[1:-2] if share else range(0)
    unread: list[int] = []
    for begin in [*(begin for begin in begins if begin not in far), *far]:
        if far and begin == far[0]:
            unread = left_out(far, maximum, tree(lanes))
        if begin in unread:
            continue
        block = range(begin, min(begin + 64, len(keys)))
        scores = [
            scored(query, keys[p], scale) if not window or last - p < window else F(-np.inf) for p in block
        ]
        if max(scores) == -np.inf:
            continue
        logs = [value_log(values[p]) if integers else 0 for p in block]
        scores = [score + F(log) for score, log in zip(scores, logs)]
        raised = max(maximum, max(scores))
        factor, gain, maximum = power(maximum - raised), power(max(scores) - raised), raised
        weights = [power(s - max(scores), prompt.INTEGER_POWER if integers else prompt.POWER) for s in scores]
        shares = [w * F(2.0**-log) for w, log in zip(weights, logs)]
        lanes = [lane * factor + sum(shares[i::16], F(0)) * gain for i, lane in enumerate(lanes)]
        rows = [values[p] for p in block]
        if integers:
            rows = [[int(np.rint(x * F(2.0**-log))) for x in row] for row, log in zip(rows, logs)]
            weights = [int(np.rint(w)) for w in weights]
        sums = [summed(weights, [row[c] for row in rows]) for c in range(d)]
        total = total * factor + np.array(sums, F) * gain
    return numerics.flush(total / tree(lanes))


def tensors(
    seed: int, kind: str, heads: tuple[int, int], n: int, m: int, d: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = ((1, heads[0], n, d), (1, heads[1], m, d), (1, heads[1], m, d))
    query, key, value = (strategies.tensors(kind, shape, rng).astype(F) for shape in shapes)
    return query, key, value


SEEDS, KINDS = st.integers(0, 2**32 - 1), st.sampled_from(strategies.KINDS)


WINDOWS = st.sampled_from((0, 1, 5, 64, 70))
SHARES = st.sampled_from((2.0**-30, 0.02, 0.5))


@strategies.fewer(2)
@given(
    SEEDS,
    KINDS,
    st.sampled_from((1, 63, 64, 65, 130)),
    st.sampled_from((8, 64, 80, 136)),
    st.booleans(),
    WINDOWS,
)
def test_a_row_is_the_rule(seed: int, kind: str, m: int, d: int, integers: bool, window: int) -> None:
    query, key, value = tensors(seed, kind, (1, 1), 1, m, d)
    got = prompt.prompt_attention(query, key, value, integers=integers, window=window)[0, 0, 0]
    expected = row_by_the_rule(query[0, 0, 0], key[0, 0], value[0, 0], integers, window)
    assert np.array_equal(got.view(np.uint32), expected.astype(F).view(np.uint32))


@given(
    SEEDS,
    KINDS,
    st.sampled_from(((1, 1), (4, 2), (3, 1))),
    st.integers(1, 150),
    st.booleans(),
    WINDOWS,
    st.data(),
)
def test_pieces_and_padded_texts_give_the_bits_of_the_whole(
    seed: int, kind: str, heads: tuple[int, int], m: int, integers: bool, window: int, data: st.DataObject
) -> None:
    query, key, value = tensors(seed, kind, heads, m, m, 16)
    form: Any = dict(integers=integers, window=window)
    whole = prompt.prompt_attention(query, key, value, **form)
    begin = data.draw(st.integers(0, m - 1))
    end = data.draw(st.integers(begin + 1, m))
    piece = prompt.prompt_attention(query[:, :, begin:end], key[:, :, :end], value[:, :, :end], **form)
    assert np.array_equal(piece.view(np.uint32), whole[:, begin:end].view(np.uint32))
    n = data.draw(st.integers(1, 70))  # of padding
    padded = [np.concatenate([np.full_like(x[:, :, :1].repeat(n, 2), 9), x], 2) for x in (query, key, value)]
    got = prompt.prompt_attention(padded[0], padded[1], padded[2], starts=[n], **form)
    assert np.array_equal(got[:, n:].view(np.uint32), whole.view(np.uint32)) and not got[:, :n].any()


@given(SEEDS, KINDS, st.integers(200, 460), st.booleans(), SHARES, st.integers(0, 500), st.data())
def test_pieces_with_blocks_give_the_bits_of_the_whole(
    seed: int, kind: str, m: int, integers: bool, blocks: float, blocks_from: int, data: st.DataObject
) -> None:
    query, key, value = tensors(seed, kind, (3, 1), m, m, 16)
    form: Any = dict(integers=integers, blocks=blocks, blocks_from=blocks_from)
    whole = prompt.prompt_attention(query, key, value, **form)
    begin = data.draw(st.integers(0, m - 1))
    end = data.draw(st.integers(begin + 1, m))
    piece = prompt.prompt_attention(query[:, :, begin:end], key[:, :, :end], value[:, :, :end], **form)
    assert np.array_equal(piece.view(np.uint32), whole[:, begin:end].view(np.uint32))


@given(SEEDS, KINDS, st.integers(0, 300), st.booleans())
@example(0, "normal", 250, True)
@example(0, "normal", 250, False)
def test_rows_read_all_blocks_below_a_position(seed: int, kind: str, first: int, integers: bool) -> None:
    """Up to there they are E14's, from there on E16's. These differ behind three blocks."""
    made = tensors(seed, kind, (1, 1), 300, 300, 16)
    got, dense, some = (
        prompt.prompt_attention(*made, integers=integers, blocks=share, blocks_from=n)[0].view(np.uint32)
        for share, n in ((0.5, first), (0.0, 0), (0.5, 0))
    )
    assert np.array_equal(got, np.concatenate([dense[:first], some[first:]]))
    assert kind != "normal" or not (dense[192:] == some[192:]).all(axis=(1, 2)).any()


@given(SEEDS, KINDS, st.sampled_from((193, 500, 640)), st.sampled_from((8, 96)), st.booleans(), SHARES)
def test_blocks_are_chosen_by_the_rule(
    seed: int, kind: str, m: int, d: int, integers: bool, share: float
) -> None:
    """E16 for the last position, one operation after another."""
    query, key, value = tensors(seed, kind, (1, 1), 1, m, d)
    got = prompt.prompt_attention(query, key, value, integers=integers, blocks=share)[0, 0, 0]
    expected = row_by_the_rule(query[0, 0, 0], key[0, 0], value[0, 0], integers, 0, share)
    assert np.array_equal(got.view(np.uint32), expected.astype(F).view(np.uint32))


@pytest.mark.parametrize("mean, deviation", [(-7, 1.0), (-11, 2.8), (-20, 5.2)])
def test_a_block_is_left_out_from_a_share_on(mean: float, deviation: float) -> None:
    """By hand: the keys of a far block have scores on both sides of a mean. Half of the variance counts, as a
    logarithm to base 2, up to 16 for the block itself and to 2 in the sum: half is 0.7, 5.7 and 19.5."""
    half = deviation**2 / 2 / LN2
    high, low = (half if half < x else 2 * (half * x) ** 0.5 - x for x in (16, 2))
    query, key, value = (np.zeros((1, 1, n, 8), F) for n in (1, 300, 300))
    query[..., 0] = 8**0.5
    key[..., 0] = -50
    scores = mean - deviation, mean + deviation
    key[0, 0, 0, 0], key[0, 0, 64:96, 0], key[0, 0, 96:128, 0] = 0, *scores
    value[0, 0, 64:128, 1] = 1
    weight = 32 * np.exp(scores).sum()
    estimated, in_sum = (64 * np.exp(mean + x * LN2) for x in (high, low))
    for factor, expected in ((0.99, weight / (1 + weight)), (1.01, 0)):
        share = float(factor * estimated / (1 + in_sum))
        got = prompt.prompt_attention(query, key, value, blocks=share)[0, 0, 0, 1]
        assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("place", [64, 90, 127])
@pytest.mark.parametrize("is_apart", [True, False])
def test_a_block_with_a_key_apart_is_read(place: int, is_apart: bool) -> None:
    """By hand: 63 keys that nothing attends to, and one that alone has half of the attention. It is not
    found where another one is farther from the mean."""
    query, key, value = (np.zeros((1, 1, n, 8), F) for n in (1, 300, 300))
    query[..., 0] = 8**0.5
    key[..., 0], key[..., 1] = -50, 100
    key[0, 0, 0, 0] = key[0, 0, place, 0] = 0
    key[0, 0, 100, 1] = 100 if is_apart else -300
    value[0, 0, 64:128, 1] = 1
    got = prompt.prompt_attention(query, key, value, blocks=0.01)[0, 0, 0, 1]
    assert got == pytest.approx(0.5 if is_apart else 0.0, abs=1e-6)


def test_a_block_at_the_limit_is_read() -> None:
    """Of eight blocks with equal scores each has an eighth; one of a little less is left out."""
    query, key, value = (np.zeros((1, 1, n, 8), F) for n in (1, 512, 512))
    query[..., 0] = value[0, 0, 64:128, 1] = 1
    for component, expected in ((0, 0.125), (-(2.0**-8), 0.0)):
        key[0, 0, 64:128, 0] = component
        assert prompt.prompt_attention(query, key, value, blocks=0.125)[0, 0, 0, 1] == expected


@pytest.mark.parametrize("n_small, is_read", [(5, False), (11, True)])
@pytest.mark.parametrize("share", [1 / 64, 1 / 32, 0.5])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_row_leaves_out_at_most_an_eighth(
    n_small: int, is_read: bool, share: float, is_first: bool
) -> None:
    """Of 44 blocks some have half of the weight of the others: five have 6 % of the sum, eleven 14 %. The
    share is halved until not too many are below it."""
    query, key, value = (np.zeros((1, 1, n, 8), F) for n in (1, 44 * 64, 44 * 64))
    query[..., 0] = 8**0.5
    place = 64 * (1 if is_first else 42 - n_small)
    small = slice(place, place + 64 * n_small)
    key[0, 0, small, 0] = -LN2
    value[0, 0, small, 1] = 1
    got = prompt.prompt_attention(query, key, value, blocks=share)[0, 0, 0, 1]
    assert got == pytest.approx(n_small / 2 / (44 - n_small / 2) if is_read else 0, rel=1e-5)


def test_blocks_near_a_row_are_read() -> None:
    """Up to three blocks there is nothing to choose: the bits of dense attention."""
    query, key, value = tensors(6, "normal", (1, 1), 256, 256, 16)
    dense, some = (prompt.prompt_attention(query, key, value, blocks=x)[0] for x in (0.0, 0.5))
    assert np.array_equal(dense[:192].view(np.uint32), some[:192].view(np.uint32))
    assert not (dense[192:] == some[192:]).all(axis=(1, 2)).any()


def test_control_a_row_does_depend_on_what_lies_before_it() -> None:
    query, key, value = tensors(1, "normal", (1, 1), 70, 70, 16)
    other = key.copy()
    other[0, 0, 66] *= 2
    a, b = (prompt.prompt_attention(query, k, value)[0] for k in (key, other))
    assert np.array_equal(a[:66], b[:66])
    assert not (a[66:] == b[66:]).all(axis=(1, 2)).any()


def bound(query: np.ndarray, key: np.ndarray, value: np.ndarray, integers: bool) -> np.ndarray:
    """Most that a row (n,) of one head may differ from float64 (docs/exactness.md, E14)."""
    d = query.shape[-1]
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    q_sum, k_sum = np.abs(query).sum(-1), np.abs(key).sum(-1)
    score = 2.0**-21 * q_sum[:, None] * np.abs(key).max(-1)  # of fp32
    if integers:
        q_step, k_step = np.abs(query).max(-1) / 8191, np.abs(key).max(-1) / 4095
        score += q_step[:, None] / 2 * k_sum + k_step / 2 * q_sum[:, None] + d * q_step[:, None] * k_step / 4
        of_weights = 64 / 8191 + 1 / 4096 + 3e-4
    else:
        score = (d + 4) * 2.0**-24 * (np.abs(query) @ np.abs(key).T)
        of_weights = (len(key) + 16) * 2.0**-23
    score = score.max(-1) / np.sqrt(d)
    most = np.abs(value).max() + 2.0**-48
    return most * np.minimum(2, np.expm1(np.minimum(2 * score, 9)) + of_weights) + 2.0**-47


@given(SEEDS, KINDS, st.sampled_from((3, 64, 200)), st.sampled_from((8, 64, 96)), st.booleans(), WINDOWS)
def test_both_twins_are_near(seed: int, kind: str, m: int, d: int, integers: bool, window: int) -> None:
    query, key, value = tensors(seed, kind, (1, 1), min(m, 5), m, d)
    exact = prompt.prompt_attention(query, key, value, integers=integers, window=window)[0, :, 0]
    ideal = prompt.ideal_prompt_attention(query, key, value, window=window)[0, :, 0]
    most = bound(query[0, 0], key[0, 0], value[0, 0], integers)
    assert (np.abs(exact - ideal).max(axis=-1) <= most).all()


@pytest.mark.parametrize(("integers", "most"), [(True, 2.0**-9 / np.sqrt(3)), (False, 4e-7)])
def test_ordinary_tensors_lose_less_than_their_type(integers: bool, most: float) -> None:
    """A rounding to bfloat16 (8 bits), or what PyTorch's attention in float32 loses."""
    query, key, value = tensors(3, "normal", (2, 1), 40, 700, 64)
    exact = prompt.prompt_attention(query, key, value, integers=integers)
    ideal = prompt.ideal_prompt_attention(query, key, value)
    error = np.sqrt(((exact - ideal) ** 2).mean() / (ideal**2).mean())
    assert most / 100 < error < most


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(query=np.zeros((1, 2, 8), F)), "query must have shape"),
        (dict(query=np.zeros((1, 2, 1, 8), np.float64)), "query must be float32 or float16, got float64"),
        (dict(key=np.zeros((1, 1, 4, 8), np.float16)), "key must be float32 as the query, got float16"),
        (dict(value=np.zeros((1, 1, 5, 8), F)), "value must have shape"),
        (dict(query=np.zeros((1, 3, 5, 8), F)), "query must have 1 to seq_len=4 tokens, got 5"),
        (dict(scale=0.0), "scale must be positive and finite, got 0.0"),
        (dict(scale=-1.0), "scale must be positive and finite, got -1.0"),
        (dict(scale=1e-60), "scale must be positive and finite, got 1e-60"),
        (dict(scale=float("nan")), "scale must be positive and finite, got nan"),
        (dict(scale=float("inf")), "scale must be positive and finite, got inf"),
        (dict(blocks=-0.1), r"blocks must be 0 or in \[2\*\*-30, 0.5\], got -0.1"),
        (dict(blocks=0.6), r"blocks must be 0 or in \[2\*\*-30, 0.5\], got 0.6"),
        (dict(blocks=True), r"blocks must be 0 or in \[2\*\*-30, 0.5\], got True"),
        (dict(blocks_from=-1), r"blocks_from must be in \[0, 2147483647\], got -1"),
        (dict(blocks=0.1, window=5), "window must be 0 with blocks, got 5"),
        (dict(window=-1), r"window must be in \[0, 2147483647\], got -1"),
        (dict(starts=[5]), r"starts must be in \[0, 4\], got 5"),
        (dict(starts=[0, 0]), r"starts must have shape \(batch=1,\), got \(2,\)"),
    ],
)
def test_refusals(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = dict(query=np.zeros((1, 2, 1, 8), F), key=np.zeros((1, 1, 4, 8), F))
    arguments["value"] = arguments["key"]
    with pytest.raises(ValueError, match=f"^prompt_attention: {words}"):
        prompt.prompt_attention(**{**arguments, **change})


def test_heads_that_do_not_divide_are_refused() -> None:
    key = np.zeros((1, 2, 4, 8), F)
    with pytest.raises(ValueError, match="query must have a multiple of n_kv_heads=2 heads, got 3"):
        prompt.prompt_attention(np.zeros((1, 3, 1, 8), F), key, key)
    wide = np.zeros((1, 1, 4, 264), F)
    with pytest.raises(ValueError, match="head_dim must be a multiple of 8 of at most 256, got 264"):
        prompt.prompt_attention(wide, wide, wide)
