# SPDX-License-Identifier: Apache-2.0
"""Prompt attention (E14): the exact twin is the rule written out for one row, near the float64 twin, and a
row's result depends on nothing behind it."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import numerics, prompt

F = np.float32


def rounded(row: np.ndarray, limit: float) -> tuple[list[int], np.float32]:
    """The integers of a row as Python integers, and their step."""
    largest = max(abs(x) for x in row)
    if largest < F(2.0**-48):
        return [0] * len(row), F(0)
    return [int(np.rint(x * (F(limit) / largest))) for x in row], largest / F(limit)


def row_by_the_rule(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """E14 for the last position, one operation after another."""
    d = len(query)
    q, q_step = rounded(query, 8191)
    q_step = q_step * numerics.scale(d)
    maximum, weight_sum, total = F(-np.inf), F(0), np.zeros(d, F)
    for begin in range(0, len(keys), 64):
        block = range(begin, min(begin + 64, len(keys)))
        scores = []
        for p in block:
            k, k_step = rounded(keys[p], 4095)
            chunks = [F(sum(q[c] * k[c] for c in range(a, min(a + 64, d)))) for a in range(0, d, 64)]
            score = chunks[0]
            for chunk in chunks[1:]:
                score = score + chunk
            scores.append(score * k_step * q_step)
        if max(scores) > maximum:
            raised = max(scores)
            factor = numerics.softmax_weight(np.array([maximum - raised], F))[0]
            maximum, weight_sum, total = raised, weight_sum * factor, total * factor
        weights = numerics.softmax_weight(np.array([s - maximum for s in scores], F))
        weight_sum = weight_sum + numerics.lane_sum(weights)
        rows = [rounded(values[p], 4095) for p in block]
        weights = [w * step for w, (_, step) in zip(weights, rows)]
        if max(weights) >= F(2.0**-100):
            integers = [int(np.rint(w * (F(8191) / max(weights)))) for w in weights]
            sums = [F(sum(n * v[c] for n, (v, _) in zip(integers, rows))) for c in range(d)]
            total = total + np.array(sums, F) * (max(weights) / F(8191))
    return numerics.flush(total) / weight_sum


def tensors(
    seed: int, kind: str, heads: tuple[int, int], n: int, m: int, d: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = ((1, heads[0], n, d), (1, heads[1], m, d), (1, heads[1], m, d))
    query, key, value = (strategies.tensors(kind, shape, rng).astype(F) for shape in shapes)
    return query, key, value


SEEDS, KINDS = st.integers(0, 2**32 - 1), st.sampled_from(strategies.KINDS)


@strategies.fewer(2)
@given(SEEDS, KINDS, st.sampled_from((1, 63, 64, 65, 130)), st.sampled_from((8, 64, 80, 136)))
def test_a_row_is_the_rule(seed: int, kind: str, m: int, d: int) -> None:
    query, key, value = tensors(seed, kind, (1, 1), 1, m, d)
    got = prompt.prompt_attention(query, key, value)[0, 0, 0]
    expected = row_by_the_rule(query[0, 0, 0], key[0, 0], value[0, 0])
    assert np.array_equal(got.view(np.uint32), expected.astype(F).view(np.uint32))


@given(SEEDS, KINDS, st.sampled_from(((1, 1), (4, 2), (3, 1))), st.integers(1, 150), st.data())
def test_pieces_give_the_bits_of_the_whole(
    seed: int, kind: str, heads: tuple[int, int], m: int, data: st.DataObject
) -> None:
    query, key, value = tensors(seed, kind, heads, m, m, 16)
    whole = prompt.prompt_attention(query, key, value)
    begin = data.draw(st.integers(0, m - 1))
    end = data.draw(st.integers(begin + 1, m))
    piece = prompt.prompt_attention(query[:, :, begin:end], key[:, :, :end], value[:, :, :end])
    assert np.array_equal(piece.view(np.uint32), whole[:, begin:end].view(np.uint32))


def test_control_a_row_does_depend_on_what_lies_before_it() -> None:
    query, key, value = tensors(1, "normal", (1, 1), 70, 70, 16)
    other = key.copy()
    other[0, 0, 66] *= 2
    a, b = (prompt.prompt_attention(query, k, value)[0] for k in (key, other))
    assert np.array_equal(a[:66], b[:66])
    assert not (a[66:] == b[66:]).all(axis=(1, 2)).any()


def bound(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Most that a row (n,) of one head may differ from float64 (docs/exactness.md, E14)."""
    d = query.shape[-1]
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    q_step, k_step = np.abs(query).max(-1) / 8191, np.abs(key).max(-1) / 4095
    q_sum, k_sum = np.abs(query).sum(-1), np.abs(key).sum(-1)
    of_rounding = q_step[:, None] / 2 * k_sum + k_step / 2 * q_sum[:, None] + d * q_step[:, None] * k_step / 4
    of_fp32 = 2.0**-21 * q_sum[:, None] * np.abs(key).max(-1)
    score = (of_rounding + of_fp32).max(-1) / np.sqrt(d)
    most = np.abs(value).max() + 2.0**-48
    of_weights = np.expm1(np.minimum(2 * score, 9)) + 64 / 2 / 8191 + 1 / 8190 + 1e-4
    return most * np.minimum(2, of_weights) + 2.0**-47


@given(SEEDS, KINDS, st.sampled_from((3, 64, 200)), st.sampled_from((8, 64, 96)))
def test_both_twins_are_near(seed: int, kind: str, m: int, d: int) -> None:
    query, key, value = tensors(seed, kind, (1, 1), min(m, 5), m, d)
    exact = prompt.prompt_attention(query, key, value)[0, :, 0]
    ideal = prompt.ideal_prompt_attention(query, key, value)[0, :, 0]
    assert (np.abs(exact - ideal).max(axis=-1) <= bound(query[0, 0], key[0, 0], value[0, 0])).all()


def test_ordinary_tensors_lose_less_than_a_rounding_to_bfloat16() -> None:
    query, key, value = tensors(3, "normal", (2, 1), 40, 700, 64)
    exact, ideal = (
        prompt.prompt_attention(query, key, value),
        prompt.ideal_prompt_attention(query, key, value),
    )
    error = np.sqrt(((exact - ideal) ** 2).mean() / (ideal**2).mean())
    assert 1e-5 < error < 2.0**-9 / np.sqrt(3)  # of rounding to 8 bits, on average


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(query=np.zeros((1, 2, 8), F)), "query must have shape"),
        (dict(query=np.zeros((1, 2, 1, 8), np.float64)), "query must be float32 or float16, got float64"),
        (dict(key=np.zeros((1, 1, 4, 8), np.float16)), "key must be float32 as the query, got float16"),
        (dict(value=np.zeros((1, 1, 5, 8), F)), "value must have shape"),
        (dict(query=np.zeros((1, 3, 5, 8), F)), "query must have 1 to seq_len=4 tokens, got 5"),
    ],
)
def test_refusals(change: dict[str, np.ndarray], words: str) -> None:
    arguments = dict(query=np.zeros((1, 2, 1, 8), F), key=np.zeros((1, 1, 4, 8), F))
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
