# SPDX-License-Identifier: Apache-2.0
"""The exact twin where random inputs seldom lead: zeros, sums below the flush, overflow, layouts. All else
follows from test_reference_contract.py: the twin equals the contract, written once more, on random inputs."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from bits import assert_bits
from hypothesis import example, given
from hypothesis import strategies as st

from sparq_reference import SparqSettings, exact, numerics


@given(strategies.attentions(), st.integers(0, 5))
@example(strategies.make_attention(np.random.default_rng(0), kinds=("tiny", "huge", "one_hot")), 3)
def test_given_value_sum_changes_nothing(x: strategies.Attention, n_local: int) -> None:
    value_sum = exact.sum_values(x.value, lengths=x.lengths)
    sparq = dict(rank=4, top_k=5, n_local=n_local, lengths=x.lengths)
    assert_bits(
        exact.sparq_attention(*x.qkv, value_sum=value_sum, **sparq), exact.sparq_attention(*x.qkv, **sparq)
    )


@pytest.mark.parametrize("seq_len", strategies.SEQ_LENS)
def test_every_limit(seq_len: int) -> None:
    x = strategies.make_attention(np.random.default_rng(seq_len), seq_len=seq_len, group_size=2, head_dim=16)
    dense = exact.dense_attention(*x.qkv)
    for top_k in {1, max(1, seq_len - 1), seq_len, seq_len + 1}:
        for rank in (1, 16):
            for n_local in {0, min(1, top_k), top_k}:
                y = exact.sparq_attention(*x.qkv, rank=rank, top_k=top_k, n_local=n_local)
                assert np.isfinite(y).all()
                assert np.array_equal(y, dense) == (top_k >= seq_len), (top_k, rank, n_local)


def test_a_query_of_zeros() -> None:
    """inv_tau = scale(d), every score 0, the lowest indices win, alpha = k / S (E7)."""
    x = strategies.make_attention(np.random.default_rng(0), seq_len=100, head_dim=64)
    zero = x._replace(query=np.zeros_like(x.query))
    steps = exact.sparq_steps(*zero.qkv, SparqSettings(rank=3, top_k=25))
    assert (steps.components == [0, 1, 2]).all() and (steps.inv_tau == numerics.scale(64)).all()
    assert (steps.scores == 0).all() and (steps.positions == np.arange(25)).all()
    assert (steps.alpha == np.float32(0.25)).all()
    negative = exact.sparq_attention(-zero.query, zero.key, zero.value, rank=3, top_k=25)  # -0 equals +0
    assert_bits(negative, steps.output)


def test_only_the_head_with_zeros_in_the_group_takes_the_fallback() -> None:
    x = strategies.make_attention(np.random.default_rng(0), group_size=2, head_dim=8)
    x.query[0, 0] = 0
    components = exact.query_components(x.query, rank=2, n_kv_heads=1)
    inv_tau = exact.inverse_temperature(x.query, components)
    assert inv_tau[0, 0] == numerics.scale(8) and inv_tau[0, 1] > numerics.scale(8)


def test_a_share_below_the_flush_is_zero() -> None:
    """alpha = flush(W / Z): a share just below 2**-48 is +0, one at it stays (E6, step 5)."""
    for share, expected in ((2.0**-48, 2.0**-48), (np.nextafter(np.float32(2.0**-48), np.float32(0)), 0)):
        weights = np.array([[[1, share]]], np.float32)
        alpha = exact.selected_share(weights, np.ones((1, 1), np.float32), np.array([[[1]]]))
        assert alpha[0, 0] == np.float32(expected)


def test_a_sum_below_the_flush_is_zero() -> None:
    """Values of -2**-24 with a weight of exp(-20) give about -2**-53, and so +0; with exp(-14) a negative
    number, which is -0 in float16 (E2, E6)."""
    for score, stays in ((-20, False), (-14, True)):
        query, key, value = np.zeros((1, 1, 8), np.float16), *np.zeros((2, 1, 1, 2, 8), np.float16)
        query[..., 0], key[..., 1, 0] = 1, score * 8**0.5
        value[..., 1, :] = -(2.0**-24)
        attended = exact.gathered_attention(query, key, value, np.array([[[0, 1]]]), np.array([2]))
        assert ((attended < 0) == stays).all() and ((attended == 0) != stays).all()
        assert (np.signbit(exact.dense_attention(query, key, value)) == stays).all()


def test_a_share_never_exceeds_one() -> None:
    """A sum over some positions, in the blocks of all: rounding is monotone, so it is not above that of all.
    In blocks of the list of these positions it may be (E6, step 5)."""
    rng = np.random.default_rng(0)
    exceeded = 0
    for _ in range(200):
        weights = rng.random((1, 1, 200)).astype(np.float32)
        weights[..., rng.permutation(200)[:70]] = 0
        positions = np.flatnonzero(weights[0, 0])[None, None]
        total = numerics.fold_blocks(numerics.block_sums(weights))
        exceeded += numerics.fold_blocks(numerics.block_sums(weights[..., positions[0, 0]])) > total
        assert exact.selected_share(weights, total, positions) <= 1
    assert exceeded > 0


def test_the_given_value_sum_is_the_one_used() -> None:
    x = strategies.make_attention(np.random.default_rng(0))
    value_sum = exact.sum_values(x.value) + np.float32(64)
    sparq = dict(rank=4, top_k=8)
    assert not np.array_equal(
        exact.sparq_attention(*x.qkv, **sparq, value_sum=value_sum), exact.sparq_attention(*x.qkv, **sparq)
    )


def test_overflow_saturates() -> None:
    """Values of 65504, averaged with rounding up, stay 65504."""
    x = strategies.make_attention(np.random.default_rng(0), seq_len=129)
    value = np.full_like(x.value, 65504)
    y = exact.dense_attention(x.query, x.key, value)
    assert (y == 65504).all() and np.isfinite(y).all()
    assert_bits(exact.dense_attention(x.query, x.key, -value), -y)


def test_memory_layout_changes_nothing() -> None:
    x = strategies.make_attention(np.random.default_rng(0), batch=2, n_kv_heads=3, group_size=2, seq_len=130)
    sparq = dict(rank=16, top_k=32, n_local=4)
    expected = exact.sparq_attention(*x.qkv, **sparq)
    columns = [np.asfortranarray(a) for a in x.qkv]
    reversed_twice = [a[..., ::-1].copy()[..., ::-1] for a in x.qkv]
    for tensors in (columns, reversed_twice):
        assert not any(a.flags.c_contiguous for a in tensors)
        assert_bits(exact.sparq_attention(*tensors, **sparq), expected)


def test_inputs_are_not_changed() -> None:
    x = strategies.make_attention(np.random.default_rng(0), seq_len=70, lengths=[33])
    value_sum = exact.sum_values(x.value, lengths=x.lengths)
    before = [a.copy() for a in (*x.qkv, x.lengths, value_sum)]
    for a in (*x.qkv, x.lengths, value_sum):
        a.flags.writeable = False
    exact.dense_attention(*x.qkv, lengths=x.lengths)
    exact.sparq_attention(*x.qkv, rank=8, top_k=16, lengths=x.lengths, value_sum=value_sum)
    exact.sum_values(x.value, lengths=x.lengths, initial=value_sum)
    for a, b in zip((*x.qkv, x.lengths, value_sum), before):
        np.testing.assert_array_equal(a, b)
