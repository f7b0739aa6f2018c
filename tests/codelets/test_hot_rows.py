# SPDX-License-Identifier: Apache-2.0
"""hot_*.cpp: which selected rows are hot, where the others go, and how they come in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vertex import WORD_POISON, assert_bits, halves, run, word, words

LAYER, N_LAYERS = 1, 3  # what a vertex works on, and what it must leave alone
N_WORKERS = 6


def half_bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers as they come in memory: any bits."""
    return rng.integers(0, 2**16, shape).astype(np.uint16).view(np.float16)


def shares(top_k: int) -> np.ndarray:
    """(top_k,): the worker that has an entry: each a run of the same length, the last ones less."""
    return np.arange(top_k) // -(-top_k // N_WORKERS)


class Buffer(NamedTuple):
    """What the owners of a KV head know before a step."""

    held: np.ndarray  # (owners, layers, ways): position + 1, 0 where there is none
    stamps: np.ndarray  # (owners, layers, ways): the step that last selected it, 0 at first
    clock: int

    def settings(self, owner: int) -> dict[str, int]:
        n_owners, _, n_ways = self.held.shape
        return dict(nWays=n_ways, owner=owner, nOwners=n_owners)

    def places(self) -> dict[int, int]:
        """position -> place, of LAYER."""
        held = self.held[:, LAYER]
        return {int(held[o, w]) - 1: int(w) * len(held) + int(o) for o, w in zip(*np.nonzero(held))}


def some_buffer(rng: np.random.Generator, n_owners: int, n_ways: int, capacity: int, n_held: int) -> Buffer:
    """n_held positions below `capacity` in places at random; of each layer others."""
    held = np.zeros((N_LAYERS, n_owners * n_ways), np.uint32)
    for of_layer in held:
        into = rng.permutation(of_layer.size)[:n_held]
        of_layer[into] = rng.permutation(capacity)[: len(into)] + 1
    held = np.ascontiguousarray(held.reshape(N_LAYERS, n_owners, n_ways).swapaxes(0, 1))
    clock = int(rng.integers(1, 9))
    stamps = rng.integers(0, clock + 1, held.shape).astype(np.uint32) * (held != 0)
    return Buffer(held, stamps, clock)


def some_positions(rng: np.random.Generator, top_k: int, filled: int) -> np.ndarray:
    """A list of ascending positions; behind those in use whatever was there."""
    n = min(filled, top_k)
    positions = rng.integers(0, max(filled, 1), top_k).astype(np.uint32)
    positions[:n] = np.sort(rng.permutation(filled)[:n])
    return positions


# ---- which are hot


class Found(NamedTuple):
    places: np.ndarray  # (owners, top_k)
    n_found: np.ndarray  # (owners, 6)
    stamps: np.ndarray  # (owners, layers, ways)


def find(buffer: Buffer, positions: np.ndarray, filled: int) -> Found:
    """FindHot of every owner."""
    outs = [
        run(
            "FindHot",
            dict(
                filled=word(filled),
                layer=word(LAYER),
                clock=word(buffer.clock),
                positions=positions,
                held=buffer.held[owner],
                stamps=buffer.stamps[owner],
                places=words(len(positions)),
                nFound=words(N_WORKERS),
            ),
            topK=len(positions),
            **buffer.settings(owner),
        )
        for owner in range(len(buffer.held))
    ]
    return Found(*(np.stack([out[name] for out in outs]) for name in ("places", "nFound", "stamps")))


@pytest.mark.parametrize(
    ("n_owners", "n_ways", "top_k", "filled", "n_held"),
    [
        (4, 6, 24, 200, 20),  # some are hot
        (4, 6, 24, 24, 24),  # all are, and nothing else is
        (2, 8, 13, 9, 5),  # fewer positions than entries: workers without any
        (1, 7, 7, 500, 0),  # an empty buffer
        (4, 2, 1, 50, 8),
        (2, 40, 33, 70, 60),  # many beside them
        (8, 1, 8, 0, 3),  # nothing selected
        (1, 64, 6, 64, 64),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_find_hot(n_owners: int, n_ways: int, top_k: int, filled: int, n_held: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = some_positions(rng, top_k, filled)
    buffer = some_buffer(rng, n_owners, n_ways, max(filled, n_held), n_held)
    where = buffer.places()
    places = np.zeros((n_owners, top_k))
    n_found = np.zeros((n_owners, N_WORKERS))
    stamps = buffer.stamps.copy()
    for entry, position in enumerate(positions[:filled]):
        if int(position) in where:
            way, owner = divmod(where[int(position)], n_owners)
            places[owner, entry] = where[int(position)] + 1
            n_found[owner, shares(top_k)[entry]] += 1
            stamps[owner, LAYER, way] = buffer.clock + 1
    found = find(buffer, positions, filled)
    np.testing.assert_array_equal(found.places, places)
    np.testing.assert_array_equal(found.n_found, n_found)
    assert_bits(found.stamps, stamps)


def test_the_ends_of_each_share_are_found() -> None:
    """Positions that are first or last of a worker's entries, and those beside them."""
    positions = np.arange(10, 10 + 12 * 3, 3, dtype=np.uint32)  # two to a worker
    held = np.arange(8, 48, dtype=np.uint32)[None, None].repeat(N_LAYERS, 1)
    found = find(Buffer(held, np.zeros_like(held), 5), positions, 100)
    np.testing.assert_array_equal(found.places[0], positions - 7 + 1)
    assert found.n_found.tolist() == [[2] * 6]


@pytest.mark.parametrize(
    ("n_found", "n_free"), [([0] * 6, 9), ([1, 0, 2, 0, 0, 1], 5), ([1, 2, 1, 2, 1, 2], 0)]
)
@pytest.mark.parametrize("top_k", [1, 6, 20])
def test_free_ways(n_found: list[int], n_free: int, top_k: int) -> None:
    out = run(
        "FreeWays",
        dict(nFound=np.array(n_found, np.uint32), nFree=word(77), byEntry=words(top_k), byMiss=words(top_k)),
        nWays=9,
        topK=top_k,
    )
    assert out["nFree"] == n_free
    assert not out["byEntry"].any() and not out["byMiss"].any()


@pytest.mark.parametrize("n_owners", [1, 2, 8, 32])
def test_sum_found(n_owners: int) -> None:
    n_found = np.random.default_rng(n_owners).integers(0, 99, (n_owners, N_WORKERS)).astype(np.uint32)
    out = run("SumFound", dict(nFound=n_found, nHits=words(N_WORKERS)), nOwners=n_owners)
    assert out["nHits"].tolist() == n_found.sum(axis=0).tolist()


@pytest.mark.parametrize(("n_owners", "n_entries"), [(1, 1), (4, 6), (32, 7), (3, 40)])
def test_merge_places(n_owners: int, n_entries: int) -> None:
    """Of each entry nobody says anything, or an owner, or it was known."""
    rng = np.random.default_rng(n_entries)
    says = rng.integers(-2, n_owners, n_entries)
    found, before = np.zeros((n_owners, n_entries), np.uint32), np.zeros(n_entries, np.uint32)
    places = rng.integers(1, 2**20, n_entries).astype(np.uint32)
    for entry, owner in enumerate(says):
        if owner >= 0:
            found[owner, entry] = places[entry]
        elif owner == -1:
            before[entry] = places[entry]
    out = run(
        "MergePlaces",
        dict(found=found, before=before, places=words(n_entries)),
        nOwners=n_owners,
        nEntries=n_entries,
    )
    np.testing.assert_array_equal(out["places"], np.where(says == -2, 0, places))


# ---- where the others go


class Misses(NamedTuple):
    n: int
    entries: np.ndarray  # (top_k,)
    rows: np.ndarray  # (top_k,)


def list_misses(positions: np.ndarray, hits: np.ndarray, filled: int) -> Misses:
    """ListMisses, of a head whose rows begin at 1000, 10000 for a layer."""
    top_k = len(positions)
    in_use = np.arange(top_k) < filled
    n_hits = np.bincount(shares(top_k)[in_use & (hits != 0)], minlength=N_WORKERS)
    out = run(
        "ListMisses",
        dict(
            filled=word(filled),
            layer=word(LAYER),
            positions=positions,
            hits=hits,
            nHits=n_hits.astype(np.uint32),
            entries=words(top_k),
            rows=words(top_k),
            nMisses=word(77),
        ),
        topK=top_k,
        rowBase=1000,
        layerRows=10000,
    )
    return Misses(int(out["nMisses"]), out["entries"], out["rows"])


@pytest.mark.parametrize(
    ("top_k", "filled"), [(1, 9), (6, 6), (24, 100), (29, 17), (29, 3), (8, 0), (64, 64)]
)
@pytest.mark.parametrize("share_of_hits", [0, 0.5, 1])
def test_list_misses(top_k: int, filled: int, share_of_hits: float) -> None:
    rng = np.random.default_rng(top_k)
    positions = some_positions(rng, top_k, filled)
    hits = rng.integers(1, 99, top_k).astype(np.uint32) * (rng.random(top_k) < share_of_hits)
    n = min(filled, top_k)
    hits[n:] = 0
    misses = list_misses(positions, hits.astype(np.uint32), filled)
    expected = np.flatnonzero(hits[:n] == 0)
    assert misses.n == len(expected)
    assert misses.entries[: misses.n].tolist() == expected.tolist()
    assert misses.rows[: misses.n].tolist() == (1000 + LAYER * 10000 + positions[expected] + 1).tolist()
    assert (misses.entries[misses.n :] == WORD_POISON).all() and (
        misses.rows[misses.n :] == WORD_POISON
    ).all()


class Dealt(NamedTuple):
    by_entry: np.ndarray  # (owners, top_k)
    by_miss: np.ndarray  # (owners, top_k)
    after: Buffer


def order_of_ways(buffer: Buffer, owner: int) -> np.ndarray:
    """RankWays of an owner."""
    n_ways = buffer.held.shape[2]
    fields = dict(layer=word(LAYER), stamps=buffer.stamps[owner], order=words(n_ways))
    return run("RankWays", fields, nWays=n_ways)["order"]


@pytest.mark.parametrize("n_ways", [1, 2, 6, 7, 16, 40])
@pytest.mark.parametrize("seed", range(3))
def test_ways_in_order(n_ways: int, seed: int) -> None:
    """The smallest stamp first, equal ones by number; ways that are selected now are last."""
    rng = np.random.default_rng(seed)
    buffer = some_buffer(rng, 1, n_ways, 99, n_ways - n_ways // 4)
    stamps, now = buffer.stamps.copy(), buffer.clock + 1
    stamps[0, LAYER, rng.random(n_ways) < 0.3] = now
    order = order_of_ways(buffer._replace(stamps=stamps), 0)
    assert order.tolist() == np.argsort(stamps[0, LAYER], kind="stable").tolist()


def deal(buffer: Buffer, positions: np.ndarray, misses: Misses, n_free: np.ndarray) -> Dealt:
    """DealPlaces of every owner, by the order that RankWays finds."""
    n_owners, top_k = len(buffer.held), len(positions)
    outs = [
        run(
            "DealPlaces",
            dict(
                layer=word(LAYER),
                clock=word(buffer.clock),
                nMisses=word(misses.n),
                positions=positions,
                entries=misses.entries,
                nFree=n_free.astype(np.uint32),
                order=order_of_ways(buffer, owner),
                held=buffer.held[owner],
                stamps=buffer.stamps[owner],
                byEntry=np.zeros(top_k, np.uint32),
                byMiss=np.zeros(top_k, np.uint32),
            ),
            **buffer.settings(owner),
            ownersShift=n_owners.bit_length() - 1,
        )
        for owner in range(n_owners)
    ]
    assert {int(out["clock"]) for out in outs} == {buffer.clock + 1}
    by_entry, by_miss, held, stamps = (
        np.stack([out[name] for out in outs]) for name in ("byEntry", "byMiss", "held", "stamps")
    )
    return Dealt(by_entry, by_miss, Buffer(held, stamps, buffer.clock + 1))


def expected_deal(
    buffer: Buffer, positions: np.ndarray, misses: Misses, n_free: np.ndarray
) -> tuple[np.ndarray, Buffer]:
    """(places of the misses, the buffer after): the smallest share that is enough; owners in turn, from that
    of the step on; of each the ways with the smallest stamps, by number where these are equal."""
    n_owners, now = len(buffer.held), buffer.clock + 1
    share = -(-misses.n // n_owners)
    while np.minimum(n_free, share).sum() < misses.n:
        share += 1
    turns = [(now + i) % n_owners for i in range(n_owners)]
    owners = [owner for owner in turns for _ in range(min(int(n_free[owner]), share))][: misses.n]
    held, stamps, places = buffer.held.copy(), buffer.stamps.copy(), np.zeros(misses.n, np.uint32)
    for owner in range(n_owners):
        mine = [miss for miss in range(misses.n) if owners[miss] == owner]
        keys = stamps[owner, LAYER].astype(np.int64)
        ways = [w for w in np.argsort(keys, kind="stable") if stamps[owner, LAYER, w] != now]
        for miss, way in zip(mine, ways):
            held[owner, LAYER, way] = positions[misses.entries[miss]] + 1
            stamps[owner, LAYER, way] = now
            places[miss] = way * n_owners + owner + 1
    return places, Buffer(held, stamps, now)


@pytest.mark.parametrize(
    ("n_owners", "n_ways", "top_k", "filled", "n_held"),
    [
        (4, 10, 24, 200, 40),
        (4, 10, 24, 200, 30),  # empty places
        (4, 8, 32, 300, 32),  # as many places as entries
        (4, 8, 32, 32, 32),  # everything is hot
        (2, 6, 7, 5, 0),  # empty, and fewer positions than entries
        (1, 9, 9, 50, 9),
        (8, 2, 11, 40, 16),  # fewer misses than two of each owner
        (16, 4, 3, 90, 64),  # not one of each
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_deal_places(n_owners: int, n_ways: int, top_k: int, filled: int, n_held: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = some_positions(rng, top_k, filled)
    buffer = some_buffer(rng, n_owners, n_ways, max(filled, n_held), n_held)
    found = find(buffer, positions, filled)
    buffer = buffer._replace(stamps=found.stamps)
    misses = list_misses(positions, found.places.max(axis=0), filled)
    n_free = n_ways - found.n_found.sum(axis=1)
    check_deal(buffer, positions, misses, n_free)


def check_deal(buffer: Buffer, positions: np.ndarray, misses: Misses, n_free: np.ndarray) -> None:
    dealt = deal(buffer, positions, misses, n_free)
    places, after = expected_deal(buffer, positions, misses, n_free)
    assert ((dealt.by_miss != 0).sum(axis=0) <= 1).all()  # one owner has it
    np.testing.assert_array_equal(dealt.by_miss.max(axis=0)[: misses.n], places)
    assert not dealt.by_miss[:, misses.n :].any()
    by_entry = np.zeros(len(positions), np.uint32)
    by_entry[misses.entries[: misses.n]] = places
    np.testing.assert_array_equal(dealt.by_entry.sum(axis=0), by_entry)
    owner_of = (dealt.by_entry.max(axis=0) - 1) % len(buffer.held)
    assert all(dealt.by_entry[owner_of[e], e] for e in np.flatnonzero(by_entry))
    assert_bits(dealt.after.held, after.held)
    assert_bits(dealt.after.stamps, after.stamps)


@pytest.mark.parametrize("clock", range(4))  # every owner begins once
@pytest.mark.parametrize(
    "n_free", [(0, 0, 0, 8), (8, 0, 1, 0), (1, 2, 3, 2), (2, 8, 8, 8), (3, 3, 3, 3), (0, 8, 0, 8)]
)
def test_the_share_grows_where_owners_have_no_room(n_free: tuple[int, ...], clock: int) -> None:
    """Eight misses, two of each of four owners if all of these had room."""
    buffer = some_buffer(np.random.default_rng(clock), 4, 8, 900, 32)
    stamps = np.minimum(buffer.stamps, clock)
    for owner, n in enumerate(n_free):
        stamps[owner, LAYER, : 8 - n] = clock + 1  # selected now
    positions = np.arange(1000, 1012, dtype=np.uint32)
    entries = np.array([0, 1, 3, 4, 5, 8, 10, 11, 99, 99, 99, 99], np.uint32)
    misses = Misses(8, entries, entries)
    check_deal(Buffer(buffer.held, stamps, clock), positions, misses, np.array(n_free))


@given(data=st.data())
def test_steps_of_a_head(data: st.DataObject) -> None:
    """Selections one after the other: each row that is selected has a place of its own, none that
    was hot is fetched again, and what goes is never what is selected now."""
    n_owners = data.draw(st.sampled_from([1, 2, 4]), label="n_owners")
    top_k = data.draw(st.sampled_from([1, 5, 12, 20]), label="top_k")
    n_ways = -(-top_k // n_owners) + data.draw(st.sampled_from([0, 1, 4]), label="more ways")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    empty = np.zeros((n_owners, N_LAYERS, n_ways), np.uint32)
    buffer = Buffer(empty, empty, 0)
    for filled in (3, 15, 30, 31):
        positions = some_positions(rng, top_k, filled)
        before = buffer.places()
        found = find(buffer, positions, filled)
        hits = found.places.max(axis=0)
        misses = list_misses(positions, hits, filled)
        n_free = n_ways - found.n_found.sum(axis=1)
        dealt = deal(buffer._replace(stamps=found.stamps), positions, misses, n_free)
        buffer = dealt.after
        n = min(filled, top_k)
        places = np.maximum(hits, dealt.by_entry.max(axis=0))[:n]
        assert misses.n == sum(int(p) not in before for p in positions[:n])
        after = buffer.places()
        assert [after[int(p)] + 1 for p in positions[:n]] == places.tolist()
        assert all(after[p] == place for p, place in before.items() if p in positions[:n])
        np.testing.assert_array_equal(buffer.held[:, [0, 2]], 0)  # other layers


# ---- how their rows come in


#: a wave costs as much as reading so many rows, and one of few rows
WAVE_COST, FEW, FEW_COST = 20, 2, 14
#: misses of each head, how many heads are in a list, rows of a wave
WAVES = (
    ([3, 0, 5], 3, 8),  # a wave holds all
    ([10, 1, 20, 0, 9], 5, 12),  # more than a wave, heads that are cut twice
    ([0, 0], 1, 4),
    ([16], 1, 4),
    ([4, 4, 4], 1, 4),  # lists that are as long
    ([1, 30], 2, 26),
    ([20, 30, 0, 1, 22, 19, 3], 3, 16),  # lists that are not, the last one shorter
    ([40, 0, 0, 0, 0, 0], 2, 8),  # one head has all
    ([7, 7, 8, 7, 7, 6], 2, 12),
    ([15, 3], 1, 16),  # a last wave of few rows costs less than a full one
)


class ManyMisses(NamedTuple):
    """Misses of several heads, by their numbers in the list of all."""

    counts: list[int]
    list_slots: int
    list_rows: int
    #: of each head (its misses,)
    rows: list[np.ndarray]

    def of_lists(self, waves: int) -> list[list[np.ndarray]]:
        """Of each wave and list the rows that it fetches."""
        lists = self.lists()
        return [[rows[w * self.list_rows : (w + 1) * self.list_rows] for rows in lists] for w in range(waves)]

    def lists(self) -> list[np.ndarray]:
        heads = range(0, len(self.counts), self.list_slots)
        return [np.concatenate(self.rows[begin : begin + self.list_slots]) for begin in heads]

    def of_all(self, waves: int) -> np.ndarray:
        """What is left behind so many waves of lists, list by list."""
        return np.concatenate([rows[waves * self.list_rows :] for rows in self.lists()])


def some_misses(seed: int, counts: list[int], list_slots: int, list_rows: int) -> ManyMisses:
    rng = np.random.default_rng(seed)
    return ManyMisses(
        counts, list_slots, list_rows, [rng.integers(1, 2**30, n).astype(np.uint32) for n in counts]
    )


def planned(
    counts: list[int], list_slots: int, list_rows: int, unit: int, wide_cost: int = 2**20
) -> dict[str, Any]:
    n_lists = -(-len(counts) // list_slots)
    return run(
        "PlanMisses",
        dict(
            nMisses=np.array(counts, np.uint32),
            left=words(n_lists),
            nWaves=number(-1),
            way=number(-1),
        ),
        nSlots=len(counts),
        nLists=n_lists,
        listSlots=list_slots,
        waveRows=list_rows,
        unit=unit,
        waveCost=WAVE_COST,
        fewRows=FEW,
        fewCost=FEW_COST,
        wideCost=wide_cost,
    )


def number(value: int) -> np.ndarray:
    return np.array(value, np.int32)


def more_of(plan: dict[str, Any], wave: np.ndarray, list_rows: int, unit: int) -> dict[str, Any]:
    return run(
        "MoreMisses",
        dict(
            left=plan["left"].astype(np.uint32),
            nWaves=number(int(plan["nWaves"])),
            wave=wave,
            moreOfLists=np.array(False),
            more=np.array(False),
            units=number(-1),
        ),
        nLists=len(plan["left"]),
        waveRows=list_rows,
        fewRows=FEW,
        unit=unit,
    )


def cheaper_by_lists(left: list[int], list_rows: int, unit: int) -> bool:
    """What the two ways read and cost, for as many rows as a wave of lists has at most."""
    own = [min(n, list_rows) for n in left]
    of_lists = WAVE_COST + len(left) * unit * -(-max(own) // unit)
    full, rest = divmod(sum(own), list_rows)
    of_rest = 0 if rest == 0 else FEW_COST if rest <= FEW else WAVE_COST
    return of_lists < WAVE_COST * full + of_rest + sum(own)


@pytest.mark.parametrize(("counts", "list_slots", "n"), WAVES)
def test_waves_of_misses(counts: list[int], list_slots: int, n: int) -> None:
    """Waves of lists while these cost less, then of all, until there is no more: what each head places, what
    is read for all, and how much."""
    misses, top_k, unit, few = some_misses(n, counts, list_slots, n), 40, 4, FEW
    plan = planned(counts, list_slots, n, unit)
    n_waves, left = int(plan["nWaves"]), [len(rows) for rows in misses.lists()]
    assert plan["left"].tolist() == left
    for _ in range(n_waves):
        assert cheaper_by_lists(left, n, unit)
        left = [max(rows - n, 0) for rows in left]
    assert not cheaper_by_lists(left, n, unit)
    assert plan["way"] == (n_waves != 0)
    firsts = [first_of(misses, slot, n_waves) for slot in range(len(counts))]
    of_lists, rest = misses.of_lists(n_waves), misses.of_all(n_waves)
    wave = word(2**32 - 1)  # the number before 0
    for number in range(n_waves + -(-len(rest) // n) + 1):
        out = more_of(plan, wave, n, unit)
        wave = out["wave"].astype(np.uint32)
        assert wave == number and out["moreOfLists"] == (number < n_waves)
        if number < n_waves:
            most = max(len(rows) for rows in of_lists[number])
            assert not out["more"] and out["units"] == -(-most // unit)
            for which, rows in enumerate(of_lists[number]):
                slots = range(which * list_slots, min((which + 1) * list_slots, len(counts)))
                check_wave(misses, rows, number, n, top_k, {slot: firsts[slot]["inList"] for slot in slots})
            continue
        rows = rest[(number - n_waves) * n :]
        assert out["more"] == (len(rows) != 0)
        # few rows come in a smaller wave; else as many units are read as hold what is left
        assert out["units"] == (0 if len(rows) <= few else -(-min(len(rows), n) // unit))
        size = few if len(rows) <= few else n
        slots_of_all = {slot: first["inAll"] for slot, first in enumerate(firsts)}
        check_wave(misses, rows[:size], number, size, top_k, slots_of_all)


def first_of(misses: ManyMisses, slot: int, n_waves: int) -> dict[str, np.ndarray]:
    fields = dict(
        nMisses=np.array(misses.counts[: max(slot, 1)], np.uint32),
        nWaves=number(n_waves),
        inList=words(2),
        inAll=words(2),
    )
    out = run("FirstMiss", fields, nBefore=slot, listSlots=misses.list_slots, waveRows=misses.list_rows)
    return {name: out[name].astype(np.uint32) for name in ("inList", "inAll")}


def check_wave(
    misses: ManyMisses, expected: np.ndarray, wave: int, size: int, top_k: int, firsts: dict[int, np.ndarray]
) -> None:
    """Of a wave of `size` rows, what the slots of `firsts` place behind the wave before, and what is read."""
    placed, before = [], word((wave - 1) % 2**32)
    for slot, first in firsts.items():
        rows = words(top_k)  # behind the last miss, which nobody takes
        rows[: misses.counts[slot]] = misses.rows[slot]
        fields = dict(
            first=first, nMisses=word(misses.counts[slot]), rows=rows, waveRow=words(misses.list_rows)
        )
        row = run("PlaceMisses", dict(fields, wave=before), waveRows=misses.list_rows)["waveRow"]
        assert not row[size:].any()
        placed.append(row[:size])
    read = np.concatenate([expected, np.zeros(size, np.uint32)])[:size]
    assert ((np.stack(placed) != 0).sum(axis=0) <= 1).all()
    np.testing.assert_array_equal(np.stack(placed).max(axis=0), read)
    offsets = run("WaveRows", dict(ofSlots=np.stack(placed), offsets=words(size)), nSlots=len(placed), n=size)
    np.testing.assert_array_equal(offsets["offsets"], np.where(read == 0, 0, read - 1))


@pytest.mark.parametrize(("counts", "list_slots", "n"), WAVES)
@pytest.mark.parametrize("of_all", [False, True])
def test_rows_of_the_first_wave(counts: list[int], list_slots: int, n: int, of_all: bool) -> None:
    """Of a list, or of all: as PlaceMisses of the wave behind the number before 0."""
    misses = some_misses(n, counts, list_slots, n)
    for slot, count in enumerate(counts):
        begin = 0 if of_all else slot // list_slots * list_slots
        before = np.array(counts[begin : max(slot, begin + 1)], np.uint32)
        rows = words(40)
        rows[:count] = misses.rows[slot]
        fields = dict(nMisses=word(count), rows=rows, waveRow=words(n))
        first = first_of(misses, slot, 0)["inAll" if of_all else "inList"]
        expected = run("PlaceMisses", dict(fields, wave=word(2**32 - 1), first=first), waveRows=n)
        out = run("PlaceFirst", dict(fields, before=before), nBefore=slot - begin, waveRows=n)
        np.testing.assert_array_equal(out["waveRow"], expected["waveRow"])


def test_a_wave_of_lists_is_planned_where_it_costs_less() -> None:
    """Both ways are in the cases above."""
    ways = [int(planned(counts, list_slots, n, 4)["way"]) for counts, list_slots, n in WAVES]
    assert set(ways) == {0, 1}


#: misses, how many heads are in a list, what they cost in shared waves of 4 rows
COSTS = (
    ([3, 4], 2, WAVE_COST + 4 + WAVE_COST + 3),  # by waves of all
    ([3, 3], 2, WAVE_COST + 4 + FEW_COST + 2),
    ([4, 4], 1, WAVE_COST + 8),  # by a wave of lists
    ([4, 5], 1, WAVE_COST + 8 + FEW_COST + 1),  # by both
)


@pytest.mark.parametrize(("counts", "list_slots", "cost"), COSTS)
def test_every_head_fetches_its_own_where_that_costs_less(
    counts: list[int], list_slots: int, cost: int
) -> None:
    shared, wide = (planned(counts, list_slots, 4, 4, wide_cost) for wide_cost in (cost, cost - 1))
    assert shared["way"] == (list_slots == 1) and wide["way"] == 2
    assert wide["nWaves"] > shared["nWaves"]
    assert planned([0, 0], list_slots, 4, 4, 1)["way"] == 0
    assert not more_of(wide, word(2**32 - 1), 4, 4)["more"]  # so no shared wave does


@pytest.mark.parametrize(("n_misses", "list_rows"), [(19, 20), (19, 8), (20, 8), (0, 8)])
def test_rows_of_a_head(n_misses: int, list_rows: int) -> None:
    """Wave by wave, four at a time; row 0 behind the last miss, whatever is in the list."""
    rng = np.random.default_rng(n_misses)
    rows = rng.integers(1, 2**32, 40, np.uint32)
    expected = np.zeros(40, np.uint32)
    expected[:n_misses] = rows[:n_misses] - 1
    for wave in range(-(-20 // list_rows)):
        for row in range(0, list_rows, 4):
            fields = dict(wave=word(wave), nMisses=word(n_misses), rows=rows, offsets=words(4))
            out = run("HeadRows", fields, waveRows=list_rows, row=row, n=4)
            first = wave * list_rows + row
            np.testing.assert_array_equal(out["offsets"], expected[first : first + 4])


@pytest.mark.parametrize("n", [1, 4, 7])
@pytest.mark.parametrize(("head_dim", "width"), [(8, 4), (16, 8), (64, 4), (64, 64), (96, 12), (128, 8)])
def test_cut_rows(n: int, head_dim: int, width: int) -> None:
    rows = half_bits(np.random.default_rng(head_dim), n, 2, head_dim)
    out = run(
        "CutRows",
        dict(rows=rows, pieces=halves(n * 2 * head_dim)),
        n=n,
        headDim=head_dim,
        width=width,
    )
    lanes = [[c for c in range(head_dim) if c % 8 // 2 == pair] for pair in range(4)]
    keys = [rows[:, 0, of_pair].ravel() for of_pair in lanes]
    values = [rows[:, 1, c : c + width].ravel() for c in range(0, head_dim, width)]
    assert_bits(out["pieces"], np.concatenate(keys + values))


@pytest.mark.parametrize(("counts", "list_slots", "n"), WAVES)
@pytest.mark.parametrize(("set_shift", "width"), [(0, 4), (2, 16), (1, 6)])
@pytest.mark.parametrize("n_waves", [0, 1])
def test_insert_rows(
    counts: list[int], list_slots: int, n: int, set_shift: int, width: int, n_waves: int
) -> None:
    """Of every wave of all, behind some of lists, those of one head and the set, into its layer."""
    rng, top_k, n_rows, n_sets = np.random.default_rng(n), 40, 41, 1 << set_shift
    misses = some_misses(n, counts, list_slots, n)
    head, rest = len(counts) - 1, misses.of_all(n_waves)
    first = first_of(misses, head, n_waves)["inAll"]
    places, of_set = words(top_k), n_sets - 1
    places[: counts[head]] = rng.permutation(n_rows * n_sets)[: counts[head]] + 1
    rows = half_bits(rng, N_LAYERS, n_rows, width)
    expected = rows.copy()
    for wave in range(-(-len(rest) // n) + 1):
        pieces = half_bits(rng, n, width)
        rows = run(
            "InsertRows",
            dict(
                layer=word(LAYER),
                wave=word(n_waves + wave),
                first=first,
                nMisses=word(counts[head]),
                places=places,
                pieces=pieces,
                rows=rows,
            ),
            fullRows=n,
            nRows=n_rows,
            width=width,
            set=of_set,
            setShift=set_shift,
        )["rows"]
        for at, fetched in enumerate(rest[wave * n : (wave + 1) * n]):
            for miss in np.flatnonzero(misses.rows[head] == fetched):
                row, its_set = divmod(int(places[miss]) - 1, n_sets)
                if its_set == of_set:
                    expected[LAYER, row] = pieces[at]
        assert_bits(rows, expected)


# ---- a row that is appended, and rows that are replaced


@pytest.mark.parametrize("active", [0, 1])
@pytest.mark.parametrize(("n_owners", "n_ways", "n_held"), [(4, 5, 20), (4, 5, 9), (1, 3, 0), (32, 1, 32)])
@pytest.mark.parametrize("filled", [0, 64, 99])
def test_deal_newest(n_owners: int, n_ways: int, n_held: int, filled: int, active: int) -> None:
    """To the owner whose turn it is: the way that was selected least recently."""
    buffer = some_buffer(np.random.default_rng(filled), n_owners, n_ways, 100, n_held)
    for owner in range(n_owners):
        held, stamps = buffer.held[owner], buffer.stamps[owner]
        out = run(
            "DealNewest",
            dict(
                filled=word(filled),
                active=word(active),
                layer=word(LAYER),
                clock=word(buffer.clock),
                held=held,
                stamps=stamps,
                place=word(77),
            ),
            **buffer.settings(owner),
        )
        expected_held, expected_stamps, place = held.copy(), stamps.copy(), 0
        if active and filled % n_owners == owner:
            way = int(np.argmin(stamps[LAYER]))
            expected_held[LAYER, way], expected_stamps[LAYER, way] = filled + 1, buffer.clock
            place = way * n_owners + owner + 1
        assert out["place"] == place
        assert_bits(out["held"], expected_held)
        assert_bits(out["stamps"], expected_stamps)


@pytest.mark.parametrize(("n_owners", "owner"), [(4, 2), (1, 0), (4, None)])
@pytest.mark.parametrize(("set_shift", "width"), [(0, 4), (1, 8), (2, 26)])
def test_insert_newest(n_owners: int, owner: int | None, set_shift: int, width: int) -> None:
    rng = np.random.default_rng(width)
    n_rows, place, places = 6, 13, np.zeros(n_owners, np.uint32)
    rows, piece = half_bits(rng, N_LAYERS, n_rows << 2, width), half_bits(rng, width)
    if owner is not None:
        places[owner] = place + 1
    for of_set in range(1 << set_shift):
        expected = rows.copy()
        if owner is not None and place % (1 << set_shift) == of_set:
            expected[LAYER, place >> set_shift] = piece
        out = run(
            "InsertNewest",
            dict(layer=word(LAYER), places=places, piece=piece, rows=rows),
            nOwners=n_owners,
            nRows=n_rows << 2,
            width=width,
            set=of_set,
            setShift=set_shift,
        )
        assert_bits(out["rows"], expected)


@pytest.mark.parametrize("n_ways", [1, 6, 17])
def test_forget_hot(n_ways: int) -> None:
    rng = np.random.default_rng(n_ways)
    held, stamps = rng.integers(1, 99, (2, N_LAYERS, n_ways)).astype(np.uint32)
    out = run("ForgetHot", dict(layer=word(LAYER), held=held, stamps=stamps), nWays=n_ways)
    for before, after in ((held, out["held"]), (stamps, out["stamps"])):
        assert not after[LAYER].any()
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
