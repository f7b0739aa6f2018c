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
#: what a worker remembers of the passes so far
NONE, WINDOW, OF_BIN, LOST = range(4)


def window(wanted: int, shift: int = 21, group_size: int = 1) -> tuple[int, int]:
    """First pattern and digit width of the window whose last digit no wanted-th key has."""
    bound = np.float32(group_size) * KEY_SCALE / np.float32(max(wanted, 1))
    return (int(bound.view(np.uint32)) >> shift) + 2 - (DIGITS - 1) << shift, shift


def window_digits(keys: np.ndarray, begin: int, shift: int) -> np.ndarray:
    """Keys below the window have its first digit, those above its last."""
    return np.clip((keys.view(np.uint32).astype(np.int64) - begin) >> shift, 0, DIGITS - 1)


def group_keys(
    filled: int, weights: np.ndarray, sums: np.ndarray, counts: np.ndarray | None = None, **settings: int
) -> dict[str, np.ndarray]:
    """Runs GroupKeys on a part, with digits counted in a window of the bits from `windowShift` on."""
    fields = dict(
        filled=word(filled),
        weights=weights,
        sums=sums,
        keys=floats(weights.shape[1]),
        states=words(6, 4),
        counts=floats(DIGITS, 6) if counts is None else counts,
    )
    return run("GroupKeys", fields, groupSize=len(weights), partPositions=weights.shape[1], **settings)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.n_parts}parts{x.filled}")
@pytest.mark.parametrize("n_recent", [0, 7])
def test_group_keys(layout: Layout, n_recent: int) -> None:
    """Keys of the candidates, and how many have each digit of the window."""
    rng = np.random.default_rng(0)
    weights = rng.random((3, layout.filled)).astype(np.float32)
    sums = np.array([3.0, 7.7, 1.0], np.float32)
    keys = numerics.group_sum((weights / sums[:, None])[None], 1)[0, 0] * KEY_SCALE
    candidates = max(layout.filled - n_recent, 0)
    by_part = layout.spread(keys, POISON)
    positions = layout.spread(np.arange(layout.filled), layout.filled)
    begin, shift = window(12, group_size=3)
    digits = np.zeros(DIGITS)
    for part in range(layout.n_parts):
        out = group_keys(
            layout.filled,
            layout.spread(weights, np.float32(0))[part],
            sums,
            topK=12,
            nLocal=n_recent,
            windowBegin=begin,
            windowShift=shift,
            **layout.settings(part),
        )
        competes = positions[part] < candidates
        assert_bits(out["keys"][competes], by_part[part][competes])
        assert out["states"].tolist() == [[begin, shift, 12 - n_recent, WINDOW]] * 6
        digits += out["counts"].sum(axis=1)
    expected = window_digits(keys[:candidates], begin, shift)
    assert digits.tolist() == np.bincount(expected, minlength=DIGITS).tolist()


@pytest.mark.parametrize("n_items", [1, 2, 7, 12, 13, 32])
def test_sum_counts(n_items: int) -> None:
    """Of each digit those of six workers on five parts."""
    counts = np.arange(n_items * 5 * 2 * 6, dtype=np.float32).reshape(n_items, 5, 2, 6)
    out = run("SumCounts", dict(counts=counts, totals=floats(n_items, 2)), nItems=n_items, nRows=5)
    assert out["totals"].tolist() == counts.sum(axis=(1, 3)).tolist()


@pytest.mark.parametrize("n_items", [1, 2, 7])
@pytest.mark.parametrize("n_rows", [1, 5, 6, 26])
def test_sum_rows(n_items: int, n_rows: int) -> None:
    """Of each digit, by workers that have some of the rows each: as many in all."""
    counts = np.arange(n_items * n_rows * 2 * 6, dtype=np.float32).reshape(n_items, n_rows, 2, 6)
    each = -(-n_rows // 6)
    fields = dict(counts=counts, sums=floats(n_items, 2, 6))
    out = run("SumRows", fields, nItems=n_items, nRows=n_rows, each=each)["sums"]
    expected = [counts[:, w * each : (w + 1) * each].sum(axis=(1, 3)) for w in range(6)]
    np.testing.assert_array_equal(out, np.stack(expected, axis=2))


class Selection:
    """The vertices driven step by step, over all parts."""

    def __init__(self, layout: Layout, keys: np.ndarray, top_k: int, n_local: int):
        """Integers are keys as they are; floats are scaled, and may have more than one pass."""
        self.layout, self.top_k, self.n_local = layout, top_k, n_local
        self.parts = range(layout.n_parts)
        self.filled = word(layout.filled)
        self.n_pieces = layout.part_positions // 32
        self.keys = list(layout.spread(keys, keys.dtype.type(0)))
        self.states = [np.zeros((6, 4), np.uint32) for _ in self.parts]
        self.totals = np.full(DIGITS, POISON)
        self.wide = False

    def add_up(self, counts: list[np.ndarray]) -> None:
        self.totals = np.sum(counts, axis=(0, 2), dtype=np.float32)

    def count_in_window(self, begin: int, shift: int) -> None:
        counts = []
        for part in self.parts:
            out = group_keys(
                self.layout.filled,
                self.keys[part][None],
                np.ones(1, np.float32),
                topK=self.top_k,
                nLocal=self.n_local,
                windowBegin=begin,
                windowShift=shift,
                **self.layout.settings(part),
            )
            self.keys[part], self.states[part] = out["keys"], out["states"]
            counts.append(out["counts"])
        self.add_up(counts)

    def count(self, first_shift: int = BITS * (PASSES - 1)) -> None:
        counts = []
        for part in self.parts:
            out = run(
                "KeyHistogram",
                dict(
                    filled=self.filled,
                    keys=self.keys[part].view(np.float32),
                    totals=self.totals,
                    states=self.states[part],
                    counts=floats(DIGITS, 6),
                ),
                topK=self.top_k,
                nLocal=self.n_local,
                firstShift=first_shift,
                wide=self.wide,
                **self.layout.settings(part),
            )
            self.states[part] = out["states"]
            counts.append(out["counts"])
        self.add_up(counts)

    def mark(self) -> bool:
        """Marks, ranks and takes. Whether there was a clash."""
        layout, self.marks, doubts, doubtful = self.layout, [], [], []
        for part in self.parts:
            out = run(
                "MarkKeys",
                dict(
                    filled=self.filled,
                    keys=self.keys[part].view(np.float32),
                    totals=self.totals,
                    states=self.states[part],
                    marks=words(self.n_pieces),
                    doubts=words(self.n_pieces),
                    doubtful=floats(self.n_pieces),
                ),
                topK=self.top_k,
                nLocal=self.n_local,
                wide=self.wide,
                **layout.settings(part),
            )
            self.states[part] = out["states"]
            self.marks.append(out["marks"])
            doubts.append(out["doubts"])
            doubtful.append(out["doubtful"])
        of_slot = np.ascontiguousarray(in_order(layout, np.stack(doubtful), 32))
        blocks = dict(nBlocks=len(of_slot) // 2)
        largest = run("LargestDoubtful", dict(doubtful=of_slot, largest=floats(6)), **blocks)["largest"]
        assert largest.max() == of_slot.max(initial=0)
        settings = dict(partPositions=layout.part_positions, nWaveParts=layout.n_wave_parts, **blocks)
        names = ("part", "length", "nWaves", "tailLength", "tailFirst")
        self.counts = []
        for part in self.parts:
            shared = dict(states=self.states[part], doubts=doubts[part])
            before = run(
                "RankKeys",
                dict(shared, doubtful=of_slot, before=floats(self.n_pieces, 6)),
                **settings,
                **{name: layout.settings(part)[name] for name in names},
            )["before"]
            out = run(
                "TakeKeys",
                dict(
                    shared,
                    doubtful=doubtful[part],
                    before=before,
                    marks=self.marks[part],
                    counts=floats(self.n_pieces // 2),
                ),
                partPositions=layout.part_positions,
            )
            self.marks[part] = out["marks"]
            self.counts.append(out["counts"])
        clash = run("AnyClash", dict(largest=largest, any=np.array(False)), n=6)["any"]
        return bool(clash)

    def by_all_bits(self, more_passes: int = 0) -> None:
        self.states = [np.zeros((6, 4), np.uint32) for _ in self.parts]
        self.wide = more_passes != 0
        for _ in range(PASSES + more_passes):
            self.count(BITS * (PASSES - 1 + more_passes))
        assert not self.mark()

    def rows(self, row_base: int = 10_000, entries_per_part: int = 13) -> np.ndarray:
        """The list, as positions."""
        layout, found = self.layout, []
        marks = np.ascontiguousarray(in_order(layout, np.stack(self.marks), 32))
        for first in range(0, self.top_k, entries_per_part):
            n = min(entries_per_part, self.top_k - first)
            out = run(
                "ExpandMarks",
                dict(
                    filled=self.filled,
                    layer=word(LAYER),
                    marks=marks,
                    counts=np.ascontiguousarray(in_order(layout, np.stack(self.counts), 64)),
                    keyRows=words(n),
                    valueRows=words(n),
                ),
                firstEntry=first,
                nEntries=n,
                rowBase=row_base - LAYER * 10,
                layerRows=10,
                valueRow=1_000_000,
                nBlocks=len(marks) // 2,
                nWaveParts=layout.n_wave_parts,
                stride=layout.stride,
                length=layout.length,
                nWaves=layout.n_waves,
                chunk=layout.chunk,
            )
            np.testing.assert_array_equal(out["valueRows"], out["keyRows"] + 1_000_000)
            found.append(out["keyRows"])
        return np.concatenate(found).astype(np.int64) - row_base


def select(
    layout: Layout,
    keys: np.ndarray,
    top_k: int,
    n_local: int,
    entries_per_part: int = 13,
    more_passes: int = 0,
    shift: int = 21,
) -> tuple[np.ndarray, bool]:
    """Positions that the vertices select; whether they had to begin again. Integers are keys as they are."""
    s = Selection(layout, keys, top_k, n_local)
    again = False
    if keys.dtype == np.uint32:
        s.by_all_bits(more_passes)
        return s.rows(entries_per_part=entries_per_part), again
    s.count_in_window(*window(top_k - n_local, shift))
    s.count()
    again = s.mark()
    if again:
        s.by_all_bits()
    selected = s.rows(entries_per_part=entries_per_part)
    check_selected_sums(layout, selected[: min(top_k, layout.filled)], s.marks)
    return selected, again


def check_selected_sums(layout: Layout, selected: np.ndarray, marks: list[np.ndarray]) -> None:
    """Each part sums the weights of its selected positions by block (contract E6.5)."""
    weights = np.random.default_rng(len(selected)).random((2, layout.filled)).astype(np.float32)
    kept = np.zeros_like(weights)
    kept[:, selected] = weights[:, selected]
    by_part, kept_by_part = layout.spread(weights, POISON), layout.spread(kept, np.float32(0))
    for part in range(layout.n_parts):
        out = run(
            "SelectedSums",
            dict(
                marks=marks[part],
                weights=by_part[part],
                sums=floats(2, layout.part_positions // 64),
            ),
            groupSize=2,
            partPositions=layout.part_positions,
        )
        assert_bits(out["sums"], numerics.block_sums(kept_by_part[part]))


KEYS = {
    "distinct": lambda rng, n: rng.permutation(n) / n,
    "ties": lambda rng, n: rng.integers(0, 3, n) / 2,
    "pairs": lambda rng, n: rng.permutation(np.repeat(rng.random(n), 2))[:n],  # equal keys in two blocks
    "constant": lambda rng, n: np.full(n, 0.25),
    "zeros and one": lambda rng, n: (np.arange(n) == n // 2) * 1.0,
    "neighbours": lambda rng, n: (
        np.nextafter(np.float32(0.5), np.float32(1), dtype=np.float32)
        * (1 + rng.integers(0, 4, n) * 2.0**-23)
    ),
    "tiny": lambda rng, n: 2.0 ** -rng.integers(90, 102, n),
}


def kinds_and_layouts() -> Iterator[Any]:
    """Of each kind two layouts, of each layout some kinds."""
    for i, kind in enumerate(KEYS):
        for j, layout in enumerate(LAYOUTS):
            if (i + 2 * j) % len(LAYOUTS) < 2:
                yield pytest.param(kind, layout, id=f"{kind}-{layout.n_parts}parts{layout.filled}")


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
    entries = data.draw(st.sampled_from([1, 5, 6, 40, 1000]), label="entries_per_part")
    shift = data.draw(st.sampled_from([21, 22]), label="shift")
    rows, _ = select(layout, keys, top_k, n_local, entries, shift=shift)
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
        rows, _ = select(layout, keys, top_k, n_local, more_passes=more_passes)
        same = rows[: len(expected)].tolist() == expected
        assert same or (bits == 31 and more_passes == 0)


def test_ties_go_to_the_lower_index_across_parts() -> None:
    layout = Layout(2, 128, 64, 2, 0, 0, 1, 256)
    keys = np.full(256, 0.5, np.float32)
    keys[[5, 200]] = 0.75
    assert select(layout, keys, 4, 0)[0].tolist() == [0, 1, 5, 200]
    # an order that preferred higher indices would be seen
    assert select(layout, keys[::-1].copy(), 4, 0)[0].tolist() != [5, 200, 254, 255]


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf])
def test_numbers_that_are_none_are_counted_within_the_counts(number: float) -> None:
    n, behind = 64, 400
    out = group_keys(
        n,
        np.full((1, n), number, np.float32),
        np.ones(1, np.float32),
        floats(6 * DIGITS + behind),
        topK=4,
        nLocal=0,
        windowBegin=window(4)[0],
        windowShift=21,
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


def doubtful_keys(kind: str, rng: np.random.Generator, n: int, wanted: int) -> np.ndarray:
    """Keys of which some share the last bin with the wanted-th, at places that a kind says."""
    bin_begin = np.float32(0.25 / wanted).view(np.uint32) & ~np.uint32(2**16 - 1)
    keys = rng.random(n).astype(np.float32) * np.float32(2.0**-10 / wanted)
    block = rng.integers(0, max(n // 64, 1)) * 64
    inside = {
        "pair": 2,
        "three in a block": 3,
        "equal pair": 2,
        "below the window": 0,
        "above the window": 0,
    }[kind]
    best = rng.permutation(n)
    if kind == "below the window":
        return keys * np.float32(2.0**-40)
    if kind == "above the window":  # what no weights of a softmax are
        return keys + np.float32(1)
    at = block + rng.permutation(min(64, n - block))[:inside]
    # those that are certain, elsewhere; then one fewer than the bin has is wanted
    certain = np.setdiff1d(best, at, assume_unique=True)[: max(wanted - 1, 0)]
    keys[certain] = np.float32(2.0) / wanted
    offsets = rng.permutation(2**15)[:inside].astype(np.uint32)
    if kind == "equal pair":
        offsets[:] = offsets[0]
    keys[at] = (bin_begin + offsets).view(np.float32)
    return keys


@pytest.mark.parametrize("layout", LAYOUTS[:4], ids=lambda x: f"{x.n_parts}parts{x.filled}")
@fewer(10, least=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_selection_that_cannot_go_on_begins_again(layout: Layout, seed: int) -> None:
    """By kinds of keys it must, or must not; the result is right either way. To go on in spite of a clash
    would be seen."""
    n, top_k = layout.filled, 30
    again, wrong = {}, 0
    for kind in ("pair", "equal pair", "three in a block", "below the window", "above the window"):
        keys = doubtful_keys(kind, np.random.default_rng(seed), n, top_k)
        expected, _ = exact.key_topk(
            keys[None, None], np.ones((1, 1), np.float32), n_kv_heads=1, top_k=top_k, n_local=0
        )
        rows, again[kind] = select(layout, keys, top_k, 0)
        np.testing.assert_array_equal(rows, expected[0, 0])
        s = Selection(layout, keys, top_k, 0)
        s.count_in_window(*window(top_k))
        s.count()
        s.mark()
        wrong += again[kind] and s.rows().tolist() != expected[0, 0].tolist()
    assert [kind for kind in again if again[kind]] == [
        "three in a block",
        "below the window",
        "above the window",
    ]
    assert wrong
