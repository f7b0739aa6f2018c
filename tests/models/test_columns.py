# SPDX-License-Identifier: Apache-2.0
"""Which columns are real (`sparq_ipu.transformers.cache.columns`), beside a table that is written out."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import torch

from sparq_ipu.transformers.cache.columns import RealColumns

BATCH = 2
flags = st.lists(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH), min_size=1, max_size=5)
steps = st.one_of(
    st.tuples(st.just("real"), st.integers(1, 5)),
    st.tuples(st.just("flags"), flags),
    st.tuples(st.just("crop"), st.integers(0, 5)),
    st.tuples(st.just("hide"), st.integers(0, 5)),
    st.tuples(st.just("select"), st.permutations(range(BATCH))),
)


@given(st.integers(0, 4), st.lists(steps, max_size=12))
def test_any_order_of_changes(room: int, sequence: list[tuple[str, Any]]) -> None:
    columns, table = RealColumns(BATCH, room), np.ones((BATCH, 0), bool)
    for kind, what in sequence:
        if kind == "real":
            columns.append(None, what)
            table = np.concatenate([table, np.ones((BATCH, what), bool)], 1)
        elif kind == "flags":
            real = np.array(what).T
            columns.append(torch.from_numpy(real), real.shape[1])
            table = np.concatenate([table, real], 1)
        elif kind == "crop":
            columns.n_columns -= min(what, columns.n_columns)
            table = table[:, : columns.n_columns]
        elif kind == "hide":
            table = table.copy()
            table[0, :what] = False
            columns.replace(torch.from_numpy(table))
        else:
            before, columns = columns, columns.select(torch.tensor(what))
            before.append(torch.zeros((BATCH, 1), dtype=torch.bool), 1)  # nothing is shared
            table = table[list(what)]
        assert np.array_equal(columns.flags.numpy(), table)
        assert columns.is_all_real == table.all()
        padding = (~table).sum(1)
        is_left = all(real[n:].all() for real, n in zip(table, padding))
        assert columns.starts() == (padding.tolist() if is_left else None)
