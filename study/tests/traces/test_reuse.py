# SPDX-License-Identifier: Apache-2.0
"""Rows that are selected again: the selection is the reference's, the policies keep to their rules."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import SparqSettings, exact
from sparq_study import traces

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_steps.npz"


@pytest.mark.parametrize("index_bits", [4, 8])
def test_selected_rows_are_the_references(index_bits: int) -> None:
    """On real queries and keys; the steps are those around full blocks, and others."""
    trace = traces.load(REAL)
    settings = [SparqSettings(32, 128, 32), SparqSettings(32, 40, 0), SparqSettings(32, 1000, 5)]
    for number, layer in trace.layers.items():
        found = traces.selected_positions(trace, number, settings, index_bits=index_bits)
        for step in (0, 1, 40, 62, 63):
            n = trace.start + step + 1
            key, value = layer.key[None, :, :n], layer.value[None, :, :n]
            for s, positions in zip(settings, found):
                steps = exact.sparq_steps(layer.query[step][None], key, value, s, index_bits=index_bits)
                expected = steps.positions[0]
                np.testing.assert_array_equal(positions[step, :, : expected.shape[1]], expected)
                assert (positions[step, :, expected.shape[1] :] == -1).all()


def test_selection_refuses() -> None:
    trace = traces.load(REAL)
    s = SparqSettings(32, 128)
    for layer, settings, bits, text in (
        (3, [s], 4, "selected_positions: layer must be among [2, 20], got 3"),
        (2, [s, SparqSettings(16, 128)], 4, "selected_positions: settings must have one rank, got [32, 16]"),
        (2, [s], 16, "selected_positions: index_bits must be 4 or 8, got 16"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            traces.selected_positions(trace, layer, settings, index_bits=bits)


def slow_lru(steps: list[list[int]], n_hot: int) -> tuple[list[list[int]], list[list[int]]]:
    """The rule of "lru" slot by slot: (positions in the slots after each step, missing ones of each)."""
    held = [-1] * n_hot
    last = [-1] * n_hot
    after, missing = [], []
    for t, selected in enumerate(steps):
        misses = []
        for position in selected:
            if position in held:
                last[held.index(position)] = t
            else:
                misses.append(position)
        for position in misses:
            best = None
            for slot in range(n_hot):
                if last[slot] == t:
                    continue
                if best is None or last[slot] < last[best]:
                    best = slot
            assert best is not None
            held[best], last[best] = position, t
        after.append(list(held))
        missing.append(misses)
    return after, missing


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    n_positions = draw(st.integers(1, 12))
    n_hot = draw(st.integers(1, 8))
    some = st.sets(st.integers(0, n_positions - 1), max_size=n_hot).map(sorted)
    return n_hot, draw(st.lists(some, max_size=12))


@given(histories())
def test_lru_is_its_rule(history: tuple[int, list[list[int]]]) -> None:
    n_hot, steps = history
    buffer = traces.HotRows(n_hot, 12)
    for t, (held, missing) in enumerate(zip(*slow_lru(steps, n_hot))):
        assert buffer.select(t, np.array(steps[t], np.int64)).tolist() == missing
        assert buffer.position.tolist() == held


def test_a_slot_of_equal_age_is_the_lower_one() -> None:
    buffer = traces.HotRows(4, 10)
    buffer.select(0, np.array([5, 6, 7, 8]))
    buffer.select(1, np.array([6]))
    buffer.select(2, np.array([0, 1]))
    assert buffer.position.tolist() == [0, 6, 1, 8]


@given(histories(), st.integers(0, 3), st.sampled_from(traces.POLICIES))
def test_counts_of_a_simulation(history: tuple[int, list[list[int]]], n_local: int, policy: str) -> None:
    """Against counting row by row; rows beyond a step's length are left out before, the newest is added."""
    n_hot, steps = history
    start, n_hot = 4, n_hot + 1
    n_local = min(n_local, n_hot)
    positions = np.full((len(steps), 2, n_hot), -1, np.int64)
    chosen = []
    for t, selected in enumerate(steps):
        length = start + t + 1
        rows = sorted({p for p in selected if p < length} | {length - 1})[-n_hot:]
        chosen.append(rows)
        positions[t, 0, : len(rows)] = positions[t, 1, : len(rows)] = rows
    got = traces.simulate(positions, start, policy=policy, n_hot=n_hot, n_local=n_local)
    missing = slow_lru(chosen, n_hot)[1]
    for t, rows in enumerate(chosen):
        length = start + t + 1
        misses = missing[t] if policy == "lru" else [p for p in rows if p < length - n_hot]
        far = [p for p in rows if p < length - n_local]
        assert got.selected[t] == 2 * len(far)
        assert got.hits[t] == 2 * len([p for p in far if p not in misses])
        assert got.misses[t] == 2 * len([p for p in misses if p != length - 1])


def test_hit_rate() -> None:
    reuse = traces.Reuse(np.array([4, 4, 2]), np.array([1, 1, 2]), np.array([3, 3, 0]))
    assert reuse.hit_rate() == 0.4 and reuse.hit_rate(1) == 0.5
    assert np.isnan(reuse.hit_rate(3))


def test_local_rows_are_always_held() -> None:
    """And what is appended is never read from streaming memory."""
    n_local, start = 3, 6
    local = [list(range(start + t + 1 - n_local, start + t + 1)) for t in range(5)]
    positions = np.array([[[t, *rows]] for t, rows in enumerate(local)])
    for policy in traces.POLICIES:
        got = traces.simulate(positions, start, policy=policy, n_hot=4, n_local=n_local)
        first = 3 if policy == "lru" else 1  # at the start the buffer of "lru" is empty
        assert got.misses.tolist() == [first, 1, 1, 1, 1], policy
        assert got.hits.tolist() == [0] * 5


def test_simulation_refuses() -> None:
    positions = np.zeros((1, 1, 3), np.int64)
    for options, text in (
        (dict(policy="fifo", n_hot=3), "reuse: policy must be one of lru, recent, got 'fifo'"),
        (dict(policy="lru", n_hot=2), "reuse: n_hot must be in [3, "),
        (dict(policy="lru", n_hot=3, n_local=4), "reuse: n_local must be in [0, 3], got 4"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            traces.simulate(positions, 5, **options)
    message = r"^hot_rows: n_hot must be at least 3, the rows that a step selects"
    with pytest.raises(ValueError, match=message):
        traces.HotRows(2, 5).select(0, np.arange(3))
