# SPDX-License-Identifier: Apache-2.0
"""The exact twin equals the contract written once more in plain Python, bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import contract_oracle as oracle
import numpy as np
import pytest
import strategies
from bits import assert_bits
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import SparqSettings, exact
from sparq_reference.twin import each_kv_head

SMALL = dict(
    head_dims=(8, 16, 24, 40), seq_lens=(1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 191, 193), batches=(1, 2)
)


class Contract(NamedTuple):
    """What the oracle says of one input: dense and SparQ attention, before the last rounding and after it."""

    wide: list[np.ndarray]
    narrow: list[np.ndarray]


def contract_of(x: strategies.Attention, settings: SparqSettings, index_bits: int = 16) -> Contract:
    group_size = x.query.shape[1] // x.key.shape[1]
    wide = [np.empty(x.query.shape, np.float32) for _ in range(2)]
    narrow = [np.empty(x.query.shape, np.float16) for _ in range(2)]
    for b, n in enumerate(x.lengths):
        for kv in range(x.key.shape[1]):
            heads = slice(kv * group_size, (kv + 1) * group_size)
            lists = [
                a.astype(float).tolist() for a in (x.query[b, heads], x.key[b, kv, :n], x.value[b, kv, :n])
            ]
            sparq = oracle.sparq(*lists, **settings.arguments(), index_bits=index_bits)
            for i, rows in enumerate((oracle.dense(*lists), sparq)):
                wide[i][b, heads] = rows
                narrow[i][b, heads] = [[oracle.narrow(y) for y in row] for row in rows]
    return Contract(wide, narrow)


def before_narrowing(
    x: strategies.Attention, settings: SparqSettings, index_bits: int = 16
) -> list[np.ndarray]:
    """Dense and SparQ attention in float32: fp16 outputs hide most errors of a few ulp."""
    dense = np.empty(x.query.shape, np.float32)
    for b, kv, heads in each_kv_head(x.query, x.key):
        n = x.lengths[b]
        dense[b, heads] = exact._attend(x.query[b, heads], x.key[b, kv, :n], x.value[b, kv, :n])[0]
    steps = exact.sparq_steps(*x.qkv, settings, index_bits=index_bits, lengths=x.lengths)
    sparq = exact.combine(steps.attended, steps.alpha, steps.mean) if settings.mean_value else steps.attended
    return [dense, sparq]


def check_contract(x: strategies.Attention, settings: SparqSettings, index_bits: int = 16) -> None:
    """Dense and SparQ attention equal the oracle, in float32 before the last rounding and after it."""
    expected = contract_of(x, settings, index_bits)
    for got, wide in zip(before_narrowing(x, settings, index_bits), expected.wide):
        assert_bits(got, wide)
    assert_bits(exact.dense_attention(*x.qkv, lengths=x.lengths), expected.narrow[0])
    got = exact.sparq_attention(*x.qkv, lengths=x.lengths, index_bits=index_bits, **settings.arguments())
    assert_bits(got, expected.narrow[1])


@given(st.data())
def test_attention_is_the_contract(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions(**SMALL))
    check_contract(x, data.draw(strategies.sparq_settings(x)), data.draw(strategies.index_bits))


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        # in which every wrong step of the arithmetic shows
        (
            SparqSettings(8, 128, 16, True),
            dict(batch=3, n_kv_heads=4, group_size=3, seq_len=257, head_dim=24),
        ),
        (SparqSettings(4, 8, 0, True), dict(seq_len=65, head_dim=16, kinds=("ties",) * 3)),
    ],
)
def test_many_outputs_and_ties(settings: SparqSettings, shape: dict) -> None:
    check_contract(strategies.make_attention(np.random.default_rng(1), **shape), settings)
