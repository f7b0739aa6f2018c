# SPDX-License-Identifier: Apache-2.0
"""The key index of 8, 4 or 2 bits (docs/exactness.md E9): what is stored, scores, error."""

from __future__ import annotations

import contract_oracle as oracle
import error_bound
import near_ties
import numpy as np
import pytest
import strategies
from bits import bits_of
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import SparqSettings, exact, ideal, key_index

BITS = pytest.mark.parametrize("bits", [8, 4, 2])


def approx_scores(query: np.ndarray, keys: np.ndarray, bits: int) -> np.ndarray:
    """Approximate scores over all components, before the temperature: (h, r), (n, r) -> (h, n)."""
    components = np.arange(query.shape[1])[None, None]
    inv_tau = np.ones((1, len(query)), np.float32)
    return exact.approx_scores(query[None], keys[None, None], components, inv_tau, index_bits=bits)[0]


def half_steps(rank: int, n: int, bits: int, rng: np.random.Generator) -> np.ndarray:
    """Keys (n, rank) in halves of a step of 1: every other code is a tie."""
    most = 2**bits - 1
    keys = rng.integers(0, 2 * most + 1, (n, rank)) / 2 - most // 2
    keys[::64], keys[63::64] = -(most // 2), most - most // 2
    return strategies.half(keys)


def check_contract(query: np.ndarray, keys: np.ndarray, bits: int) -> None:
    """What is stored, and scores, equal the contract in plain Python, bit for bit."""
    full = len(keys) // 64 * 64
    got = key_index.quantise(np.ascontiguousarray(keys[:full].T), bits)
    columns = keys[:full].T.astype(float).reshape(keys.shape[1], -1, 64)
    for c, blocks in enumerate(columns.tolist()):
        for block, numbers in enumerate(blocks):
            low, step, codes = oracle.store(numbers, bits)
            assert (got.low[c, block], got.step[c, block]) == (low, step), "low or step differs"
            assert got.code[c, block].tolist() == codes, "codes differ"
    rows = keys.astype(float).tolist()
    for head, scores in zip(query.astype(float).tolist(), approx_scores(query, keys, bits)):
        expected = oracle.approx_scores(head, rows, list(range(len(head))), bits)
        assert scores.tolist() == expected, "scores differ"


@st.composite
def queries_and_keys(
    draw: st.DrawFn, ranks: tuple[int, ...] = (1, 2, 3, 8, 32, 40)
) -> tuple[np.ndarray, np.ndarray]:
    """(h, r) and (n, r), n around the blocks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rank, n = draw(st.sampled_from(ranks)), draw(st.sampled_from((1, 63, 64, 65, 127, 128, 129, 191, 192)))
    heads = draw(st.sampled_from((1, 3)))
    kinds = [draw(st.sampled_from(strategies.KINDS)) for _ in range(2)]
    return strategies.tensors(kinds[0], (heads, rank), rng), strategies.tensors(kinds[1], (n, rank), rng)


@BITS
@given(drawn=queries_and_keys())
def test_the_key_index_is_the_contract(bits: int, drawn: tuple[np.ndarray, np.ndarray]) -> None:
    check_contract(*drawn, bits)


@BITS
def test_ties_denormal_steps_and_large_ranks_are_the_contract(bits: int) -> None:
    """Codes half-way between two, one that is cut to the largest, and ranks with a limit of their own."""
    for kind, rank in (("half steps", 8), ("tiny", 8), ("normal", 32), ("normal", 40)):
        check_contract(*control(bits, kind, rank), bits)
    keys = strategies.half(np.linspace(0, 22, 64)[:, None] * np.ones(8) * 2.0**-24)  # step: 22 / 15, as 1
    check_contract(control(bits)[0], keys, bits)
    limits = [key_index.coefficient_limit(8, rank) for rank in (1, 32, 33, 40, 256)]
    assert limits == [2047, 2047, 1993, 1644, 257]
    assert [key_index.coefficient_limit(4, rank) for rank in (1, 256, 8806, 8807)] == [127, 127, 127, 126]


def control(bits: int, kind: str = "normal", rank: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """A query and keys that reach every rule; with 40 components the limit depends on the rank."""
    rng = np.random.default_rng(5)
    query = strategies.tensors("normal", (2, rank), rng)
    if kind == "half steps":
        return query, half_steps(rank, 129, bits, rng)
    return query, strategies.tensors(kind, (129, rank), rng)


@BITS
@pytest.mark.parametrize("kind", strategies.KINDS)
def test_equal_keys_score_exactly_what_they_do_with_16_bits(bits: int, kind: str) -> None:
    """step = 0, every position scores `low`; also where the block before has other values."""
    rng = np.random.default_rng(3)
    query, row = strategies.tensors("normal", (3, 8), rng), strategies.tensors(kind, (1, 8), rng)
    keys = np.concatenate([strategies.tensors("normal", (64, 8), rng), np.repeat(row, 64, axis=0)])
    index = key_index.quantise(np.ascontiguousarray(keys[64:].T), bits)
    assert not index.step.any() and not index.code.any() and (index.low[:, 0] == row[0]).all()
    got, expected = approx_scores(query, keys, bits), approx_scores(query, keys, 16)
    assert (got[:, 64:] == expected[:, 64:]).all() and (got[:, :64] != expected[:, :64]).any()


@BITS
def test_a_query_of_zeros(bits: int) -> None:
    """Every score 0, the lowest indices win, as with 16 bits (E7)."""
    x = strategies.make_attention(np.random.default_rng(0), seq_len=200, head_dim=64)
    x.query[:] = 0
    steps, expected = (
        exact.sparq_steps(*x.qkv, SparqSettings(rank=3, top_k=25), index_bits=b) for b in (bits, 16)
    )
    assert (steps.scores == 0).all() and (steps.positions == np.arange(25)).all()
    np.testing.assert_array_equal(bits_of(steps.output), bits_of(expected.output))


@BITS
def test_a_block_with_both_zeros_and_nothing_else(bits: int) -> None:
    keys = np.zeros((64, 8), np.float16)
    keys[::2] = -0.0
    scores = approx_scores(np.ones((1, 8), np.float16), keys, bits)
    assert (scores == 0).all()


@BITS
def test_keys_over_the_whole_range_of_fp16(bits: int) -> None:
    """The step is then as large as it gets: 131008 / n; nothing overflows."""
    keys = np.full((64, 256), 65504, np.float16)
    keys[::2] = -65504
    query = np.full((2, 256), 65504, np.float16)
    query[1, ::2] = -65504
    index = key_index.quantise(np.ascontiguousarray(keys.T), bits)
    assert index.step.max() == np.float16(131008 / (2**bits - 1))
    with np.errstate(all="raise"):
        scores = approx_scores(query, keys, bits)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores[0], 256 * 65504.0 * keys[:, 0].astype(float), rtol=0.02)
    check_contract(query, keys, bits)


@BITS
@pytest.mark.parametrize("spread", [1, 7, 8, 100, 2**7, 2**10, 2**12])
def test_ranges_of_denormals(bits: int, spread: int) -> None:
    """A range below n * 2**-25 has step 0; one just above has a denormal step, and codes up to n."""
    rng = np.random.default_rng(spread)
    keys = rng.integers(0, spread + 1, (64, 8))
    keys[0], keys[-1] = 0, spread
    keys = strategies.half(keys * 2.0**-24)
    index = key_index.quantise(np.ascontiguousarray(keys.T), bits)
    most = 2**bits - 1
    assert (index.step == 0).all() == (spread / most <= 0.5)
    step = float(index.step.max()) * 2**24
    assert index.code.max() == (min(most, round(spread / step)) if step else 0)
    check_contract(strategies.tensors("normal", (2, 8), rng), keys, bits)


@BITS
def test_a_step_is_a_range_times_an_inverse(bits: int) -> None:
    """Divided by the largest code, these ranges give other steps."""
    columns = near_ties.columns_with_a_step_near_a_tie(8, bits)
    check_contract(strategies.tensors("normal", (2, 8), np.random.default_rng(0)), columns.T, bits)


def test_many_components_leave_a_coefficient() -> None:
    """The largest head_dim with a key index: the limit is still 1, and sums are below 2**24."""
    assert key_index.coefficient_limit(8, 1 << 16) == 1 and key_index.coefficient_limit(4, 1 << 16) == 17


# error: derived in docs/error_bound.md, section 2


def shares(query: np.ndarray, keys: np.ndarray, bits: int, part: float = 1.0) -> tuple[float, float]:
    """Largest share of its bound that the distance takes: from the ideal twin, which scores with what is
    stored; and from float64 with the keys themselves. `part`: of the bounds."""
    full = len(keys) // 64 * 64
    got = approx_scores(query, keys, bits)[:, :full].astype(float)
    inv_tau = np.ones((1, len(query)))
    components = np.arange(query.shape[1])[None, None]
    stored = ideal.approx_scores(query[None], keys[None, None], components, inv_tau, index_bits=bits)
    true = query.astype(float) @ keys[:full].astype(float).T
    index = key_index.quantise(np.ascontiguousarray(keys[:full].T), bits)
    e = error_bound.stored_error(index, np.ascontiguousarray(keys[:full].T), bits)
    worst = np.zeros(2)
    for h, q in enumerate(query):
        d = error_bound.index_score_error(q, index, bits, 1.0, len(q))
        whole = d + np.repeat(np.abs(q.astype(float)) @ e, 64)
        for i, (other, bound) in enumerate(((stored[0, h, :full], d), (true[h], whole))):
            distance = np.abs(got[h] - other)
            assert (distance[bound == 0] == 0).all()
            worst[i] = max(worst[i], (distance / np.maximum(bound * part, 1e-300)).max(initial=0))
    return worst[0], worst[1]


@BITS
@given(drawn=queries_and_keys())
def test_scores_are_within_the_bound(bits: int, drawn: tuple[np.ndarray, np.ndarray]) -> None:
    assert max(shares(*drawn, bits)) <= 1


@BITS
@pytest.mark.parametrize("kind", strategies.KINDS)
def test_scores_of_each_kind_are_within_the_bound(bits: int, kind: str) -> None:
    rng = np.random.default_rng(11)
    for rank in (1, 16):
        query = strategies.tensors("heavy_tailed", (4, rank), rng)
        assert max(shares(query, strategies.tensors(kind, (512, rank), rng), bits)) <= 1


@BITS
def test_half_of_the_bound_is_too_little(bits: int) -> None:
    """Each of its two parts is reached: keys in the middle between codes, coefficients between integers."""
    rng = np.random.default_rng(0)
    one = np.ones((1, 1), np.float16)
    assert 0.5 < shares(one, strategies.tensors("normal", (640, 1), rng), bits)[1] <= 1
    assert shares(one, strategies.tensors("normal", (640, 1), rng), bits, part=0.5)[1] > 1
    # codes without an error, so that only the second coefficient has one: half of what is left of an integer
    most, limit = 2**bits - 1, key_index.COEFFICIENT_LIMIT[bits]
    keys = np.zeros((64, 2), np.float16)
    keys[:, 1] = rng.integers(0, most + 1, 64)
    keys[0], keys[1] = most, 0
    query = np.array([[1, 4.5 / limit]], np.float16)
    assert 0.5 < shares(query, keys, bits)[0] <= 1
    assert shares(query, keys, bits, part=0.5)[0] > 1


@BITS
def test_denormal_steps_take_the_other_part_of_the_bound(bits: int) -> None:
    """n * 2**-25, where half a step is less: the largest code is cut."""
    most = 2**bits - 1
    keys = strategies.half(np.linspace(0, 1.45 * most, 64)[:, None] * 2.0**-24)  # step: 1.45, as 1
    index = key_index.quantise(np.ascontiguousarray(keys.T), bits)
    assert (index.step == 2.0**-24).all()
    e = error_bound.stored_error(index, keys.T, bits)
    stored = index.low.astype(float)[..., None] + index.step.astype(float)[..., None] * index.code
    distance = np.abs(stored.reshape(-1) - keys[:, 0].astype(float)).max()
    # a range is whole steps here: of 2 bits it may be four of them, one more than codes have, and not 4.5
    least, near = (2, 1.2) if bits > 2 else (0.9, 1.6)
    assert least * float(index.step[0, 0]) < distance <= e[0, 0] < near * distance


@BITS
def test_the_ideal_twin_scores_with_what_is_stored(bits: int) -> None:
    """Where that is the keys themselves, bits do not matter to it; elsewhere they do."""
    rng = np.random.default_rng(1)
    most = 2**bits - 1
    whole = rng.integers(0, most + 1, (1, 1, 130, 8)).astype(float) / 4 + 3
    for start in (0, 64):
        whole[:, :, start], whole[:, :, start + 1] = 3, 3 + most / 4
    for keys, same in ((whole, True), (whole * np.float64(1 / 3), False)):
        x = strategies.make_attention(rng, seq_len=130, head_dim=8)._replace(key=strategies.half(keys))
        settings = SparqSettings(4, 16)
        a, b = (ideal.sparq_steps(*x.qkv, settings, index_bits=n) for n in (16, bits))
        assert (np.abs(a.scores - b.scores).max() < 1e-13) == same
        np.testing.assert_allclose(a.scores[..., 128:], b.scores[..., 128:], rtol=1e-13)


@BITS
def test_the_ideal_twin_takes_float16_keys_only(bits: int) -> None:
    x = strategies.make_attention(np.random.default_rng(1), head_dim=8)
    query, key, value = (a.astype(np.float32) for a in x.qkv)
    with pytest.raises(ValueError) as error:
        ideal.sparq_attention(query, key, value, rank=4, top_k=4, index_bits=bits)
    expected = f"sparq_attention: key must be float16 with index_bits={bits}, got float32"
    assert str(error.value) == expected
    ideal.sparq_attention(query, key.astype(np.float16), value, rank=4, top_k=4, index_bits=bits)
    ideal.sparq_attention(query, key, value, rank=4, top_k=4)
