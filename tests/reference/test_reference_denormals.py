# SPDX-License-Identifier: Apache-2.0
"""No fp32 denormal ever appears (E2), in any intermediate of any call."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from hypothesis import example, given
from hypothesis import strategies as st
from watched import watched_twin

from sparq_reference import SparqSettings, exact

TINY = np.finfo(np.float32).tiny


class Watch:
    """Looks at every float32 result: counts them and the denormals, keeps the smallest; no NaN may pass."""

    def __init__(self) -> None:
        self.seen = 0
        self.smallest = np.inf
        self.denormals = 0

    def __call__(self, x: object) -> object:
        if isinstance(x, (np.ndarray, np.float32)) and x.dtype == np.float32 and np.size(x):
            nonzero = np.abs(x[x != 0] if np.ndim(x) else np.atleast_1d(x)[np.atleast_1d(x) != 0])
            self.seen += np.size(x)
            self.smallest = min(self.smallest, float(np.min(nonzero, initial=np.inf)))
            self.denormals += int((nonzero < TINY).sum())
            assert not np.isnan(x).any()
        return x


def run(
    x: strategies.Attention, settings: SparqSettings, change: object = None, index_bits: int = 16
) -> Watch:
    """Dense and SparQ attention under watch; `change(exact, numerics)` may spoil the copies first."""
    watch = Watch()
    twin, arithmetic = watched_twin(watch)
    sparq_arguments = dict(lengths=x.lengths, index_bits=index_bits, **settings.arguments())
    if change:
        change(twin, arithmetic)
    with np.errstate(
        over="raise", divide="raise", invalid="raise", under="raise" if not change else "ignore"
    ):
        dense = twin.dense_attention(*x.qkv, lengths=x.lengths)
        sparq = twin.sparq_attention(*x.qkv, **sparq_arguments)
    if not change:  # the watch changes no bit
        np.testing.assert_array_equal(dense, exact.dense_attention(*x.qkv, lengths=x.lengths))
        np.testing.assert_array_equal(sparq, exact.sparq_attention(*x.qkv, **sparq_arguments))
    return watch


def adversary(local_score: float = -28.0, n_local: int = 0) -> tuple[strategies.Attention, SparqSettings]:
    """Scores spread over [-90, 0], so that weights reach the cut, against the smallest and largest values.

    Local positions have an approximate score near `local_score`, so that alpha is e**local_score if only they
    are selected; one of them takes nearly all the full weight and has values of 0, so that sums are near
    2**-77 * 2**-24.
    """
    rng = np.random.default_rng(0)
    seq_len, head_dim, n_far = 200, 64, 184
    x = strategies.make_attention(rng, seq_len=seq_len, head_dim=head_dim, kinds=("normal", "sparse", "tiny"))
    query, key, value = (a.copy() for a in x.qkv)
    query[:] = 0
    query[..., :2] = 8, 4
    inv_tau = (12 / (head_dim * 8)) ** 0.5  # at rank 1
    key[..., :2] = 0
    key[..., :n_far, 0] = -np.linspace(0, 90, n_far) / (8 * inv_tau)
    key[..., n_far:, 0] = local_score / (8 * inv_tau)
    key[..., n_far + 1 :, 1] = -53 * 8 / 4
    value[..., 0] = strategies.half(np.where(np.arange(seq_len) % 2, 2.0**-24, -(2.0**-24)))
    value[..., -8:] = strategies.half(rng.choice([2.0**-24, 2.0**-14, 65504.0], value[..., -8:].shape))
    value[..., n_far, :] = 0
    return x._replace(query=query, key=key, value=value), SparqSettings(1, 16, n_local, True)


@given(st.data())
def test_no_denormal_on_drawn_inputs(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions(head_dims=(8, 64, 128)))
    watch = run(x, data.draw(strategies.sparq_settings(x)), index_bits=data.draw(strategies.index_bits))
    assert watch.seen > 0 and watch.denormals == 0, f"smallest {watch.smallest}"


@given(st.floats(-56, 0), st.integers(0, 16))
@example(-28.0, 16)
@example(-54.0, 16)
@example(-28.0, 0)
def test_no_denormal_on_adversarial_inputs(local_score: float, n_local: int) -> None:
    watch = run(*adversary(local_score, n_local))
    assert watch.denormals == 0, f"smallest {watch.smallest}"
    assert watch.smallest < 2.0**-95  # the inputs do reach the region the rules are for


def test_the_watch_sees_every_kind_of_operation() -> None:
    watch = run(*adversary())
    x, _ = adversary()
    assert watch.seen > 20 * x.key.size  # widening, products, lanes, folds: many results for each input


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("the cut below -54", lambda twin, arithmetic: setattr(arithmetic, "CUTOFF", np.float32(-87))),
        ("flush", lambda twin, arithmetic: setattr(arithmetic, "FLUSH_BELOW", np.float32(0))),
    ],
)
def test_without_a_rule_there_are_denormals(rule: str, change: object) -> None:
    del rule
    counts = [run(*adversary(n_local=n_local), change=change).denormals for n_local in (0, 16)]
    assert max(counts) > 0


def test_exp_makes_no_denormal_of_tiny_arguments() -> None:
    """Without the rule that treats x > -2**-25 as 0, r * r underflows."""
    tiny = -(2.0 ** np.arange(-149, -20, dtype=float)).astype(np.float32)
    for rule, found in ((np.float32(-(2.0**-25)), False), (np.float32(0), True)):
        watch = Watch()
        _, arithmetic = watched_twin(watch)
        arithmetic._EXP_TINY = rule
        with np.errstate(under="ignore"):
            arithmetic.exp(tiny[tiny < -TINY])
        assert (watch.denormals > 0) == found
