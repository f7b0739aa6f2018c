# SPDX-License-Identifier: Apache-2.0
"""What the generators of inputs can draw: a case that none of them draws is a case that no test tries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import strategies
from hypothesis import find, settings

FEW = settings(max_examples=500, database=None, derandomize=True)


@pytest.mark.parametrize(("longest", "shortest"), itertools.permutations(range(3), 2))
def test_any_element_may_be_the_longest_or_the_shortest(longest: int, shortest: int) -> None:
    def there(lengths: np.ndarray) -> bool:
        return lengths.argmax() == longest and lengths[::-1].argmin() == 2 - shortest

    for x in (
        find(strategies.lengths_of_batch(3, 9), there, settings=FEW),
        find(
            strategies.attentions(batches=(3,), head_dims=(8,), seq_lens=(1, 2, 7, 8, 9)),
            lambda x: there(x.lengths),
            settings=FEW,
        ).lengths,
    ):
        assert x.shape == (3,) and 1 <= x.min() <= x.max()


def test_some_element_is_as_long_as_the_tensors() -> None:
    x = find(strategies.attentions(batches=(2,)), lambda x: x.lengths.min() < x.lengths.max(), settings=FEW)
    assert x.lengths.max() == x.key.shape[2]
    for b, n in enumerate(x.lengths):  # nothing to read beyond a length
        assert np.isnan(x.key[b, :, n:]).all() and np.isfinite(x.key[b, :, :n]).all()


def test_settings_reach_their_limits() -> None:
    x = strategies.make_attention(np.random.default_rng(0), seq_len=64, head_dim=16)
    for reached in (
        lambda s: s.rank == 1,
        lambda s: s.rank == 16,
        lambda s: s.top_k == 1,
        lambda s: s.top_k > 64,
        lambda s: s.n_local == 0,
        lambda s: 1 < s.n_local == s.top_k,
        lambda s: not s.mean_value,
    ):
        find(strategies.sparq_settings(x), reached, settings=FEW)
    for index_bits in (16, 8, 4):
        find(strategies.index_bits, lambda bits, wanted=index_bits: bits == wanted, settings=FEW)
