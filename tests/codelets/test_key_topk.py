# SPDX-License-Identifier: Apache-2.0
"""Selection: the vertices driven over parts as the program drives them, against a stable sort."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import fewer
from vertex import LAYOUTS, POISON, Layout, assert_bits, floats, in_order, run, word, words

from sparq_reference import exact, numerics

LAYER = 3  # whose rows are listed
KEY_SCALE = np.float32(2.0**-16)  # keys come scaled, so that the highest bits of their patterns are 0


DIGITS, BITS, PASSES = 64, 6, 5


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.n_parts}parts{x.filled}")
@pytest.mark.parametrize("n_recent", [0, 7])
def test_group_keys(layout: Layout, n_recent: int) -> None:
    """Keys of the candidates, and how many begin with each digit."""
    rng = np.random.default_rng(0)
    weights = rng.random((3, layout.filled)).astype(np.float32)
    sums = np.array([3.0, 7.7, 1.0], np.float32)
    keys = numerics.group_sum((weights / sums[:, None])[None], 1)[0, 0] * KEY_SCALE
    candidates = max(layout.filled - n_recent, 0)
    by_part = layout.spread(keys, POISON)
    positions = layout.spread(np.arange(layout.filled), layout.filled)
    digits = np.zeros(DIGITS)
    for part in range(layout.n_parts):
        out = run(
            "GroupKeys",
            dict(
                filled=word(layout.filled),
                weights=layout.spread(weights, np.float32(0))[part],
                sums=sums,
                keys=floats(layout.part_positions),
                states=words(6, 3),
                counts=floats(DIGITS, 6),
            ),
            groupSize=3,
            partPositions=layout.part_positions,
            topK=12,
            nLocal=n_recent,
            **layout.settings(part),
        )
        competes = positions[part] < candidates
        assert_bits(out["keys"][competes], by_part[part][competes])
        assert out["states"].tolist() == [[0, 12 - n_recent, 1]] * 6
        digits += out["counts"].sum(axis=1)
    first_digits = keys[:candidates].view(np.uint32) >> (BITS * (PASSES - 1))
    assert digits.tolist() == np.bincount(first_digits, minlength=DIGITS).tolist()


@pytest.mark.parametrize("n_items", [1, 2, 7, 12, 13, 32])
def test_sum_counts(n_items: int) -> None:
    """Of each digit those of six workers on five parts."""
    counts = np.arange(n_items * 5 * 2 * 6, dtype=np.float32).reshape(n_items, 5, 2, 6)
    out = run("SumCounts", dict(counts=counts, totals=floats(n_items, 2)), nItems=n_items, nRows=5)
    assert out["totals"].tolist() == counts.sum(axis=(1, 3)).tolist()


def select(
    layout: Layout,
    keys: np.ndarray,
    top_k: int,
    n_local: int,
    row_base: int = 10_000,
    n_partials: int = 2,
    entries_per_part: int = 13,
    more_passes: int = 0,
) -> np.ndarray:
    """Rows that the vertices select, driven pass by pass; integers are keys as they are."""
    parts = range(layout.n_parts)
    filled = word(layout.filled)
    by_part = layout.spread(keys, keys.dtype.type(0))
    n_pieces = layout.part_positions // 32

    def total(counts: list[np.ndarray]) -> np.ndarray:
        partial = np.zeros((n_partials, DIGITS), np.float32)
        for part, of_workers in enumerate(counts):
            partial[part % n_partials] += of_workers.sum(axis=1)
        return partial

    scaled, states, counts = [], [], []
    for part in parts:
        if keys.dtype == np.uint32:
            out = run(
                "GivenKeys",
                dict(
                    filled=filled,
                    keys=by_part[part].view(np.float32),
                    states=words(6, 3),
                    counts=floats(DIGITS, 6),
                ),
                topK=top_k,
                nLocal=n_local,
                morePasses=more_passes,
                **layout.settings(part),
            )
            # what the later passes go on from: they rely on it
            assert out["states"].tolist() == [[0, top_k - n_local, 1 - more_passes]] * 6
            scaled.append(out["keys"])
            states.append(out["states"])
            counts.append(out["counts"])
            continue
        out = run(
            "GroupKeys",
            dict(
                filled=filled,
                weights=by_part[part][None],
                sums=np.ones(1, np.float32),
                keys=floats(layout.part_positions),
                states=words(6, 3),
                counts=floats(DIGITS, 6),
            ),
            groupSize=1,
            partPositions=layout.part_positions,
            topK=top_k,
            nLocal=n_local,
            **layout.settings(part),
        )
        scaled.append(out["keys"])
        states.append(out["states"])
        counts.append(out["counts"])
    for _ in range(PASSES - 1 + more_passes):
        totals, counts = total(counts), []
        for part in parts:
            out = run(
                "KeyHistogram",
                dict(
                    filled=filled,
                    keys=scaled[part],
                    totals=totals,
                    states=states[part],
                    counts=floats(DIGITS, 6),
                ),
                nPartials=n_partials,
                nLocal=n_local,
                **layout.settings(part),
            )
            states[part] = out["states"]
            counts.append(out["counts"])
    totals = total(counts)
    marks, marked, ties = [], [], []
    for part in parts:
        out = run(
            "MarkKeys",
            dict(
                filled=filled,
                keys=scaled[part],
                totals=totals,
                states=states[part],
                marks=words(n_pieces, 2),
                counts=floats(n_pieces, 2),
                tiesToTake=floats(1),
            ),
            nPartials=n_partials,
            topK=top_k,
            nLocal=n_local,
            **layout.settings(part),
        )
        marks.append(out["marks"].T)
        marked.append(out["counts"].T)
        ties.append(out["tiesToTake"])
    assert len(np.unique(ties)) == 1
    all_marks = np.ascontiguousarray(in_order(layout, np.stack(marks), 32).T)
    rows = []
    for first in range(0, top_k, entries_per_part):
        n = min(entries_per_part, top_k - first)
        out = run(
            "ExpandMarks",
            dict(
                filled=filled,
                layer=word(LAYER),
                marks=all_marks,
                counts=np.ascontiguousarray(in_order(layout, np.stack(marked), 32).T),
                tiesToTake=ties[0],
                keyRows=words(n),
                valueRows=words(n),
            ),
            firstEntry=first,
            nEntries=n,
            rowBase=row_base - LAYER * 10,
            layerRows=10,
            valueRow=1_000_000,
            nPieces=len(all_marks),
            nWaveParts=layout.n_wave_parts,
            stride=layout.stride,
            length=layout.length,
            nWaves=layout.n_waves,
            chunk=layout.chunk,
        )
        np.testing.assert_array_equal(out["valueRows"], out["keyRows"] + 1_000_000)
        rows.append(out["keyRows"])
    selected = np.concatenate(rows).astype(np.int64) - row_base
    counts = np.ascontiguousarray(in_order(layout, np.stack(marked), 32).T)
    if keys.dtype != np.uint32:  # which have no weights
        check_selected_sums(layout, selected[: min(top_k, layout.filled)], marks, counts, ties[0])
    return selected


def check_selected_sums(
    layout: Layout, selected: np.ndarray, marks: list[np.ndarray], counts: np.ndarray, ties: np.ndarray
) -> None:
    """Each part sums the weights of its selected positions by block (contract E6.5)."""
    weights = np.random.default_rng(len(selected)).random((2, layout.filled)).astype(np.float32)
    kept = np.zeros_like(weights)
    kept[:, selected] = weights[:, selected]
    by_part, kept_by_part = layout.spread(weights, POISON), layout.spread(kept, np.float32(0))
    for part in range(layout.n_parts):
        out = run(
            "SelectedSums",
            dict(
                marks=np.ascontiguousarray(marks[part].T),
                counts=counts,
                tiesToTake=ties,
                weights=by_part[part],
                sums=floats(2, layout.part_positions // 64),
            ),
            groupSize=2,
            partPositions=layout.part_positions,
            part=part,
            length=layout.length,
            nWaves=layout.n_waves,
            tailLength=layout.tail_length,
            tailFirst=layout.tail_first,
            nWaveParts=layout.n_wave_parts,
        )
        assert_bits(out["sums"], numerics.block_sums(kept_by_part[part]))


KEYS = {
    "distinct": lambda rng, n: rng.permutation(n) / n,
    "ties": lambda rng, n: rng.integers(0, 3, n) / 2,
    "constant": lambda rng, n: np.full(n, 0.25),
    "zeros and one": lambda rng, n: (np.arange(n) == n // 2) * 1.0,
    "neighbours": lambda rng, n: (
        np.nextafter(np.float32(0.5), np.float32(1), dtype=np.float32)
        * (1 + rng.integers(0, 4, n) * 2.0**-23)
    ),
    "tiny": lambda rng, n: 2.0 ** -rng.integers(90, 102, n),
}


def kinds_and_layouts() -> Iterator[Any]:
    """Of each kind two layouts, of each layout some kinds. The rest is slow."""
    for i, kind in enumerate(KEYS):
        for j, layout in enumerate(LAYOUTS):
            marks = () if (i + 2 * j) % len(LAYOUTS) < 2 else pytest.mark.slow
            yield pytest.param(kind, layout, marks=marks, id=f"{kind}-{layout.n_parts}parts{layout.filled}")


@pytest.mark.parametrize(("kind", "layout"), kinds_and_layouts())
@fewer(6)
@given(data=st.data())
def test_selection_equals_stable_sort(kind: str, layout: Layout, data: st.DataObject) -> None:
    n = layout.filled
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    top_k = data.draw(st.sampled_from(sorted({1, 2, 33, max(n - 1, 1), n, n + 5})), label="top_k")
    n_local = data.draw(st.sampled_from(sorted({0, 1, top_k // 2, top_k})), label="n_local")
    keys = KEYS[kind](rng, n).astype(np.float32)
    positions, counts = exact.key_topk(
        keys[None, None], np.ones((1, 1), np.float32), n_kv_heads=1, top_k=top_k, n_local=n_local
    )
    n_partials = data.draw(st.sampled_from([1, 2, 3, 6]), label="n_partials")
    entries = data.draw(st.sampled_from([1, 5, 6, 40, 1000]), label="entries_per_part")
    rows = select(layout, keys, top_k, n_local, n_partials=n_partials, entries_per_part=entries)
    np.testing.assert_array_equal(rows[: counts[0]], positions[0, 0, : counts[0]])
    assert (rows[counts[0] :] == 0).all()  # what fills up is a row that exists


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.n_parts}parts{x.filled}")
@pytest.mark.parametrize("bits", [3, 30, 31])
@pytest.mark.parametrize("n_local", [0, 7])
def test_selection_by_integers(layout: Layout, bits: int, n_local: int) -> None:
    """Integers are ordered by all of their bits: those of 31 by a pass more, which does no harm to others."""
    n, top_k = layout.filled, 12
    keys = np.random.default_rng(bits).integers(2 ** (bits - 1), 2**bits, n, dtype=np.uint32)
    keys[:: 1 + n // 9] = 0
    first_local = max(n - n_local, 0)
    best = np.argsort(-keys[:first_local].astype(np.int64), kind="stable")[: top_k - n_local]
    expected = sorted([*best, *range(first_local, n)]) if n > top_k else list(range(n))
    for more_passes in (0, 1):
        rows = select(layout, keys, top_k, n_local, more_passes=more_passes)
        same = rows[: len(expected)].tolist() == expected
        assert same or (bits == 31 and more_passes == 0)


def test_ties_go_to_the_lower_index_across_parts() -> None:
    layout = Layout(2, 128, 64, 2, 0, 0, 1, 256)
    keys = np.full(256, 0.5, np.float32)
    keys[[5, 200]] = 0.75
    assert select(layout, keys, 4, 0).tolist() == [0, 1, 5, 200]
    # an order that preferred higher indices would be seen
    assert select(layout, keys[::-1].copy(), 4, 0).tolist() != [5, 200, 254, 255]


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf])
def test_numbers_that_are_none_are_counted_within_the_counts(number: float) -> None:
    n, behind = 64, 400
    out = run(
        "GroupKeys",
        dict(
            filled=word(n),
            weights=np.full((1, n), number, np.float32),
            sums=np.ones(1, np.float32),
            keys=floats(n),
            states=words(6, 3),
            counts=floats(6 * DIGITS + behind),
        ),
        groupSize=1,
        partPositions=n,
        topK=4,
        nLocal=0,
        part=0,
        stride=n,
        length=n,
        nWaves=1,
        tailLength=0,
        tailFirst=0,
        chunk=1,
    )
    assert out["counts"][: 6 * DIGITS].sum() == n
    assert_bits(out["counts"][6 * DIGITS :], floats(behind))
