# SPDX-License-Identifier: Apache-2.0
"""The ideal twin against the equations of arXiv:2312.04985v6, once more and as they stand: with masks."""

from __future__ import annotations

import numpy as np
import strategies
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import SparqSettings, ideal


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def top_mask(x: np.ndarray, count: int) -> np.ndarray:
    """1 for the `count` largest, equal values by lower index, else 0."""
    mask = np.zeros(len(x))
    mask[sorted(range(len(x)), key=lambda i: (-x[i], i))[:count]] = 1
    return mask


def dense_of_the_paper(q: np.ndarray, K: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Equation 2, one head."""
    return softmax(q @ K.T / np.sqrt(len(q))) @ V


def sparq_of_the_paper(
    q: np.ndarray, K: np.ndarray, V: np.ndarray, settings: SparqSettings, wrong: str = ""
) -> np.ndarray:
    """Equations 7 to 10 and the local mask of Algorithm 1 for a group q (g, d_h); `wrong` changes one."""
    d_h, S = q.shape[1], len(K)
    m_q = top_mask(np.abs(q).sum(axis=0), settings.rank)
    s_hat = []
    for head in q:
        one = np.abs(head).sum()
        tau = np.sqrt(d_h * np.abs(head * m_q).sum() / one) if (head * m_q).any() else np.sqrt(d_h)
        tau = np.sqrt(d_h) if wrong == "temperature" else tau
        s_hat.append(softmax((head * m_q) @ K.T / tau))
    local = np.arange(S) >= S - settings.n_local
    m_s = top_mask(sum(s_hat) + (0 if wrong == "local" else len(q)) * local, settings.top_k)
    output = []
    for head, s in zip(q, s_hat):
        with np.errstate(divide="ignore"):
            y3 = softmax(head @ K.T / np.sqrt(d_h) + np.log(m_s)) @ V
        alpha = m_s @ s
        mixed = settings.mean_value and wrong != "mean"
        output.append(alpha * y3 + (1 - alpha) * V.mean(axis=0) if mixed else y3)
    return np.array(output)


def distances(
    x: strategies.Attention, settings: SparqSettings, wrong: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Largest |dense|, |SparQ| difference from the paper, relative to the largest value."""
    dense = ideal.dense_attention(*x.qkv, lengths=x.lengths)
    sparq = ideal.sparq_attention(*x.qkv, lengths=x.lengths, **settings.arguments())
    group_size = x.query.shape[1] // x.key.shape[1]
    worst = np.zeros(2)
    for b, n in enumerate(x.lengths):
        for kv in range(x.key.shape[1]):
            heads = slice(kv * group_size, (kv + 1) * group_size)
            q, K, V = (a.astype(float) for a in (x.query[b, heads], x.key[b, kv, :n], x.value[b, kv, :n]))
            size = max(1.0, np.abs(V).max())
            expected = np.array([dense_of_the_paper(head, K, V) for head in q])
            worst[0] = max(worst[0], np.abs(dense[b, heads] - expected).max() / size)
            expected = sparq_of_the_paper(q, K, V, settings, wrong)
            worst[1] = max(worst[1], np.abs(sparq[b, heads] - expected).max() / size)
    return worst[0], worst[1]


#: sums of a few hundred float64 terms
ROUNDING = 1e-12


@given(st.data())
def test_ideal_is_the_paper(data: st.DataObject) -> None:
    # kinds without near ties: float64 sums in another order could turn one
    x = data.draw(strategies.attentions(kinds=("normal", "sparse", "one_hot")))
    settings = data.draw(strategies.sparq_settings(x))
    x = x._replace(key=strategies.make_attention(np.random.default_rng(0), **sizes(x)).key)
    assert max(distances(x, settings)) < ROUNDING


def sizes(x: strategies.Attention) -> dict[str, object]:
    batch, n_kv_heads, seq_len, head_dim = x.key.shape
    return dict(batch=batch, n_kv_heads=n_kv_heads, seq_len=seq_len, head_dim=head_dim, lengths=x.lengths)


def test_values_are_summed_up_to_the_length_and_on_top_of_the_initial_sum() -> None:
    x = strategies.make_attention(np.random.default_rng(3), batch=2, seq_len=9, lengths=[9, 4])
    first, rest = ideal.sum_values(x.value, lengths=[3, 2]), ideal.sum_values(x.value, lengths=x.lengths)
    assert not np.allclose(first, rest)
    for b, n in enumerate(x.lengths):
        np.testing.assert_allclose(rest[b], x.value[b, :, :n].astype(float).sum(axis=1), rtol=0, atol=1e-12)
    both = ideal.sum_values(x.value, lengths=x.lengths, initial=first)
    np.testing.assert_allclose(both, first + rest, rtol=0, atol=1e-12)


def test_by_hand() -> None:
    """Small enough for paper: d = 4, S = 3, r = 1, k = 1."""
    q = np.array([[[3.0, 0, 1, 0]]])
    key = np.array([[[[0.0, 9, 0, 9], [2, 0, 0, 0], [1, 0, 4, 0]]]])
    value = np.array([[[[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]]])
    steps = ideal.sparq_steps(q, key, value, SparqSettings(rank=1, top_k=1))
    assert steps.components.tolist() == [[[0]]]
    tau = np.sqrt(4 * 3 / 4)  # equation 9
    np.testing.assert_allclose(steps.inv_tau, [[1 / tau]], rtol=1e-15)
    np.testing.assert_allclose(steps.scores, [[[0, 6 / tau, 3 / tau]]], rtol=1e-15)
    assert steps.positions.tolist() == [[[1]]]
    alpha = np.exp(6 / tau) / (1 + np.exp(6 / tau) + np.exp(3 / tau))
    np.testing.assert_allclose(steps.alpha, [[alpha]], rtol=1e-14)
    rest = (1 - alpha) / 3
    np.testing.assert_allclose(steps.output, [[[rest, alpha + rest, rest, 0]]], rtol=1e-13)
