# SPDX-License-Identifier: Apache-2.0
"""Laws of the exact twin, bit for bit; each is a function, so that a broken twin can be shown to break it."""

from __future__ import annotations

import dataclasses
from typing import Callable

import numpy as np
import pytest
import strategies
from fp32_results import before_narrowing
from hypothesis import example, given
from hypothesis import strategies as st

from sparq_reference import KVCache, SparqSettings, exact, numerics, twin


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Equal bits; the sign of zero counts."""
    assert a.shape == b.shape and a.dtype == b.dtype
    np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def both(x: strategies.Attention, settings: SparqSettings, index_bits: int = 16) -> list[np.ndarray]:
    """Dense and SparQ attention of one batch."""
    return [
        exact.dense_attention(*x.qkv, lengths=x.lengths),
        exact.sparq_attention(*x.qkv, lengths=x.lengths, index_bits=index_bits, **settings.arguments()),
    ]


def law_top_k_of_everything_is_dense(
    x: strategies.Attention, settings: SparqSettings, index_bits: int = 16
) -> None:
    """k >= S: dense attention, whatever r and l (E7)."""
    top_k = max(settings.top_k, x.key.shape[2])
    for results in (both, before_narrowing):
        dense, sparq = results(x, dataclasses.replace(settings, top_k=top_k), index_bits)
        same(sparq, dense)


def law_batch_elements_do_not_meet(
    x: strategies.Attention, settings: SparqSettings, index_bits: int = 16
) -> None:
    """Each element alone, and cut to its length, gives what it gives in the batch."""

    def results(x: strategies.Attention) -> list[np.ndarray]:
        return both(x, settings, index_bits) + before_narrowing(x, settings, index_bits)

    whole = results(x)
    for b, n in enumerate(x.lengths):
        one = slice(b, b + 1)
        alone = strategies.Attention(x.query[one], x.key[one, :, :n], x.value[one, :, :n], x.lengths[one])
        for got, expected in zip(results(alone), whole):
            same(got, expected[one])


def law_permuting_batch_and_kv_heads_permutes_results(
    x: strategies.Attention, settings: SparqSettings, rng: np.random.Generator, index_bits: int = 16
) -> None:
    """Batch elements and KV heads (with their groups) are only names."""
    n_kv_heads = x.key.shape[1]
    batch, heads = rng.permutation(len(x.query)), rng.permutation(n_kv_heads)

    def permute_heads(y: np.ndarray) -> np.ndarray:
        grouped = y.reshape(y.shape[0], n_kv_heads, -1, y.shape[2])
        return grouped[batch][:, heads].reshape(y.shape)

    permuted = strategies.Attention(
        permute_heads(x.query), x.key[batch][:, heads], x.value[batch][:, heads], x.lengths[batch]
    )
    for results in (both, before_narrowing):
        for got, original in zip(results(permuted, settings, index_bits), results(x, settings, index_bits)):
            same(got, permute_heads(original))


def law_scaling_the_query_scales_the_scores(
    x: strategies.Attention, rank: int, power: int, index_bits: int = 16
) -> None:
    """A power of two in q: same components, same temperature, scores times that power."""
    n_kv_heads = x.key.shape[1]
    scaled = x.query * np.float16(2.0**power)

    def steps(query: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        components = exact.query_components(query, rank=rank, n_kv_heads=n_kv_heads)
        inv_tau = exact.inverse_temperature(query, components)
        scores = exact.approx_scores(
            query, x.key, components, inv_tau, index_bits=index_bits, lengths=x.lengths
        )
        return components, inv_tau, scores

    (i1, tau, s), (i1_scaled, tau_scaled, s_scaled) = steps(x.query), steps(scaled)
    np.testing.assert_array_equal(i1, i1_scaled)
    same(tau_scaled, tau)
    same(s_scaled, s * np.float32(2.0**power))


def law_full_rank_is_the_dense_softmax(x: strategies.Attention) -> None:
    """r = d: all components, and the temperature of dense attention, sqrt(d), to the last bit of `sqrt`."""
    n_kv_heads, head_dim = x.key.shape[1], x.query.shape[-1]
    components = exact.query_components(x.query, rank=head_dim, n_kv_heads=n_kv_heads)
    assert (components == np.arange(head_dim)).all()
    inv_tau = exact.inverse_temperature(x.query, components)
    zero = ~x.query.any(axis=-1)
    assert (inv_tau[zero] == numerics.scale(head_dim)).all()
    np.testing.assert_allclose(inv_tau, head_dim**-0.5, rtol=2.0**-21)


def law_ties_go_to_the_lower_index(
    x: strategies.Attention, settings: SparqSettings, index_bits: int = 16
) -> None:
    """Top-r and top-k equal a sort by (larger, lower index), taken ascending (E7)."""
    n_kv_heads = x.key.shape[1]
    steps = exact.sparq_steps(*x.qkv, settings, index_bits=index_bits, lengths=x.lengths)

    def best(numbers: np.ndarray, count: int) -> list[int]:
        return sorted(sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))[:count])

    magnitude = numerics.group_sum(np.abs(x.query), n_kv_heads)
    merit = numerics.group_sum(steps.weights / steps.weight_sum[..., None], n_kv_heads)
    for b, n in enumerate(x.lengths):
        count = min(settings.top_k, n)
        local = min(settings.n_local, count)
        for kv in range(n_kv_heads):
            assert steps.components[b, kv].tolist() == best(magnitude[b, kv], settings.rank)
            expected = best(merit[b, kv, : n - local], count - local) + list(range(n - local, n))
            assert steps.positions[b, kv, :count].tolist() == expected
            assert (steps.positions[b, kv, count:] == -1).all()


def law_append_in_pieces(
    x: strategies.Attention,
    settings: SparqSettings,
    pieces: Callable[[int], list[int]],
    index_bits: int = 16,
) -> None:
    """However the tokens came into the cache, its contents, sums and results are those of one bulk write."""
    batch, n_kv_heads, seq_len, head_dim = x.key.shape
    bulk, piecewise = (
        KVCache(batch, n_kv_heads, head_dim, seq_len + 3, index_bits=index_bits) for _ in range(2)
    )
    bulk.append(x.key, x.value, x.lengths)
    start = 0
    for size in pieces(seq_len):
        part = slice(start, start + size)
        piecewise.append(x.key[:, :, part], x.value[:, :, part], np.clip(x.lengths - start, 0, size))
        start += size
    assert start == seq_len
    for cache in (bulk, piecewise):
        np.testing.assert_array_equal(cache.lengths, x.lengths)
        same(cache.key, x.key)
        same(cache.value, x.value)
    same(piecewise.value_sum, bulk.value_sum)
    for got, expected in zip(
        (piecewise.dense_attention(x.query), piecewise.sparq_attention(x.query, **settings.arguments())),
        both(x, settings, index_bits),
    ):
        same(got, expected)


def ones(n: int) -> list[int]:
    return [1] * n


def halves(n: int) -> list[int]:
    return [n // 2, n - n // 2] if n > 1 else [n]


def thirteens(n: int) -> list[int]:
    return [13] * (n // 13) + ([n % 13] if n % 13 else [])


drawn = st.data()


@given(drawn)
def test_top_k_of_everything_is_dense(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions())
    law_top_k_of_everything_is_dense(
        x, data.draw(strategies.sparq_settings(x)), data.draw(strategies.index_bits)
    )


@given(drawn)
def test_batch_elements_do_not_meet(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions())
    law_batch_elements_do_not_meet(
        x, data.draw(strategies.sparq_settings(x)), data.draw(strategies.index_bits)
    )


@given(drawn, st.integers(0, 2**32 - 1))
def test_permuting_batch_and_kv_heads_permutes_results(data: st.DataObject, seed: int) -> None:
    x = data.draw(strategies.attentions())
    settings = data.draw(strategies.sparq_settings(x))
    law_permuting_batch_and_kv_heads_permutes_results(
        x, settings, np.random.default_rng(seed), data.draw(strategies.index_bits)
    )


@given(drawn, st.integers(-3, 3))
def test_scaling_the_query_scales_the_scores(data: st.DataObject, power: int) -> None:
    x = data.draw(
        strategies.attentions(kinds=("constant", "one_hot", "ties"))
    )  # exact under the scaling, in fp16
    rank = data.draw(strategies.sparq_settings(x)).rank
    law_scaling_the_query_scales_the_scores(x, rank, power, data.draw(strategies.index_bits))


@given(strategies.attentions())
def test_full_rank_is_the_dense_softmax(x: strategies.Attention) -> None:
    law_full_rank_is_the_dense_softmax(x)


@given(drawn)
def test_ties_go_to_the_lower_index(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions(kinds=("constant", "ties", "one_hot", "sparse", "normal")))
    law_ties_go_to_the_lower_index(
        x, data.draw(strategies.sparq_settings(x)), data.draw(strategies.index_bits)
    )


@pytest.mark.parametrize("pieces", [ones, halves, thirteens])
@given(data=drawn)
def test_append_in_pieces(pieces: Callable[[int], list[int]], data: st.DataObject) -> None:
    x = data.draw(strategies.attentions(head_dims=(8, 64)))
    law_append_in_pieces(x, data.draw(strategies.sparq_settings(x)), pieces, data.draw(strategies.index_bits))


@given(strategies.attentions(), st.integers(0, 5))
@example(strategies.make_attention(np.random.default_rng(0), kinds=("tiny", "huge", "one_hot")), 3)
def test_given_value_sum_changes_nothing(x: strategies.Attention, n_local: int) -> None:
    value_sum = exact.sum_values(x.value, lengths=x.lengths)
    sparq = dict(rank=4, top_k=5, n_local=n_local, lengths=x.lengths)
    same(exact.sparq_attention(*x.qkv, value_sum=value_sum, **sparq), exact.sparq_attention(*x.qkv, **sparq))


# sizes around the lanes and the blocks, at the limits of every setting


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
    same(negative, steps.output)


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
    same(exact.dense_attention(x.query, x.key, -value), -y)


def test_memory_layout_changes_nothing() -> None:
    x = strategies.make_attention(np.random.default_rng(0), batch=2, n_kv_heads=3, group_size=2, seq_len=130)
    sparq = dict(rank=16, top_k=32, n_local=4)
    expected = exact.sparq_attention(*x.qkv, **sparq)
    columns = [np.asfortranarray(a) for a in x.qkv]
    reversed_twice = [a[..., ::-1].copy()[..., ::-1] for a in x.qkv]
    for tensors in (columns, reversed_twice):
        assert not any(a.flags.c_contiguous for a in tensors)
        same(exact.sparq_attention(*tensors, **sparq), expected)


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


# each law notices a twin that breaks it

CONTROL = dict(batch=3, n_kv_heads=3, group_size=2, seq_len=193, head_dim=64, lengths=[193, 65, 128])
SETTINGS = SparqSettings(16, 32, 8, True)


def control(kind: str = "normal") -> strategies.Attention:
    return strategies.make_attention(np.random.default_rng(9), kinds=(kind,) * 3, **CONTROL)


def expect_broken(law: Callable[..., None], *arguments: object) -> None:
    with pytest.raises(AssertionError):
        law(*arguments)


def test_a_share_that_never_reaches_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exact.selected_share
    monkeypatch.setattr(exact, "selected_share", lambda *a: right(*a) * np.float32(1 - 2.0**-12))
    expect_broken(law_top_k_of_everything_is_dense, control(), SETTINGS)


def test_sums_in_another_order_for_lists_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_backwards(query, key, value, positions, counts):
        return right(query, key, value, -np.sort(-positions, axis=-1), counts)  # the padding stays last

    right = exact.gathered_attention
    monkeypatch.setattr(exact, "gathered_attention", list_backwards)
    expect_broken(law_top_k_of_everything_is_dense, control(), SETTINGS)


def test_elements_that_meet_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exact.softmax_weights

    def one_maximum_for_all(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weights, total, maximum = right(scores)
        return weights, np.full_like(total, total.max()), maximum

    monkeypatch.setattr(exact, "softmax_weights", one_maximum_for_all)
    expect_broken(law_batch_elements_do_not_meet, control(), SETTINGS)


def test_a_head_that_reads_the_wrong_kv_head_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = twin.each_kv_head

    def first_kv_head_twice(query: np.ndarray, key: np.ndarray):
        for b, kv, heads in right(query, key):
            yield b, min(kv, 1), heads

    monkeypatch.setattr(twin, "each_kv_head", first_kv_head_twice)
    arguments = control(), SETTINGS, np.random.default_rng(0)
    expect_broken(law_permuting_batch_and_kv_heads_permutes_results, *arguments)


def test_a_temperature_that_sees_the_size_of_q_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exact.inverse_temperature
    wrong = lambda q, components: right(q + np.float16(0.01), components)  # noqa: E731
    monkeypatch.setattr(exact, "inverse_temperature", wrong)
    expect_broken(law_scaling_the_query_scales_the_scores, control("ties"), 16, 1)


def test_a_temperature_without_the_dimension_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exact.inverse_temperature
    monkeypatch.setattr(exact, "inverse_temperature", lambda *a: right(*a) * np.float32(2))
    expect_broken(law_full_rank_is_the_dense_softmax, control())


@pytest.mark.parametrize("step", ["query_components", "key_topk"])
def test_ties_to_the_higher_index_are_noticed(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    class HigherFirst:
        """NumPy, but argsort prefers the higher index among equals."""

        def __getattr__(self, name: str) -> object:
            return getattr(np, name)

        @staticmethod
        def argsort(x: np.ndarray, axis: int, kind: str) -> np.ndarray:
            return x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind=kind)

    right = getattr(exact, step)

    def wrong(*arguments: object, **named: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(twin, "np", HigherFirst())
            return right(*arguments, **named)

    law_ties_go_to_the_lower_index(control("ties"), SETTINGS)
    monkeypatch.setattr(exact, step, wrong)
    expect_broken(law_ties_go_to_the_lower_index, control("constant"), SETTINGS)


def test_a_sum_of_values_by_blocks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exact.sum_values

    def each_append_sums_alone(value, *, lengths, initial=None):
        total = right(value, lengths=lengths)
        return total if initial is None else initial + total

    x = control("wide")  # sums that round
    law_append_in_pieces(x, SETTINGS, thirteens)
    monkeypatch.setattr(exact, "sum_values", each_append_sums_alone)
    expect_broken(law_append_in_pieces, x, SETTINGS, thirteens)
